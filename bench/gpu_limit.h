// bench/gpu_limit.h -- what a step cannot be faster than: its GEMMs, attention's kernels, and the bytes of the rest.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include "bench/gpu_measure.h"
#include "bench/gpu_sides.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/gemm.h"

namespace trireme::bench {

/// Seconds of one of the step's GEMMs by everything that is known to run it; `best` is the least of all turns of all.
struct GemmBound {
  kernels::Gemm call;
  std::int64_t count;         ///< in a step
  double ours = 0, aten = 0;  ///< the best turn of each; 0: it cannot run this one

  double flops() const {
    const auto& a = call.a.values;
    const std::int64_t inner = call.transpose_a ? a.size(0) : a.size(1);
    return 2.0 * static_cast<double>(call.out.numel() * inner);
  }
  double best() const { return aten > 0 ? std::min(ours, aten) : ours; }
};

/// What bounds a step from below. GEMMs count at the best rate that any known kernel reaches for their shape, alone and
/// again and again: ours as autotuned and ATen's, so that our kernels are no bound for themselves.
class Limit {
 public:
  Limit(const Size& s, at::ScalarType gradients) : size_(s) {
    const at::TensorOptions of_gradients = f32().dtype(gradients);
    const std::int64_t rows = s.batch * s.seq_len, head = s.hidden_size / s.num_heads;
    const std::int64_t qkv = (s.num_heads + 2 * s.num_kv_heads) * head,
                       in = s.family == "gpt2" ? s.ffn_size : 2 * s.ffn_size;
    const auto normal = [](std::int64_t m, std::int64_t n) { return at::randn({m, n}, bf16()).mul_(0.1); };
    const auto add = [&](std::int64_t m, std::int64_t from, std::int64_t to, std::int64_t count) {
      const at::Tensor x = normal(m, from), dy = normal(m, to), w = normal(to, from);
      gemms_.push_back({{.a = x, .b = w, .transpose_b = true, .out = at::empty({m, to}, bf16())}, count});
      gemms_.push_back({{.a = dy, .b = w, .out = at::empty({m, from}, bf16())}, count});
      gemms_.push_back({{.a = dy, .b = x, .transpose_a = true, .out = at::empty({to, from}, of_gradients)}, count});
    };
    add(rows, s.hidden_size, qkv, s.num_layers);
    add(rows, s.hidden_size, s.hidden_size, s.num_layers);
    add(rows, s.hidden_size, in, s.num_layers);
    add(rows, s.ffn_size, s.hidden_size, s.num_layers);
    const std::int64_t chunk = std::min<std::int64_t>(rows, (std::int64_t{1} << 30) / (2 * s.vocab_size));
    add(chunk, s.hidden_size, s.vocab_size, rows / chunk);
    if (rows % chunk > 0) add(rows % chunk, s.hidden_size, s.vocab_size, 1);
    q_ = at::randn({s.batch, s.seq_len, s.num_heads, head}, bf16());
    kv_ = at::randn({s.batch, s.seq_len, 2 * s.num_kv_heads, head}, bf16());
  }

  /// Every GEMM timed in a few more turns; the best turn so far counts.
  void time_gemms() {
    const auto keep = [](double& best, double seconds) { best = best > 0 ? std::min(best, seconds) : seconds; };
    for (GemmBound& one : gemms_) {
      keep(one.ours, graph_times([&] { kernels::gemm(one.call); }).least());
      const at::Tensor& a = one.call.a.values;
      const at::Tensor& b = one.call.b.values;
      if (one.call.out.scalar_type() != a.scalar_type()) continue;  // ATen gives back what it is given
      const at::Tensor left = one.call.transpose_a ? a.t() : a, right = one.call.transpose_b ? b.t() : b;
      at::Tensor out = one.call.out;
      keep(one.aten, graph_times([&] { at::mm_out(out, left, right); }).least());
    }
  }
  double gemm_seconds() const {
    double total = 0;
    for (const GemmBound& one : gemms_) total += static_cast<double>(one.count) * one.best();
    return total;
  }
  /// FLOP/s over all of them.
  double gemm_rate() const {
    double flops = 0;
    for (const GemmBound& one : gemms_) flops += static_cast<double>(one.count) * one.flops();
    return flops / gemm_seconds();
  }
  const std::vector<GemmBound>& gemms() const { return gemms_; }

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
  double bytes(std::int64_t parameters, bool bf16_states, bool bf16_gradients) const {
    const double tokens = static_cast<double>(size_.batch * size_.seq_len), w = static_cast<double>(size_.hidden_size);
    const double inner = static_cast<double>(size_.ffn_size) * (size_.family == "gpt2" ? 5 : 8);
    const double per_layer = tokens * 2 * (2 * 7 * w + inner);
    return static_cast<double>(size_.num_layers) * per_layer + tokens * 4 * static_cast<double>(size_.vocab_size) +
           (bf16_states      ? 18.0
            : bf16_gradients ? 30.0
                             : 34.0) *
               static_cast<double>(parameters);
  }

 private:
  Size size_;
  std::vector<GemmBound> gemms_;
  at::Tensor q_, kv_;
};

}  // namespace trireme::bench
