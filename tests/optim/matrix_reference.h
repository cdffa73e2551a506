// tests/optim/matrix_reference.h -- optimizers of whole matrices written out in double, as their papers have them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/optim/reference.h"
#include "trireme/spec/optim.h"

namespace trireme::optim {

struct PlainMatrix {
  std::size_t rows = 0, columns = 0;
  Numbers numbers = {};
  PlainMatrix() = default;
  PlainMatrix(std::size_t m, std::size_t n) : rows(m), columns(n), numbers(m * n) {}
  PlainMatrix(std::size_t m, std::size_t n, Numbers from) : rows(m), columns(n), numbers(std::move(from)) {}
  double& at(std::size_t i, std::size_t j) { return numbers[i * columns + j]; }
  double at(std::size_t i, std::size_t j) const { return numbers[i * columns + j]; }
};

inline PlainMatrix transposed(const PlainMatrix& a) {
  PlainMatrix out(a.columns, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.columns; ++j) out.at(j, i) = a.at(i, j);
  return out;
}
inline PlainMatrix product(const PlainMatrix& a, const PlainMatrix& b) {
  PlainMatrix out(a.rows, b.columns);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.columns; ++k)
      for (std::size_t j = 0; j < b.columns; ++j) out.at(i, j) += a.at(i, k) * b.at(k, j);
  return out;
}
/// x a + y b.
inline PlainMatrix combined(double x, const PlainMatrix& a, double y, const PlainMatrix& b) {
  PlainMatrix out(a.rows, a.columns);
  for (std::size_t i = 0; i < out.numbers.size(); ++i) out.numbers[i] = x * a.numbers[i] + y * b.numbers[i];
  return out;
}

/// Muon's five-line Newton-Schulz, with the transpose that keeps the smaller side first.
inline PlainMatrix plain_newton_schulz(const PlainMatrix& g, int steps) {
  const bool turned = g.rows > g.columns;
  PlainMatrix x = turned ? transposed(g) : g;
  const double length = norm(x.numbers) + 1e-7;
  for (double& number : x.numbers) number /= length;
  for (int step = 0; step < steps; ++step) {
    const PlainMatrix a = product(x, transposed(x));
    const PlainMatrix b = combined(-4.7750, a, 2.0315, product(a, a));
    x = combined(3.4445, x, 1, product(b, x));
  }
  return turned ? transposed(x) : x;
}

/// Eigenvalues, ascending, and eigenvectors as columns, of a symmetric matrix: Jacobi's rotations.
struct PlainEigen {
  Numbers values;
  PlainMatrix vectors;
};
inline PlainEigen plain_eigen(PlainMatrix a) {
  const std::size_t n = a.rows;
  PlainMatrix v(n, n);
  for (std::size_t i = 0; i < n; ++i) v.at(i, i) = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        off += a.at(p, q) * a.at(p, q);
        if (a.at(p, q) == 0) continue;
        const double theta = (a.at(q, q) - a.at(p, p)) / (2 * a.at(p, q));
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double kp = a.at(k, p), kq = a.at(k, q);
          a.at(k, p) = c * kp - s * kq;
          a.at(k, q) = s * kp + c * kq;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double pk = a.at(p, k), qk = a.at(q, k);
          a.at(p, k) = c * pk - s * qk;
          a.at(q, k) = s * pk + c * qk;
          const double vp = v.at(k, p), vq = v.at(k, q);
          v.at(k, p) = c * vp - s * vq;
          v.at(k, q) = s * vp + c * vq;
        }
      }
    }
    if (off < 1e-30) break;
  }
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return a.at(x, x) < a.at(y, y); });
  PlainEigen out{.values = Numbers(n), .vectors = PlainMatrix(n, n)};
  for (std::size_t j = 0; j < n; ++j) {
    out.values[j] = a.at(order[j], order[j]);
    for (std::size_t i = 0; i < n; ++i) out.vectors.at(i, j) = v.at(i, order[j]);
  }
  return out;
}
inline PlainMatrix plain_inverse_fourth_root(const PlainMatrix& a, double correction, double epsilon) {
  const PlainEigen eigen = plain_eigen(a);
  PlainMatrix scaled = eigen.vectors;
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.rows; ++j)
      scaled.at(i, j) *= std::pow(std::max(0.0, eigen.values[j] / correction) + epsilon, -0.25);
  return product(scaled, transposed(eigen.vectors));
}
/// Q of a QR decomposition: Gram-Schmidt, twice for orthogonality.
inline PlainMatrix plain_q(PlainMatrix a) {
  for (int round = 0; round < 2; ++round) {
    for (std::size_t j = 0; j < a.columns; ++j) {
      for (std::size_t k = 0; k < j; ++k) {
        double dot = 0;
        for (std::size_t i = 0; i < a.rows; ++i) dot += a.at(i, j) * a.at(i, k);
        for (std::size_t i = 0; i < a.rows; ++i) a.at(i, j) -= dot * a.at(i, k);
      }
      double square = 0;
      for (std::size_t i = 0; i < a.rows; ++i) square += a.at(i, j) * a.at(i, j);
      for (std::size_t i = 0; i < a.rows; ++i) a.at(i, j) /= std::sqrt(square);
    }
  }
  return a;
}

/// A matrix and all that an optimizer keeps for it.
struct PlainState {
  PlainMatrix w, m, v, left, right, left_root, right_root;
  Numbers r, c;  // Adafactor: means of rows and columns; of vectors r is v
  double rate = 1, decay = 0;
};

