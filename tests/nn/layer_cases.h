// tests/nn/layer_cases.h -- layers beside the same mathematics in differentiable ATen operators.
//
// A case is declared once: the tests compare values and gradients with it, the benchmark times it. To add a layer to
// both, add a case to layer_cases.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"

namespace trireme::nn {

using NamedWeights = std::map<std::string, at::Tensor>;  // parameters by name

struct LayerCase {
  std::string name;
  std::vector<std::vector<std::int64_t>> inputs;  ///< shapes; [batch, sequence, ...]
  std::function<std::unique_ptr<Layer>(Params&)> build;
  /// The first output by differentiable operators, in whatever type it is given.
  std::function<at::Tensor(const Tensors& inputs, const NamedWeights& weights, const Context& context)> oracle;
  /// Anything the context needs beyond plain sequences.
  std::function<void(Context&)> prepare = nullptr;
};

/// Sizes: small and awkward for tests, or those of a real layer for benchmarks.
struct CaseSizes {
  std::int64_t batch = 2, sequence = 13, hidden_size = 24, num_heads = 4, num_kv_heads = 2, head_dim = 6, ffn_size = 40;
};
std::vector<LayerCase> layer_cases(const CaseSizes& sizes);

/// Weights with numbers that differ from each other and from 0 and 1: norms' weights and biases too.
void fill_weights(Params& params, Precision precision);
Tensors case_inputs(const LayerCase& layer_case, at::ScalarType type);
Context case_context(const LayerCase& layer_case);

/// softmax(scale q k^T + mask) v with whole matrices; q [b, s, h, d], k [b, t, g, d], v [b, t, g, any].
struct DenseMask {
  bool causal = true;
  std::int64_t window = 0;
  at::Tensor query_documents, key_documents;
  std::optional<double> scale = {};  ///< unset: 1 / sqrt(d)
};
at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const DenseMask& mask);
/// Llama's rotation, from angles computed here.
at::Tensor dense_rotary(const at::Tensor& x, const at::Tensor& positions, double base);
/// The same on pairs of neighbours, as the paper and DeepSeek have it.
at::Tensor dense_interleaved_rotary(const at::Tensor& x, const at::Tensor& positions, double base);

}  // namespace trireme::nn
