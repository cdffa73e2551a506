// bench/gpu_attention.h -- attention with its gradients in one fused tensor: cuDNN called directly, through ATen with
// the join that its tensors need, and in a fixed order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "trireme/base/text.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/attention_cudnn.h"

namespace trireme::bench {

struct AttentionSize {
  const char* name;
  std::int64_t batch, rows, num_heads, key_heads, size;
};

/// One causal layer. `seconds_of` times a call.
class FusedAttention {
 public:
  FusedAttention(const AttentionSize& s, const at::TensorOptions& type)
      : size_(s),
        qkv_(at::randn({s.batch, s.rows, s.num_heads + 2 * s.key_heads, s.size}, type)),
        dqkv_(at::empty_like(qkv_)),
        dout_(at::randn({s.batch, s.rows, s.num_heads, s.size}, type)) {
    cut(qkv_, q_, k_, v_);
    cut(dqkv_, dq_, dk_, dv_);
    forward();
  }
  void forward() { result_ = kernels::attention_forward(q_, k_, v_, options_); }
  void backward(bool deterministic = false) {
    options_.deterministic = deterministic;
    kernels::attention_backward(dq_, dk_, dv_, dout_, q_, k_, v_, result_.out, result_.lse, options_);
    options_.deterministic = false;
  }
  /// cuDNN's own fixed order; false where it has none.
  bool fixed() {
    return kernels::cudnn_backward_into({dq_, dk_, dv_}, dout_, q_, k_, v_, result_.out, result_.lse, options_,
                                        /*fixed=*/true);
  }
  /// Of the forward pass: two GEMMs, half of which the mask rules out.
  double flops() const {
    return 2.0 * static_cast<double>(size_.batch * size_.num_heads * size_.rows) *
           static_cast<double>(size_.rows * size_.size);
  }

 private:
  void cut(const at::Tensor& x, at::Tensor& a, at::Tensor& b, at::Tensor& c) const {
    a = x.narrow(2, 0, size_.num_heads), b = x.narrow(2, size_.num_heads, size_.key_heads);
    c = x.narrow(2, size_.num_heads + size_.key_heads, size_.key_heads);
  }
  AttentionSize size_;
  kernels::Attention options_{.scale = 0.125, .causal = true};
  at::Tensor qkv_, dqkv_, dout_, q_, k_, v_, dq_, dk_, dv_;
  kernels::AttentionResult result_;
};

inline nlohmann::json print_attention(const at::TensorOptions& type,
                                      const std::function<double(const std::function<void()>&)>& seconds_of) {
  nlohmann::json all;
  TextTable table({{"a causal layer, gradients in one tensor"}, {"us"}, {"TFLOP/s"}, {"of the direct way"}});
  for (const AttentionSize& size : {AttentionSize{"GPT-2 124M, 32x1024", 32, 1024, 12, 12, 64},
                                    AttentionSize{"GPT-2 350M, 32x1024", 32, 1024, 16, 16, 64},
                                    AttentionSize{"GPT-2 1.5B, 16x1024", 16, 1024, 25, 25, 64},
                                    AttentionSize{"Llama 1B, 8x2048", 8, 2048, 32, 8, 64},
                                    AttentionSize{"Llama 8B, 4x2048", 4, 2048, 32, 8, 128}}) {
    FusedAttention layer(size, type);
    double direct = 0;
    const auto add = [&](const char* what, double seconds, double flops) {
      if (direct == 0) direct = seconds;
      table.add({fmt::format("{}: {}", size.name, what), fmt::format("{:.1f}", seconds * 1e6),
                 fmt::format("{:.0f}", flops / seconds / 1e12), fmt::format("{:.3f}x", seconds / direct)});
      all[size.name][what] = {{"flops", flops}, {"seconds", seconds}};
    };
    const double flops = layer.flops();
    add("forward, cuDNN directly", seconds_of([&] { layer.forward(); }), flops);
    kernels::set_direct_cudnn(false);
    add("forward, through ATen", seconds_of([&] { layer.forward(); }), flops);
    kernels::set_direct_cudnn(true);
    direct = 0;
    add("backward, cuDNN directly", seconds_of([&] { layer.backward(); }), 2.5 * flops);
    kernels::set_direct_cudnn(false);
    add("backward, through ATen with the join", seconds_of([&] { layer.backward(); }), 2.5 * flops);
    kernels::set_direct_cudnn(true);
    if (layer.fixed()) {
      add("backward, fixed order, cuDNN directly", seconds_of([&] { layer.fixed(); }), 2.5 * flops);
    }
    add("backward, fixed order, as chosen", seconds_of([&] { layer.backward(/*deterministic=*/true); }), 2.5 * flops);
  }
  fmt::print("{}\n", table.text());
  return all;
}

}  // namespace trireme::bench
