#include <ATen/ops/arange.h>

#include "tests/gpu/support.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/attention_cuda.h"
#include "trireme/kernels/autotune.h"

namespace trireme::gpu {
namespace {

using kernels::Attention;
using kernels::AttentionKernel;

struct Case {
  const char* name;
  std::int64_t batch, queries, keys, heads, key_heads, size;
  bool causal = true;
  std::int64_t window = 0;
  bool documents = false;
  double dropout = 0;
  std::int64_t query_position = 0;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"causal", 2, 128, 128, 4, 4, 64},
      {"odd length", 3, 77, 77, 2, 2, 64},
      {"plain", 2, 96, 96, 4, 4, 64, false},
      {"cross", 2, 33, 80, 4, 4, 64, false},
      {"grouped", 2, 160, 160, 8, 2, 128},
      {"one head of keys", 1, 64, 64, 4, 1, 64},
      {"window", 2, 200, 200, 4, 2, 64, true, 50},
      {"window both ways", 2, 200, 200, 4, 4, 64, false, 33},
      {"documents", 3, 128, 128, 4, 4, 64, true, 0, true},
      {"documents, grouped", 2, 150, 150, 4, 2, 128, true, 0, true},
      {"documents, both ways", 2, 150, 150, 4, 2, 64, false, 0, true},
      {"documents, window", 2, 150, 150, 4, 2, 64, true, 20, true},
      {"dropout", 2, 100, 100, 4, 2, 64, true, 0, false, 0.2},
      {"later queries", 2, 17, 60, 4, 2, 64, true, 0, false, 0, 43},
      {"small heads", 2, 70, 70, 2, 2, 12},
      {"one row", 2, 1, 1, 2, 2, 64},
  };
  return all;
}