inline void plain_adafactor(const spec::OptimConfig& optim, PlainState& p, const PlainMatrix& g, double lr, int t,
                            bool factored) {
  const double b = 1 - std::pow(t, -optim.factored_decay), epsilon = spec::epsilon_of(optim);
  const std::size_t m = g.rows, n = g.columns;
  PlainMatrix u = g;
  if (factored) {
    p.r.resize(m), p.c.resize(n);
    Numbers rows(m), columns(n);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const double square = g.at(i, j) * g.at(i, j) + epsilon;
        rows[i] += square / static_cast<double>(n);
        columns[j] += square / static_cast<double>(m);
      }
    }
    double mean = 0;
    for (std::size_t i = 0; i < m; ++i) {
      p.r[i] = b * p.r[i] + (1 - b) * rows[i];
      mean += p.r[i] / static_cast<double>(m);
    }
    for (std::size_t j = 0; j < n; ++j) p.c[j] = b * p.c[j] + (1 - b) * columns[j];
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) u.at(i, j) /= std::sqrt(p.r[i] * p.c[j] / mean);
  } else {
    p.r.resize(g.numbers.size());
    for (std::size_t i = 0; i < g.numbers.size(); ++i) {
      p.r[i] = b * p.r[i] + (1 - b) * (g.numbers[i] * g.numbers[i] + epsilon);
      u.numbers[i] /= std::sqrt(p.r[i]);
    }
  }
  const double count = std::sqrt(static_cast<double>(g.numbers.size()));
  const double clip = std::max(1.0, norm(u.numbers) / count / optim.update_clip);
  const double scale = optim.parameter_scale ? std::max(1e-3, norm(p.w.numbers) / count) : 1;
  for (std::size_t i = 0; i < u.numbers.size(); ++i)
    p.w.numbers[i] = p.w.numbers[i] * (1 - lr * p.decay) - lr * scale * u.numbers[i] / clip;
}

/// One step of a matrix with Muon, Adafactor, Shampoo or SOAP; `g` is scaled already, `t` counts from 1.
inline void plain_matrix_step(const spec::OptimConfig& optim, PlainState& p, const PlainMatrix& g, double learning_rate,
                              int t) {
  using Kind = spec::OptimizerKind;
  const double lr = learning_rate * p.rate, b1 = optim.beta1, b2 = optim.beta2, b = optim.preconditioner_beta;
  const std::size_t m = g.rows, n = g.columns;
  if (optim.kind == Kind::kAdafactor) return plain_adafactor(optim, p, g, lr, t, true);
  const auto start = [](PlainMatrix& matrix, std::size_t rows, std::size_t columns) {
    if (matrix.numbers.empty()) matrix = PlainMatrix(rows, columns);
  };
  start(p.m, m, n), start(p.v, m, n), start(p.left, m, m), start(p.right, n, n);
  const double gain = b < 1 ? 1 - b : 1;
  PlainMatrix direction(m, n);
  if (optim.kind == Kind::kMuon) {
    const double mu = optim.muon_momentum;
    p.m = combined(mu, p.m, 1 - mu, g);
    direction =
        plain_newton_schulz(optim.muon_nesterov ? combined(mu, p.m, 1 - mu, g) : p.m, optim.newton_schulz_steps);
    const auto rows = static_cast<double>(m), columns = static_cast<double>(n);
    const double scale = optim.muon_scale == spec::MuonScale::kRms ? 0.2 * std::sqrt(std::max(rows, columns))
                                                                   : std::sqrt(std::max(1.0, rows / columns));
    for (double& number : direction.numbers) number *= scale;
  } else if (optim.kind == Kind::kShampoo) {
    p.m = combined(b1, p.m, 1 - b1, g);
    p.left = combined(b, p.left, gain, product(g, transposed(g)));
    p.right = combined(b, p.right, gain, product(transposed(g), g));
    if ((t - 1) % optim.precondition_every == 0) {
      const double correction = b < 1 ? 1 - std::pow(b, t) : 1;
      p.left_root = plain_inverse_fourth_root(p.left, correction, spec::epsilon_of(optim));
      p.right_root = plain_inverse_fourth_root(p.right, correction, spec::epsilon_of(optim));
    }
    direction = product(product(p.left_root, p.m), p.right_root);
    for (double& number : direction.numbers) number /= 1 - std::pow(b1, t);
  } else {
    if (t > 1) {
      const auto project = [&](const PlainMatrix& a) {
        return product(product(transposed(p.left_root), a), p.right_root);
      };
      p.m = combined(b1, p.m, 1 - b1, g);
      const PlainMatrix turned = project(g);
      PlainMatrix step = project(p.m);
      for (std::size_t i = 0; i < step.numbers.size(); ++i) {
        p.v.numbers[i] = b2 * p.v.numbers[i] + (1 - b2) * turned.numbers[i] * turned.numbers[i];
        step.numbers[i] = step.numbers[i] / (1 - std::pow(b1, t - 1)) /
                          (std::sqrt(p.v.numbers[i] / (1 - std::pow(b2, t - 1))) + spec::epsilon_of(optim));
      }
      direction = product(product(p.left_root, step), transposed(p.right_root));
    }
    p.left = combined(b, p.left, gain, product(g, transposed(g)));
    p.right = combined(b, p.right, gain, product(transposed(g), g));
    if (t == 1) {
      p.left_root = plain_eigen(p.left).vectors;
      p.right_root = plain_eigen(p.right).vectors;
    } else if (t % optim.precondition_every == 0) {
      p.left_root = plain_q(product(p.left, p.left_root));
      p.right_root = plain_q(product(p.right, p.right_root));
    }
  }
  for (std::size_t i = 0; i < direction.numbers.size(); ++i)
    p.w.numbers[i] = p.w.numbers[i] * (1 - lr * p.decay) - lr * direction.numbers[i];
}

}  // namespace trireme::optim
