#include "trireme/dataflow/layer.h"

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::dataflow {
namespace {

using Index = std::size_t;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// out += W x, W of `outputs` rows at `at` of the parameters.
void multiply(const Payload& params, Index at, const double* x, Index inputs, Payload& out) {
  for (Index row = 0; row < out.size(); ++row) {
    double sum = 0;
    for (Index column = 0; column < inputs; ++column) sum += params[at + row * inputs + column] * x[column];
    out[row] += sum;
  }
}

/// dx += W^T dy and dW += dy x^T.
void affine_backward(const Payload& params, Index at, const double* x, Index inputs, const Payload& dy, double* dx,
                     Payload& gradient) {
  for (Index row = 0; row < dy.size(); ++row) {
    for (Index column = 0; column < inputs; ++column) {
      dx[column] += params[at + row * inputs + column] * dy[row];
      gradient[at + row * inputs + column] += dy[row] * x[column];
    }
  }
}

Payload drawn(std::uint64_t seed, const std::string& name, Index matrix, Index biases, double deviation) {
  const Random random(seed, "dataflow/" + name);
  Payload params(matrix + biases, 0.0);
  for (Index i = 0; i < matrix; ++i) params[i] = deviation * random.normal(i);
  return params;
}

void require_size(const Payload& payload, Index size, const char* what) {
  TRIREME_CHECK(payload.size() == size, "{} has {} elements, not {}", what, payload.size(), size);
}

class Linear final : public Layer {
 public:
  Linear(int inputs, int outputs, bool tanh)
      : inputs_(static_cast<Index>(inputs)), outputs_(static_cast<Index>(outputs)), tanh_(tanh) {}
  Payload forward(const Payload& params, const State&, const Payload& input, Payload& saved) const override {
    require_size(input, inputs_, "the input of a linear layer");
    Payload out(params.begin() + static_cast<std::ptrdiff_t>(inputs_ * outputs_), params.end());
    multiply(params, 0, input.data(), inputs_, out);
    if (tanh_) {
      for (double& value : out) value = std::tanh(value);
    }
    saved = input;
    saved.insert(saved.end(), out.begin(), out.end());
    return out;
  }
  Payload backward(const Payload& params, const State&, const Payload& saved, const Payload& output_gradient,
                   Payload& gradient) const override {
    Payload dy = output_gradient, dx(inputs_, 0.0);
    for (Index row = 0; row < outputs_; ++row) {
      const double y = saved[inputs_ + row];
      if (tanh_) dy[row] *= 1 - y * y;
      gradient[inputs_ * outputs_ + row] += dy[row];
    }
    affine_backward(params, 0, saved.data(), inputs_, dy, dx.data(), gradient);
    return dx;
  }
  Payload initial(std::uint64_t seed, const std::string& name) const override {
    return drawn(seed, name, inputs_ * outputs_, outputs_, 1 / std::sqrt(static_cast<double>(inputs_)));
  }
  double flops() const override { return 2.0 * static_cast<double>(inputs_ * outputs_); }

 private:
  Index inputs_, outputs_;
  bool tanh_;
};

class Embedding final : public Layer {
 public:
  Embedding(int tokens, int size) : tokens_(static_cast<Index>(tokens)), size_(static_cast<Index>(size)) {}
  Payload forward(const Payload& params, const State&, const Payload& input, Payload& saved) const override {
    require_size(input, 1, "a token");
    const auto token = static_cast<Index>(input[0]);
    TRIREME_CHECK(token < tokens_, "token {} of {}", token, tokens_);
    saved = input;
    const auto row = params.begin() + static_cast<std::ptrdiff_t>(token * size_);
    return {row, row + static_cast<std::ptrdiff_t>(size_)};
  }
  Payload backward(const Payload&, const State&, const Payload& saved, const Payload& output_gradient,
                   Payload& gradient) const override {
    const auto token = static_cast<Index>(saved[0]);
    for (Index i = 0; i < size_; ++i) gradient[token * size_ + i] += output_gradient[i];
    return {0.0};  // a token has no gradient, but its message goes back
  }
  Payload initial(std::uint64_t seed, const std::string& name) const override {
    return drawn(seed, name, tokens_ * size_, 0, 0.5);
  }
  double flops() const override { return static_cast<double>(size_); }

 private:
  Index tokens_, size_;
};

/// (h, c) of a node with `children` children: gates i, o, u and one f for each child, from their h or from a word.
class TreeCell final : public Layer {
 public:
  TreeCell(int inputs, int hidden, int children)
      : hidden_(static_cast<Index>(hidden)),
        children_(static_cast<Index>(children)),
        inputs_(children > 0 ? static_cast<Index>(hidden * children) : static_cast<Index>(inputs)),
        gates_(3 + children_) {}

  Payload forward(const Payload& params, const State&, const Payload& input, Payload& saved) const override {
    require_size(input, children_ > 0 ? 2 * inputs_ : inputs_, "the input of a tree LSTM");
    const Payload x = hidden_of(input);
    Payload z(params.begin() + static_cast<std::ptrdiff_t>(gates_ * hidden_ * inputs_), params.end());
    multiply(params, 0, x.data(), inputs_, z);
    Payload out(2 * hidden_);
    for (Index k = 0; k < hidden_; ++k) {
      double& i = z[k];
      double& o = z[hidden_ + k];
      double& u = z[2 * hidden_ + k];
      i = sigmoid(i), o = sigmoid(o), u = std::tanh(u);
      double c = i * u;
      for (Index child = 0; child < children_; ++child) {
        double& f = z[(3 + child) * hidden_ + k];
        f = sigmoid(f);
        c += f * input[(2 * child + 1) * hidden_ + k];
      }
      out[k] = o * std::tanh(c);
      out[hidden_ + k] = c;
    }
    saved = input;
    saved.insert(saved.end(), z.begin(), z.end());
    saved.insert(saved.end(), out.begin() + static_cast<std::ptrdiff_t>(hidden_), out.end());
    return out;
  }

  Payload backward(const Payload& params, const State&, const Payload& saved, const Payload& output_gradient,
                   Payload& gradient) const override {
    const Index size = children_ > 0 ? 2 * inputs_ : inputs_;
    const Payload input(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(size)), x = hidden_of(input);
    const double* z = saved.data() + size;
    const double* cells = z + gates_ * hidden_;
    Payload dz(gates_ * hidden_), dx(inputs_, 0.0), input_gradient(size, 0.0);
    for (Index k = 0; k < hidden_; ++k) {
      const double i = z[k], o = z[hidden_ + k], u = z[2 * hidden_ + k], tanh_c = std::tanh(cells[k]);
      const double dh = output_gradient[k];
      const double dc = output_gradient[hidden_ + k] + dh * o * (1 - tanh_c * tanh_c);
      dz[k] = dc * u * i * (1 - i);
      dz[hidden_ + k] = dh * tanh_c * o * (1 - o);
      dz[2 * hidden_ + k] = dc * i * (1 - u * u);
      for (Index child = 0; child < children_; ++child) {
        const double f = z[(3 + child) * hidden_ + k];
        dz[(3 + child) * hidden_ + k] = dc * input[(2 * child + 1) * hidden_ + k] * f * (1 - f);
        input_gradient[(2 * child + 1) * hidden_ + k] = dc * f;
      }
    }
    for (Index row = 0; row < dz.size(); ++row) gradient[gates_ * hidden_ * inputs_ + row] += dz[row];
    affine_backward(params, 0, x.data(), inputs_, dz, dx.data(), gradient);
    if (children_ == 0) return dx;
    for (Index child = 0; child < children_; ++child) {
      for (Index k = 0; k < hidden_; ++k) input_gradient[2 * child * hidden_ + k] = dx[child * hidden_ + k];
    }
    return input_gradient;
  }

  Payload initial(std::uint64_t seed, const std::string& name) const override {
    Payload params =
        drawn(seed, name, gates_ * hidden_ * inputs_, gates_ * hidden_, 1 / std::sqrt(static_cast<double>(inputs_)));
    // Forget gates begin open, as in every LSTM that learns long dependencies.
    for (Index row = 3 * hidden_; row < gates_ * hidden_; ++row) params[gates_ * hidden_ * inputs_ + row] = 1;
    return params;
  }
  double flops() const override { return 2.0 * static_cast<double>(gates_ * hidden_ * inputs_); }

 private:
  /// The h of all children; a word as it is.
  Payload hidden_of(const Payload& input) const {
    if (children_ == 0) return input;
    Payload x;
    for (Index child = 0; child < children_; ++child) {
      const auto begin = input.begin() + static_cast<std::ptrdiff_t>(2 * child * hidden_);
      x.insert(x.end(), begin, begin + static_cast<std::ptrdiff_t>(hidden_));
    }
    return x;
  }

  Index hidden_, children_, inputs_, gates_;
};

/// z, r = sigmoid(W [h, a] + b), c = tanh(U [r h, a] + d), h' = (1 - z) h + z c. Parameters: W, U, b, d.
class Gru final : public Layer {
 public:
  explicit Gru(int hidden) : hidden_(static_cast<Index>(hidden)) {}

  Payload forward(const Payload& params, const State&, const Payload& input, Payload& saved) const override {
    require_size(input, 2 * hidden_, "the input of a gated recurrent unit");
    const auto biases = params.begin() + static_cast<std::ptrdiff_t>(matrices());
    const auto gates = static_cast<std::ptrdiff_t>(2 * hidden_);
    Payload zr(biases, biases + gates), c(biases + gates, params.end());
    multiply(params, 0, input.data(), 2 * hidden_, zr);
    for (double& gate : zr) gate = sigmoid(gate);
    const Payload reset = reset_of(input, zr);
    multiply(params, candidate(), reset.data(), 2 * hidden_, c);
    Payload out(hidden_);
    for (Index k = 0; k < hidden_; ++k) {
      c[k] = std::tanh(c[k]);
      out[k] = (1 - zr[k]) * input[k] + zr[k] * c[k];
    }
    saved = input;
    saved.insert(saved.end(), zr.begin(), zr.end());
    saved.insert(saved.end(), c.begin(), c.end());
    return out;
  }

  Payload backward(const Payload& params, const State&, const Payload& saved, const Payload& output_gradient,
                   Payload& gradient) const override {
    const auto part = [&](Index begin, Index size) {
      const auto at = saved.begin() + static_cast<std::ptrdiff_t>(begin);
      return Payload(at, at + static_cast<std::ptrdiff_t>(size));
    };
    const Payload input = part(0, 2 * hidden_), zr = part(2 * hidden_, 2 * hidden_), c = part(4 * hidden_, hidden_);
    Payload dc(hidden_), dzr(2 * hidden_), dx(2 * hidden_, 0.0), d_reset(2 * hidden_, 0.0);
    for (Index k = 0; k < hidden_; ++k) {
      dc[k] = output_gradient[k] * zr[k] * (1 - c[k] * c[k]);
      dzr[k] = output_gradient[k] * (c[k] - input[k]) * zr[k] * (1 - zr[k]);
      dx[k] = output_gradient[k] * (1 - zr[k]);
    }
    affine_backward(params, candidate(), reset_of(input, zr).data(), 2 * hidden_, dc, d_reset.data(), gradient);
    for (Index k = 0; k < hidden_; ++k) {
      const double r = zr[hidden_ + k];
      dzr[hidden_ + k] = d_reset[k] * input[k] * r * (1 - r);
      dx[k] += d_reset[k] * r;
      dx[hidden_ + k] += d_reset[hidden_ + k];
    }
    affine_backward(params, 0, input.data(), 2 * hidden_, dzr, dx.data(), gradient);
    for (Index row = 0; row < 2 * hidden_; ++row) gradient[matrices() + row] += dzr[row];
    for (Index row = 0; row < hidden_; ++row) gradient[matrices() + 2 * hidden_ + row] += dc[row];
    return dx;
  }

  Payload initial(std::uint64_t seed, const std::string& name) const override {
    return drawn(seed, name, matrices(), 3 * hidden_, 1 / std::sqrt(static_cast<double>(2 * hidden_)));
  }
  double flops() const override { return 2.0 * static_cast<double>(matrices()); }

 private:
  Index candidate() const { return 4 * hidden_ * hidden_; }  // where U begins
  Index matrices() const { return 6 * hidden_ * hidden_; }
  Payload reset_of(const Payload& input, const Payload& zr) const {
    Payload reset = input;
    for (Index k = 0; k < hidden_; ++k) reset[k] *= zr[hidden_ + k];
    return reset;
  }

  Index hidden_;
};

}  // namespace

std::unique_ptr<Layer> make_linear(int inputs, int outputs, bool tanh) {
  return std::make_unique<Linear>(inputs, outputs, tanh);
}
std::unique_ptr<Layer> make_embedding(int tokens, int size) { return std::make_unique<Embedding>(tokens, size); }
std::unique_ptr<Layer> make_tree_leaf(int inputs, int hidden) { return std::make_unique<TreeCell>(inputs, hidden, 0); }
std::unique_ptr<Layer> make_tree_cell(int hidden) { return std::make_unique<TreeCell>(0, hidden, 2); }

std::unique_ptr<Layer> make_gru(int hidden) { return std::make_unique<Gru>(hidden); }

}  // namespace trireme::dataflow