TEST(GpuAttention, EqualsTheCpu) {
  for_every_type([](const Near& near) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(c.name);
      const auto sums = sums_type(near.type);
      // Views of one projection, as layers have them, where lengths agree.
      const Pair q = normal_pair({c.batch, c.queries, c.heads, c.size}, near.type, "q");
      const Pair kv = normal_pair({c.batch, c.keys, 2 * c.key_heads, c.size}, near.type, "kv");
      const Pair dout = normal_pair({c.batch, c.queries, c.heads, c.size}, near.type, "dout");
      const at::Tensor documents =
          at::arange(c.batch * c.queries, at::kInt).div(41, "floor").to(at::kInt).view({c.batch, c.queries});
      const at::Tensor samples = at::arange(c.batch, at::kLong).mul(1000003);
      const Pair document{documents, documents.to(gpu())}, sample{samples, samples.to(gpu())};
      Pair out = empty_pair(q.cpu.sizes(), near.type), lse = empty_pair({c.batch, c.heads, c.queries}, sums);
      Pair dq = empty_pair(q.cpu.sizes(), near.type), dkv = empty_pair(kv.cpu.sizes(), near.type);
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        const kernels::AttentionDropout dropout{
            .stream = Random(3, "attention"), .p = c.dropout, .samples = &(sample.*side), .first_head = 2};
        Attention options{.scale = 0.125,
                          .causal = c.causal,
                          .window = c.window,
                          .query_position = c.query_position,
                          .dropout = &dropout};
        if (c.documents) options.query_documents = options.key_documents = &(document.*side);
        const at::Tensor k = (kv.*side).narrow(2, 0, c.key_heads), v = (kv.*side).narrow(2, c.key_heads, c.key_heads);
        at::Tensor dk = (dkv.*side).narrow(2, 0, c.key_heads), dv = (dkv.*side).narrow(2, c.key_heads, c.key_heads);
        const auto result = kernels::attention_forward(q.*side, k, v, options);
        out.*side = result.out;
        lse.*side = result.lse;
        ASSERT_EQ(result.out.sizes(), (q.*side).sizes());
        kernels::attention_backward(dq.*side, dk, dv, dout.*side, q.*side, k, v, result.out, result.lse, options);
      }
      // Flash kernels round probabilities to the type of the inputs, so narrow types are a few roundings away.
      const double slack = near.type == at::kBFloat16 || near.type == at::kHalf ? 6 : 2;
      expect_near(out, near, "out", slack);
      expect_near(lse, near.type == at::kDouble ? near : types()[1], "lse", 4);
      expect_near(dq, near, "dq", slack);
      expect_near(dkv, near, "dkv", slack);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(GpuAttention, TakesTheFastKernelThatItCan) {
  const auto of = [](at::ScalarType type, std::int64_t size, const Attention& options) {
    const at::Tensor q = at::empty({2, 64, 4, size}, at::TensorOptions(type).device(gpu()));
    return kernels::attention_kernel(q, q, options);
  };
  const at::Tensor documents = at::zeros({2, 64}, at::kInt).to(gpu());
  EXPECT_EQ(of(at::kBFloat16, 64, {.causal = true}), AttentionKernel::kCudnn);
  EXPECT_EQ(of(at::kHalf, 128, {.causal = false}), AttentionKernel::kCudnn);
  EXPECT_EQ(of(at::kBFloat16, 64, {.causal = true, .window = 64}), AttentionKernel::kCudnn);
  EXPECT_EQ(of(at::kBFloat16, 64, {.causal = true, .window = 16}), AttentionKernel::kFlash);
  EXPECT_EQ(of(at::kBFloat16, 256, {.causal = true}), AttentionKernel::kFlash);
  EXPECT_EQ(of(at::kBFloat16, 64, {.causal = true, .query_documents = &documents, .key_documents = &documents}),
            AttentionKernel::kFlash);
  EXPECT_EQ(of(at::kFloat, 64, {.causal = true}), AttentionKernel::kPlain);
  const at::Tensor one = at::empty({2, 1, 4, 64}, at::TensorOptions(at::kBFloat16).device(gpu()));
  EXPECT_EQ(kernels::attention_kernel(one, one, {}), AttentionKernel::kPlain);
  EXPECT_EQ(of(at::kBFloat16, 64, {.causal = true, .query_position = 8}), AttentionKernel::kPlain);
}

/// Where two kernels can, the faster one is found by timing both, for each pass, and remembered.
TEST(GpuAttention, RemembersWhichKernelIsFaster) {
  const at::Tensor q = normal_tensor({2, 320, 4, 64}, at::kFloat, "q").to(at::kBFloat16).to(gpu());
  const Attention options{.scale = 0.125, .causal = true};
  const auto result = kernels::attention_forward(q, q, q, options);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(q), dv = at::empty_like(q);
  kernels::attention_backward(dq, dk, dv, q, q, q, q, result.out, result.lse, options);
  const std::string chosen = kernels::tuning_cache_text();
  EXPECT_THAT(chosen, testing::HasSubstr("attention forward BFloat16 batch 2 queries 320 keys 320"));
  EXPECT_THAT(chosen, testing::HasSubstr("attention backward BFloat16 batch 2 queries 320 keys 320"));
  const auto again = kernels::attention_forward(q, q, q, options);
  EXPECT_TRUE(same_bits(again.out.cpu(), result.out.cpu()));
  EXPECT_EQ(kernels::tuning_cache_text(), chosen);
}

/// In a fixed order the gradients have the same bits every time, and are those of the usual kernel to its roundings.
TEST(GpuAttention, AFixedOrderGivesTheSameBits) {
  const auto options = at::TensorOptions(at::kBFloat16).device(gpu());
  for (const std::int64_t num_kv_heads : {8, 2}) {
    const at::Tensor q = normal_tensor({2, 1024, 8, 64}, at::kFloat, "q").to(options),
                     k = normal_tensor({2, 1024, num_kv_heads, 64}, at::kFloat, "k").to(options),
                     v = normal_tensor({2, 1024, num_kv_heads, 64}, at::kFloat, "v").to(options),
                     dout = normal_tensor({2, 1024, 8, 64}, at::kFloat, "dout").to(options);
    kernels::Attention attention{.scale = 0.125, .causal = true};
    const auto [out, lse] = kernels::attention_forward(q, k, v, attention);
    const auto gradients = [&](bool deterministic) {
      attention.deterministic = deterministic;
      at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
      kernels::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, attention);
      return std::array{dq.cpu(), dk.cpu(), dv.cpu()};
    };
    const auto usual = gradients(false), first = gradients(true);
    for (int turn = 0; turn < 4; ++turn) {
      const auto again = gradients(true);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(again[i], first[i])) << i;
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor exact = usual[i].to(at::kDouble);
      const double error = (first[i].to(at::kDouble) - exact).norm().item<double>() / exact.norm().item<double>();
      EXPECT_LT(error, 0.01) << i;
    }
  }
}

TEST(GpuAttention, MergesAsTheCpuDoes) {
  for_every_type([](const Near& near) {
    const std::vector<std::int64_t> shape{2, 9, 3, 16};
    Pair out = normal_pair(shape, near.type, "out"), other = normal_pair(shape, near.type, "other");
    Pair lse = normal_pair({2, 3, 9}, sums_type(near.type), "lse");
    const Pair other_lse = normal_pair({2, 3, 9}, sums_type(near.type), "other lse");
    for (const auto side : {&Pair::cpu, &Pair::gpu}) {
      (lse.*side)[0][0][0] = -INFINITY;
      (other_lse.*side)[0][0][0] = -INFINITY;
      (lse.*side)[0][1][0] = -INFINITY;
      (out.*side)[0][0][0].zero_();
      kernels::attention_merge(out.*side, lse.*side, other.*side, other_lse.*side);
    }
    const at::Tensor seen = lse.cpu.isfinite();
    EXPECT_TRUE(same_bits(lse.gpu.cpu().isfinite(), seen));
    kernels::expect_near(lse.gpu.cpu().nan_to_num(0, 0, 0), lse.cpu.nan_to_num(0, 0, 0),
                         near.type == at::kDouble ? 1e-12 : 1e-5, 1e-6, "lse");
    out.cpu[0][0][0].zero_(), out.gpu[0][0][0].zero_();
    expect_near(out, near, "out", 2);
  });
}

}  // namespace
}  // namespace trireme::gpu
