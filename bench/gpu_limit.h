// bench/gpu_limit.h -- what a step cannot be faster than: its GEMMs, attention's kernels, and the bytes of the rest.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "bench/gpu_measure.h"
#include "bench/gpu_sides.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/gemm.h"

namespace trireme::bench {

/// The step's GEMMs, one after the other, each three times: forward and two gradients, by the fastest plans.
class Limit {
 public:
  Limit(const Size& s, at::ScalarType gradients) : size_(s) {
    const at::TensorOptions of_gradients = f32().dtype(gradients);
    const std::int64_t rows = s.batch * s.seq_len, head = s.hidden_size / s.num_heads;
    const std::int64_t qkv = (s.num_heads + 2 * s.num_kv_heads) * head,
                       in = s.family == "gpt2" ? s.ffn_size : 2 * s.ffn_size;
    for (std::int64_t layer = 0; layer < s.num_layers; ++layer) {
      shapes_.insert(
          shapes_.end(),
          {{s.hidden_size, qkv}, {s.hidden_size, s.hidden_size}, {s.hidden_size, in}, {s.ffn_size, s.hidden_size}});
    }
    std::int64_t widest = 0;
    for (const auto& [from, to] : shapes_) widest = std::max({widest, from, to});
    x_ = at::randn({rows, widest}, bf16()).mul_(0.1), w_ = at::randn({widest * 4096}, bf16()).mul_(0.1);
    y_ = at::empty({rows * widest}, bf16()), dw_ = at::empty({widest * 4096}, of_gradients);
    chunk_ = std::min<std::int64_t>(rows, (std::int64_t{1} << 30) / (2 * s.vocab_size));
    logits_ = at::randn({chunk_, s.vocab_size}, bf16()).mul_(0.1),
    head_ = at::randn({s.vocab_size, s.hidden_size}, bf16());
    dhead_ = at::zeros({s.vocab_size, s.hidden_size}, of_gradients);
    q_ = at::randn({s.batch, s.seq_len, s.num_heads, head}, bf16());
    kv_ = at::randn({s.batch, s.seq_len, 2 * s.num_kv_heads, head}, bf16());
  }
  void gemms() {
    const std::int64_t rows = x_.size(0);
    for (const auto& [from, to] : shapes_) {
      const at::Tensor x = x_.flatten().narrow(0, 0, rows * from).view({rows, from});
      const at::Tensor w = w_.narrow(0, 0, from * to).view({to, from});
      at::Tensor y = y_.narrow(0, 0, rows * to).view({rows, to}), dw = dw_.narrow(0, 0, from * to).view({to, from});
      kernels::gemm({.a = x, .b = w, .transpose_b = true, .out = y});
      at::Tensor dx = y_.narrow(0, 0, rows * from).view({rows, from});
      const at::Tensor dy = x_.flatten().narrow(0, 0, rows * to).view({rows, to});
      kernels::gemm({.a = dy, .b = w, .out = dx});
      kernels::gemm({.a = dy, .b = x, .transpose_a = true, .out = dw});
    }
    for (std::int64_t first = 0; first < rows; first += chunk_) {
      const std::int64_t count = std::min(chunk_, rows - first);
      const at::Tensor x = x_.flatten().narrow(0, 0, count * size_.hidden_size).view({count, size_.hidden_size});
      at::Tensor logits = logits_.narrow(0, 0, count),
                 dx = y_.narrow(0, 0, count * size_.hidden_size).view({count, size_.hidden_size});
      kernels::gemm({.a = x, .b = head_, .transpose_b = true, .out = logits});
      kernels::gemm({.a = logits, .b = head_, .out = dx});
      kernels::gemm({.a = logits, .b = x, .transpose_a = true, .out = dhead_});
    }
  }
  void attention() {
    const kernels::Attention options{.scale = 0.125, .causal = true};
    const at::Tensor k = kv_.narrow(2, 0, size_.num_kv_heads),
                     v = kv_.narrow(2, size_.num_kv_heads, size_.num_kv_heads);
    at::Tensor dq = at::empty_like(q_), dk = at::empty_like(k), dv = at::empty_like(v);
    for (std::int64_t layer = 0; layer < size_.num_layers; ++layer) {
      const auto [out, lse] = kernels::attention_forward(q_, k, v, options);
      kernels::attention_backward(dq, dk, dv, q_, q_, k, v, out, lse, options);
    }
  }
  /// What has to move besides: norms' and activations' tensors once each way, residuals that GEMMs add to, logits,
  /// and the optimizer's streams.
  double bytes(std::int64_t parameters, bool narrow, bool narrow_gradients) const {
    const double tokens = static_cast<double>(size_.batch * size_.seq_len), w = static_cast<double>(size_.hidden_size);
    const double inner = static_cast<double>(size_.ffn_size) * (size_.family == "gpt2" ? 5 : 8);
    const double per_layer = tokens * 2 * (2 * 7 * w + inner);
    return static_cast<double>(size_.num_layers) * per_layer + tokens * 4 * static_cast<double>(size_.vocab_size) +
           (narrow             ? 18.0
            : narrow_gradients ? 30.0
                               : 34.0) *
               static_cast<double>(parameters);
  }

 private:
  Size size_;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes_;
  std::int64_t chunk_ = 0;
  at::Tensor x_, w_, y_, dw_, logits_, head_, dhead_, q_, kv_;
};

}  // namespace trireme::bench
