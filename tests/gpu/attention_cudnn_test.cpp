// Attention by cuDNN's own graphs: straight into the caller's views, beside the CPU in double and beside ATen's way.
#include <string_view>
#include <thread>

#include "tests/gpu/support.h"
#include "trireme/device/stream.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/attention_cudnn.h"
#include "trireme/kernels/autotune.h"
#include "trireme/kernels/cuda.h"

namespace trireme::gpu {
namespace {

using kernels::Attention;
using kernels::AttentionResult;

struct CudnnCase {
  const char* name;
  std::int64_t batch, queries, keys, heads, key_heads, size;
  bool causal = true;
};
const std::vector<CudnnCase>& cudnn_cases() {
  static const std::vector<CudnnCase> all = {
      {"causal, 64", 2, 256, 256, 4, 4, 64},
      {"causal, 128", 2, 256, 256, 4, 4, 128},
      {"both ways", 2, 192, 192, 4, 4, 64, false},
      {"grouped, 64", 2, 256, 256, 8, 2, 64},
      {"grouped, 128", 1, 200, 200, 8, 2, 128},
      {"one head of keys", 2, 130, 130, 4, 1, 64},
      {"odd length", 3, 77, 77, 3, 3, 64},
      {"odd length, 128", 2, 333, 333, 2, 2, 128},
      {"odd, both ways", 2, 101, 101, 2, 2, 64, false},
      {"cross", 2, 33, 80, 4, 4, 64, false},
      {"cross, grouped", 2, 130, 57, 4, 2, 128, false},
      {"one sequence, one head", 1, 128, 128, 1, 1, 64},
      {"size 40", 2, 96, 96, 2, 2, 40},
  };
  return all;
}

/// Keys' heads and values' behind queries' in one row, as a projection leaves them, and a head that nobody may touch.
struct Rows {
  at::Tensor q, k, v;
};
Rows parts(const at::Tensor& wide, const CudnnCase& c) {
  // Queries and keys of different lengths begin in the same rows.
  return {wide.narrow(1, 0, c.queries).narrow(2, 0, c.heads), wide.narrow(1, 0, c.keys).narrow(2, c.heads, c.key_heads),
          wide.narrow(1, 0, c.keys).narrow(2, c.heads + c.key_heads, c.key_heads)};
}
std::vector<std::int64_t> wide_shape(const CudnnCase& c) {
  return {c.batch, std::max(c.queries, c.keys), c.heads + 2 * c.key_heads + 1, c.size};
}

class GpuCudnn : public testing::Test {
 protected:
  void SetUp() override {
    gpu();
    const device::CudaError why = kernels::cuda().cudnn_ready();
    // Left out on purpose is one thing; a library that does not load is a failure.
    if (why != nullptr && std::string_view(why).find("built without") != std::string_view::npos) GTEST_SKIP() << why;
    ASSERT_EQ(why, nullptr) << why;
    kernels::set_gemm_autotune(false);  // cuDNN, though the flash kernel may be faster
  }
  void TearDown() override {
    kernels::set_direct_cudnn(true);
    kernels::set_gemm_autotune(true);
  }
};

/// The three beside the CPU's, and all around them as it was.
void expect_gradients(const Pair& dqkv, const CudnnCase& c, const Near& near) {
  const Rows cpu = parts(dqkv.cpu, c), other = parts(dqkv.gpu, c);
  expect_near({cpu.q, other.q}, near, "dq", 6);
  expect_near({cpu.k, other.k}, near, "dk", 6);
  expect_near({cpu.v, other.v}, near, "dv", 6);
  const at::Tensor untouched = dqkv.cpu == -77;
  EXPECT_TRUE(untouched.any().item<bool>());
  EXPECT_TRUE((dqkv.gpu.cpu().masked_select(untouched) == -77).all().item<bool>());
}

TEST_F(GpuCudnn, WritesIntoViewsOfOneFusedGradient) {
  for (const Near& near : {types()[2], types()[3]}) {
    for (const CudnnCase& c : cudnn_cases()) {
      SCOPED_TRACE(testing::Message() << c.name << " " << c10::toString(near.type));
      const Pair qkv = normal_pair(wide_shape(c), near.type, "qkv");
      const Pair dout = normal_pair({c.batch, c.queries, c.heads, c.size}, near.type, "dout");
      Pair dqkv = empty_pair(wide_shape(c), near.type);
      dqkv.cpu.fill_(-77);
      Pair out, lse;
      const Attention options{.scale = 0.125, .causal = c.causal};
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        const Rows from = parts(qkv.*side, c);
        Rows to = parts(dqkv.*side, c);
        const AttentionResult result = kernels::attention_forward(from.q, from.k, from.v, options);
        out.*side = result.out, lse.*side = result.lse;
        if (side == &Pair::gpu) {  // the direct way, or the test says so
          ASSERT_TRUE(kernels::cudnn_backward_into({to.q, to.k, to.v}, dout.gpu, from.q, from.k, from.v, result.out,
                                                   result.lse, options, /*fixed=*/false));
        } else {
          kernels::attention_backward(to.q, to.k, to.v, dout.cpu, from.q, from.k, from.v, result.out, result.lse,
                                      options);
        }
      }
      expect_near(out, near, "out", 6);
      expect_near(lse, types()[1], "lse", 4);
      expect_gradients(dqkv, c, near);
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// How far apart two are, by their norms.
double apart(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = b.to(at::kDouble);
  return (a.to(at::kDouble) - exact).norm().item<double>() / exact.norm().item<double>();
}

/// A shape as in training, and what backward is given.
struct Trained {
  CudnnCase c{"trained", 4, 1024, 1024, 12, 12, 64};
  Attention options{.scale = 0.125, .causal = true};
  at::Tensor qkv, dout;
  AttentionResult result;

  explicit Trained(std::int64_t key_heads = 12) {
    c.key_heads = key_heads;
    qkv = normal_tensor(wide_shape(c), at::kFloat, "qkv").to(at::kBFloat16).to(gpu());
    dout = normal_tensor({c.batch, c.queries, c.heads, c.size}, at::kFloat, "dout").to(at::kBFloat16).to(gpu());
    forward();
  }
  void forward() {
    const Rows from = parts(qkv, c);
    result = kernels::attention_forward(from.q, from.k, from.v, options);
  }
  at::Tensor gradient(bool fixed) const {
    at::Tensor dqkv = at::zeros(wide_shape(c), qkv.options());
    backward(dqkv, fixed);
    return dqkv;
  }
  void backward(at::Tensor& dqkv, bool fixed) const {
    const Rows from = parts(qkv, c);
    Rows to = parts(dqkv, c);
    EXPECT_TRUE(kernels::cudnn_backward_into({to.q, to.k, to.v}, dout, from.q, from.k, from.v, result.out, result.lse,
                                             options, fixed));
  }
};

TEST_F(GpuCudnn, AgreesWithAtensWay) {
  for (const std::int64_t key_heads : {12, 4}) {
    Trained direct(key_heads);
    const at::Tensor dqkv = direct.gradient(/*fixed=*/false);
    kernels::set_direct_cudnn(false);
    Trained through(key_heads);
    at::Tensor expected = at::zeros(dqkv.sizes(), dqkv.options());
    const Rows from = parts(through.qkv, through.c);
    Rows to = parts(expected, through.c);
    kernels::attention_backward(to.q, to.k, to.v, through.dout, from.q, from.k, from.v, through.result.out,
                                through.result.lse, through.options);
    kernels::set_direct_cudnn(true);
    EXPECT_LT(apart(direct.result.out, through.result.out), 0.005);
    EXPECT_LT(apart(direct.result.lse, through.result.lse), 1e-5);
    EXPECT_LT(apart(parts(dqkv, direct.c).q, to.q), 0.005);
    EXPECT_LT(apart(parts(dqkv, direct.c).k, to.k), 0.005);
    EXPECT_LT(apart(parts(dqkv, direct.c).v, to.v), 0.005);
  }
}

TEST_F(GpuCudnn, AFixedOrderGivesTheSameBits) {
  for (const std::int64_t key_heads : {12, 4}) {
    SCOPED_TRACE(key_heads);
    const Trained trained(key_heads);
    const at::Tensor usual = trained.gradient(/*fixed=*/false), first = trained.gradient(/*fixed=*/true);
    for (int turn = 0; turn < 5; ++turn) {
      EXPECT_TRUE(same_bits(trained.gradient(/*fixed=*/true).cpu(), first.cpu())) << turn;
    }
    EXPECT_LT(apart(first, usual), 0.005);
  }
}

TEST_F(GpuCudnn, IsCapturedAndReplayedTheSame) {
  for (const bool fixed : {true, false}) {
    SCOPED_TRACE(fixed);
    Trained trained;
    at::Tensor dqkv = trained.gradient(fixed);  // plans are made before anything is captured
    const at::Tensor out = trained.result.out.clone(), expected = dqkv.clone();
    device::CudaGraph graph([&] {
      trained.forward();
      trained.backward(dqkv, fixed);
    });
    for (int turn = 0; turn < 3; ++turn) {
      dqkv.zero_();
      graph.replay();
      EXPECT_TRUE(same_bits(trained.result.out.cpu(), out.cpu()));
      // In no fixed order sums differ in their last bits.
      EXPECT_TRUE(fixed ? same_bits(dqkv.cpu(), expected.cpu()) : apart(dqkv, expected) < 1e-3);
    }
    // It reads what the tensors hold when it is replayed.
    trained.qkv.mul_(0.5);
    graph.replay();
    const at::Tensor replayed = dqkv.clone();
    trained.forward();
    EXPECT_LT(apart(replayed, trained.gradient(fixed)), 1e-3);
    EXPECT_GT(apart(replayed, expected), 0.1);
  }
}

/// A shape that a capture is the first to meet.
TEST_F(GpuCudnn, APlanMayBeMadeWhileAStepIsCaptured) {
  Trained trained;
  trained.options.scale = 0.0625;
  at::Tensor dqkv = at::zeros(wide_shape(trained.c), trained.qkv.options());
  device::CudaGraph graph([&] {
    trained.forward();
    trained.backward(dqkv, /*fixed=*/false);
  });
  graph.replay();
  const at::Tensor replayed = dqkv.clone();
  trained.forward();
  EXPECT_LT(apart(replayed, trained.gradient(/*fixed=*/false)), 1e-3);
}

TEST_F(GpuCudnn, WritesTheOutputWhereItIsWanted) {
  Trained trained;
  const CudnnCase& c = trained.c;
  const Rows from = parts(trained.qkv, c);
  at::Tensor wide = at::full({c.batch, c.queries, c.heads + 2, c.size}, -77, trained.qkv.options());
  at::Tensor out = wide.narrow(2, 1, c.heads), lse = at::empty_like(trained.result.lse);
  kernels::attention_forward(out, lse, from.q, from.k, from.v, trained.options);
  EXPECT_TRUE(same_bits(out.contiguous().cpu(), trained.result.out.contiguous().cpu()));
  EXPECT_TRUE(same_bits(lse.cpu(), trained.result.lse.cpu()));
  EXPECT_TRUE((wide.select(2, 0) == -77).all().item<bool>());
  EXPECT_TRUE((wide.select(2, c.heads + 1) == -77).all().item<bool>());
}

TEST_F(GpuCudnn, TakesTensorsThatBeginAtOddAddresses) {
  const CudnnCase c{"odd", 2, 96, 96, 2, 2, 64};
  const Near near = types()[2];
  const Pair qkv = normal_pair(wide_shape(c), near.type, "qkv"),
             dout = normal_pair({c.batch, c.queries, c.heads, c.size}, near.type, "dout");
  const auto shifted = [](const at::Tensor& x) {
    at::Tensor room = at::empty({x.numel() + 1}, x.options());
    at::Tensor view = room.narrow(0, 1, x.numel()).view(x.sizes());
    view.copy_(x);
    return view;
  };
  Pair out, dqkv = empty_pair(wide_shape(c), near.type);
  dqkv.cpu.fill_(-77);
  dqkv.gpu = shifted(dqkv.gpu);
  const Attention options{.scale = 0.125, .causal = true};
  for (const auto side : {&Pair::cpu, &Pair::gpu}) {
    const bool on_gpu = side == &Pair::gpu;
    const Rows from = parts(on_gpu ? shifted(qkv.gpu) : qkv.cpu, c);
    Rows to = parts(dqkv.*side, c);
    const AttentionResult result = kernels::attention_forward(from.q, from.k, from.v, options);
    out.*side = result.out;
    kernels::attention_backward(to.q, to.k, to.v, on_gpu ? shifted(dout.gpu) : dout.cpu, from.q, from.k, from.v,
                                result.out, result.lse, options);
  }
  expect_near(out, near, "out", 6);
  expect_gradients(dqkv, c, near);
}

/// Ranks that are threads share the GPU.
TEST_F(GpuCudnn, ThreadsDoNotDisturbEachOther) {
  const Trained trained;
  const at::Tensor expected = trained.gradient(/*fixed=*/true).cpu();
  std::array<int, 4> right{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < right.size(); ++i) {
    threads.emplace_back([&, i] {
      gpu();
      for (int turn = 0; turn < 4; ++turn) {
        if (same_bits(trained.gradient(/*fixed=*/true).cpu(), expected)) ++right[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : right) EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace trireme::gpu
