// What cuDNN is told of attention, and what a plan depends on: looked at without a GPU.
#include "trireme/kernels/attention_cudnn.h"

#include <ATen/ops/empty.h>

#include <set>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

/// Queries, keys and values of one projection, and their gradients likewise.
struct Fused {
  at::Tensor wide, dwide, q, k, v, dq, dk, dv, out, dout, lse;

  Fused(std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t key_heads, std::int64_t size,
        at::ScalarType type = at::kBFloat16, std::int64_t more = 0) {
    const std::int64_t all = heads + 2 * key_heads;
    wide = at::empty({batch, rows, all + more, size}, type), dwide = at::empty_like(wide);
    cut(wide, heads, key_heads, q, k, v);
    cut(dwide, heads, key_heads, dq, dk, dv);
    out = at::empty({batch, rows, heads, size}, type), dout = at::empty_like(out);
    lse = at::empty({batch, heads, rows}, at::kFloat);
  }
  CudnnCall forward(const Attention& options = {}) const { return cudnn_forward_call({out, lse}, q, k, v, options); }
  CudnnCall backward(const Attention& options = {}, bool fixed = false) {
    return cudnn_backward_call({dq, dk, dv}, dout, q, k, v, out, lse, options, fixed);
  }

 private:
  static void cut(const at::Tensor& x, std::int64_t heads, std::int64_t key_heads, at::Tensor& a, at::Tensor& b,
                  at::Tensor& c) {
    a = x.narrow(2, 0, heads), b = x.narrow(2, heads, key_heads), c = x.narrow(2, heads + key_heads, key_heads);
  }
};

TEST(CudnnCall, TellsWhereGradientsGo) {
  Fused fused(2, 64, 4, 2, 32);
  const CudnnCall call = fused.backward({.scale = 0.5, .causal = true});
  const CudaAttention& c = call.attention;
  EXPECT_EQ(call.pass, CudnnPass::kBackward);
  EXPECT_EQ(c.dq, fused.dwide.data_ptr());
  EXPECT_EQ(c.dk, static_cast<char*>(fused.dwide.data_ptr()) + 4 * 32 * 2);
  EXPECT_EQ(c.dv, static_cast<char*>(fused.dwide.data_ptr()) + 6 * 32 * 2);
  for (const auto* strides : {&c.q_strides, &c.k_strides, &c.v_strides, &c.dq_strides, &c.dk_strides, &c.dv_strides}) {
    EXPECT_EQ((*strides)[0], 64 * 8 * 32);
    EXPECT_EQ((*strides)[1], 8 * 32);
    EXPECT_EQ((*strides)[2], 32);
  }
  EXPECT_EQ(c.out_strides[1], 4 * 32);
  EXPECT_EQ(c.out_read, fused.out.data_ptr());
  EXPECT_EQ(c.scale, 0.5);
  EXPECT_TRUE(c.causal);
  EXPECT_EQ(fused.backward({}, /*fixed=*/true).pass, CudnnPass::kFixedBackward);
  EXPECT_EQ(fused.forward().attention.out, fused.out.data_ptr());
}

TEST(CudnnCall, APlanServesOtherAddresses) {
  Fused one(2, 64, 4, 2, 32), other(2, 64, 4, 2, 32);
  EXPECT_NE(one.q.data_ptr(), other.q.data_ptr());
  EXPECT_EQ(cudnn_key(one.forward(), 0), cudnn_key(other.forward(), 0));
  EXPECT_EQ(cudnn_key(one.backward(), 0), cudnn_key(other.backward(), 0));
}

TEST(CudnnCall, WhateverAPlanDependsOnTellsItFromOthers) {
  std::set<CudnnKey> all;
  const auto add = [&](const CudnnCall& call, int gpu = 0) { all.insert(cudnn_key(call, gpu)); };
  Fused base(2, 64, 4, 2, 32);
  add(base.forward());
  add(base.forward(), /*gpu=*/1);
  add(base.backward());
  add(base.backward({}, /*fixed=*/true));
  add(base.backward({.causal = true}));
  add(base.backward({.scale = 0.5}));
  add(base.backward({.scale = 0.5000000001}));
  add(Fused(3, 64, 4, 2, 32).backward());
  add(Fused(2, 65, 4, 2, 32).backward());
  add(Fused(2, 64, 6, 2, 32).backward());
  add(Fused(2, 64, 4, 4, 32).backward());
  add(Fused(2, 64, 4, 2, 40).backward());
  add(Fused(2, 64, 4, 2, 32, at::kHalf).backward());
  add(Fused(2, 64, 4, 2, 32, at::kBFloat16, /*more=*/1).backward());
  // Each of the tensors by itself with other strides.
  for (at::Tensor Fused::*one :
       {&Fused::q, &Fused::k, &Fused::v, &Fused::out, &Fused::dout, &Fused::dq, &Fused::dk, &Fused::dv}) {
    Fused transposed(2, 64, 4, 2, 32);
    const at::Tensor& x = transposed.*one;
    transposed.*one = at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
    add(transposed.backward());
  }
  EXPECT_EQ(all.size(), 14 + 8);
}

TEST(CudnnCall, AStrideOverOneElementMeansNothing) {
  Fused odd(1, 64, 1, 1, 32), even(1, 64, 1, 1, 32);
  odd.q = odd.wide.as_strided({1, 64, 1, 32}, {7, 3 * 32, 5, 1});
  EXPECT_EQ(cudnn_key(odd.forward(), 0), cudnn_key(even.forward(), 0));
  EXPECT_TRUE(cudnn_aligned(odd.forward()));
}

TEST(CudnnCall, KnowsWhatIsNotAMultipleOfSixteenBytes) {
  Fused fused(2, 64, 4, 2, 32);
  EXPECT_TRUE(cudnn_aligned(fused.forward()));
  EXPECT_TRUE(cudnn_aligned(fused.backward()));
  const at::Tensor room = at::empty({fused.dq.numel() + 1}, at::kBFloat16);
  fused.dq = room.narrow(0, 1, fused.dq.numel()).view(fused.dq.sizes());
  EXPECT_FALSE(cudnn_aligned(fused.backward()));
  Fused rows(2, 64, 4, 2, 32);
  rows.dk = at::empty({2, 64, 2 * 32 + 4}, at::kBFloat16).as_strided({2, 64, 2, 32}, {64 * 68, 68, 32, 1});
  EXPECT_FALSE(cudnn_aligned(rows.backward()));
}

TEST(CudnnCall, NamesItselfForPeople) {
  Fused fused(2, 64, 4, 2, 32);
  EXPECT_EQ(cudnn_text(fused.forward({.causal = true})),
            "attention forward bf16, batch 2, queries 64, keys 64, heads 4/2, size 32, causal");
  EXPECT_EQ(cudnn_text(fused.backward({}, /*fixed=*/true)),
            "attention backward bf16, batch 2, queries 64, keys 64, heads 4/2, size 32, fixed order");
}

}  // namespace
}  // namespace trireme::kernels
