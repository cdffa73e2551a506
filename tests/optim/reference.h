// tests/optim/reference.h -- every optimizer written out in double, one number after the other, as its paper has it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "trireme/spec/optim.h"

namespace trireme::optim {

using Numbers = std::vector<double>;

/// One parameter and all that an optimizer may keep for it.
struct PlainParam {
  Numbers w, m, v;
  double rate = 1, decay = 0;           // what rule_for() says
  bool adapts = true;                   // a matrix: LAMB and LARS give it a rate of its own
  double rate_max = 0, weight_sum = 0;  // schedule-free AdamW
};

inline double norm(const Numbers& numbers) {
  return std::sqrt(std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0));
}

/// `g` is scaled already; `t` counts from 1.
inline void plain_step(const spec::OptimConfig& optim, PlainParam& p, const Numbers& g, double learning_rate, int t) {
  using Kind = spec::OptimizerKind;
  const double lr = learning_rate * p.rate, mu = optim.momentum, b1 = optim.beta1, b2 = optim.beta2;
  const double epsilon = spec::epsilon_of(optim);
  const std::size_t n = p.w.size();
  p.m.resize(n), p.v.resize(n);
  Numbers u(n);  // LAMB's direction
  const double weight = norm(p.w), gradient = norm(g);
  for (std::size_t i = 0; i < n; ++i) {
    double& w = p.w[i];
    double& m = p.m[i];
    double& v = p.v[i];
    switch (optim.kind) {
      case Kind::kSgd: {
        const double d = g[i] + p.decay * w;
        m = mu * m + d;
        w -= lr * (mu == 0 ? d : optim.nesterov ? d + mu * m : m);
        break;
      }
      case Kind::kAdagrad: {
        const double d = g[i] + p.decay * w;
        v += d * d;
        w -= lr * d / (std::sqrt(v) + epsilon);
        break;
      }
      case Kind::kLion: {
        const double u = b1 * m + (1 - b1) * g[i];
        w -= lr * ((u > 0 ? 1 : u < 0 ? -1 : 0) + p.decay * w);
        m = b2 * m + (1 - b2) * g[i];
        break;
      }
      case Kind::kScheduleFree: {  // w is y and m is z; x follows from both, and moves by its definition
        if (t == 1) m = w;
        if (i == 0) {
          p.rate_max = std::max(p.rate_max, learning_rate);
          p.weight_sum += p.rate_max * p.rate_max;
        }
        const double c = p.weight_sum > 0 ? p.rate_max * p.rate_max / p.weight_sum : 0;
        v = b2 * v + (1 - b2) * g[i] * g[i];
        const double x = (w - (1 - b1) * m) / b1;
        m -= lr * (g[i] / (std::sqrt(v / (1 - std::pow(b2, t))) + epsilon) + p.decay * w);
        w = (1 - b1) * m + b1 * ((1 - c) * x + c * m);
        break;
      }
      case Kind::kAdafactor:
        break;           // matrix_reference.h
      case Kind::kMuon:  // of what are no matrices
      case Kind::kShampoo:
      case Kind::kSoap:
      case Kind::kAdam:
      case Kind::kAdamw:
      case Kind::kLamb: {
        const double d = g[i] + (optim.kind == Kind::kAdam ? p.decay * w : 0);
        m = b1 * m + (1 - b1) * d;
        v = b2 * v + (1 - b2) * d * d;
        const double step = m / (1 - std::pow(b1, t)) / (std::sqrt(v / (1 - std::pow(b2, t))) + epsilon);
        u[i] = step + p.decay * w;
        if (optim.kind == Kind::kAdam) w -= lr * step;
        if (optim.kind != Kind::kAdam && optim.kind != Kind::kLamb) w = w - lr * p.decay * w - lr * step;
        break;
      }
      case Kind::kLars: {
        const double local =
            p.adapts && weight > 0 && gradient > 0 ? optim.trust * weight / (gradient + p.decay * weight) : 1;
        m = mu * m + lr * local * (g[i] + p.decay * w);
        w -= m;
        break;
      }
    }
  }
  if (optim.kind == Kind::kLamb) {
    double phi = weight;
    if (phi < optim.weight_norm_min) phi = optim.weight_norm_min;
    if (optim.weight_norm_max && phi > *optim.weight_norm_max) phi = *optim.weight_norm_max;
    const double length = norm(u), ratio = p.adapts && phi > 0 && length > 0 ? phi / length : 1;
    for (std::size_t i = 0; i < n; ++i) p.w[i] -= lr * ratio * u[i];
  }
}

}  // namespace trireme::optim
