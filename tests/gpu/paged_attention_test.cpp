// Attention over a paged KV cache on a GPU, beside the CPU's in double; GEMMs of few rows beside plain ones.
#include "trireme/kernels/paged_attention.h"

#include <ATen/ATen.h>

#include <numeric>
#include <optional>

#include "tests/gpu/support.h"
#include "trireme/kernels/skinny_gemm.h"

namespace trireme::gpu {
namespace {

using kernels::PagedAttention;
using kernels::PagedSequence;

struct PagedShape {
  std::int64_t heads, kv_heads, head_dim, window;
};

/// Sequences in blocks that lie in no order, with NaN where no key is: what a query does not see must not touch it.
struct PagedCase {
  PagedShape shape;
  std::vector<std::int64_t> lengths, queries;  // of each sequence, its last ones
  std::int64_t extra_blocks = 0;               // of the tables, as a CUDA graph's have
};

void expect_paged(const PagedCase& c, const Near& near) {
  constexpr std::int64_t kBlock = 16;
  std::int64_t blocks = 2, rows = 0, widest = 1;
  for (const std::int64_t length : c.lengths) {
    blocks += (length + kBlock - 1) / kBlock;
    widest = std::max(widest, (length + kBlock - 1) / kBlock);
  }
  for (const std::int64_t count : c.queries) rows += count;
  std::vector<std::int32_t> free(static_cast<std::size_t>(blocks));
  std::iota(free.begin(), free.end(), 0);
  const Random random(3, "blocks");
  for (std::size_t i = free.size(); i-- > 1;) std::swap(free[i], free[random.below(i + 1, i)]);

  const auto& s = c.shape;
  const Pair q = normal_pair({rows, s.heads, s.head_dim}, near.type, "q");
  // All of them are written by the kernel; what was there before is no number.
  const at::Tensor nowhere =
      at::full({blocks, kBlock, s.kv_heads, s.head_dim}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  at::Tensor keys = nowhere.to(near.type).to(gpu()), values = nowhere.to(near.type).to(gpu());
  at::Tensor cpu_keys = nowhere.clone(), cpu_values = nowhere.clone();
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<std::int32_t> flat, of, lengths;
  std::vector<std::int64_t> slots;
  std::vector<PagedSequence> sequences;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < c.lengths.size(); ++i) {
    auto& table = tables.emplace_back();
    for (std::int64_t at = 0; at < c.lengths[i]; ++at) {
      if (at % kBlock == 0) table.push_back(free.back()), free.pop_back();
      slots.push_back(table.back() * kBlock + at % kBlock);
    }
    for (std::int64_t j = 0; j < c.queries[i]; ++j) {
      of.push_back(static_cast<std::int32_t>(i));
      lengths.push_back(static_cast<std::int32_t>(c.lengths[i] - c.queries[i] + j + 1));
    }
  }
  for (std::size_t i = 0; i < tables.size(); ++i) {
    flat.insert(flat.end(), tables[i].begin(), tables[i].end());
    flat.resize((i + 1) * static_cast<std::size_t>(widest + c.extra_blocks), -1);
    sequences.push_back({row, c.queries[i], c.lengths[i] - c.queries[i], tables[i]});
    row += c.queries[i];
  }
  const auto count = static_cast<std::int64_t>(slots.size());
  const Pair k = normal_pair({count, s.kv_heads, s.head_dim}, near.type, "k");
  const Pair v = normal_pair({count, s.kv_heads, s.head_dim}, near.type, "v");
  const at::Tensor slot_numbers = at::empty({count}, at::kLong);
  std::copy(slots.begin(), slots.end(), slot_numbers.mutable_data_ptr<std::int64_t>());
  cpu_keys.view({-1, s.kv_heads, s.head_dim}).index_copy_(0, slot_numbers, k.cpu);
  cpu_values.view({-1, s.kv_heads, s.head_dim}).index_copy_(0, slot_numbers, v.cpu);
  kernels::write_paged(keys, values, k.gpu, v.gpu, slot_numbers.to(gpu()));

  const auto ints = [](const std::vector<std::int32_t>& numbers) {
    at::Tensor here = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kInt);
    std::copy(numbers.begin(), numbers.end(), here.mutable_data_ptr<std::int32_t>());
    return here.to(gpu());
  };
  const kernels::PagedRows places{ints(flat).view({static_cast<std::int64_t>(tables.size()), -1}), ints(of),
                                  ints(lengths)};
  const PagedAttention options{.scale = 1 / std::sqrt(static_cast<double>(s.head_dim)), .window = s.window};
  Pair out = empty_pair({rows, s.heads, s.head_dim}, near.type);
  kernels::paged_attention(out.cpu, q.cpu, cpu_keys, cpu_values, sequences, options);
  kernels::paged_attention(out.gpu, q.gpu, keys, values, places, options);
  // Probabilities are rounded to 16 bits on their way to the tensor cores.
  expect_near(out, near, "out", near.type == at::kBFloat16 || near.type == at::kHalf ? 4 : 2);
}

TEST(GpuPagedAttention, IsTheCpusForAllHeadSizes) {
  for_every_type([&](const Near& near) {
    for (const std::int64_t size : {32, 64, 80, 96, 128, 256, 40}) {
      SCOPED_TRACE(size);
      expect_paged({.shape = {4, 2, size, 0}, .lengths = {1, 15, 16, 17, 33, 200}, .queries = {1, 1, 1, 1, 1, 1}},
                   near);
    }
  });
}

TEST(GpuPagedAttention, SharesKeysBetweenAnyNumberOfHeads) {
  for_every_type([&](const Near& near) {
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {5, 5}, {8, 1}, {12, 1}, {32, 2}, {24, 8}}) {
      SCOPED_TRACE(heads);
      expect_paged({.shape = {heads, kv_heads, 64, 0}, .lengths = {47, 130}, .queries = {1, 1}}, near);
    }
  });
}

TEST(GpuPagedAttention, SeesNothingBehindItsWindow) {
  for_every_type([&](const Near& near) {
    for (const std::int64_t window : {1, 15, 16, 17, 40, 1000}) {
      SCOPED_TRACE(window);
      expect_paged({.shape = {8, 2, 128, window}, .lengths = {1, 16, 17, 64, 333}, .queries = {1, 1, 1, 1, 1}}, near);
    }
  });
}

TEST(GpuPagedAttention, SplitsLongContextsAndTakesSeveralQueries) {
  for_every_type([&](const Near& near) {
    // Tables of a graph are as long as the longest sequence that may come: most splits then have nothing.
    expect_paged({.shape = {8, 2, 128, 0}, .lengths = {3000}, .queries = {1}}, near);
    expect_paged({.shape = {8, 2, 64, 0}, .lengths = {5}, .queries = {1}, .extra_blocks = 500}, near);
    expect_paged({.shape = {4, 4, 128, 0}, .lengths = {40, 700}, .queries = {4, 3}, .extra_blocks = 9}, near);
    expect_paged({.shape = {4, 1, 128, 0},
                  .lengths = std::vector<std::int64_t>(300, 37),
                  .queries = std::vector<std::int64_t>(300, 1)},
                 near);
  });
}

TEST(GpuPagedAttention, LeavesRowsOfPaddingAlone) {
  const auto options = at::TensorOptions(at::kBFloat16).device(gpu());
  const at::Tensor q = at::full({2, 4, 64}, 1.0, options);
  at::Tensor keys = at::full({3, 16, 2, 64}, 5.0, options), values = keys.clone();
  at::Tensor out = at::full({2, 4, 64}, -77.0, options);
  const auto numbers = [&](std::int64_t a, std::int64_t b) { return at::arange(a, b, at::kInt).to(gpu()); };
  kernels::paged_attention(out, q, keys, values, {numbers(0, 2).view({2, 1}), numbers(0, 2), numbers(0, 2)}, {});
  EXPECT_TRUE(at::equal(out[0].cpu(), at::full({4, 64}, -77.0, at::kBFloat16)));
  EXPECT_TRUE(at::equal(out[1].cpu(), at::full({4, 64}, 5.0, at::kBFloat16)));
  // And slots below 0 are not written.
  const at::Tensor fresh = at::full({1, 2, 64}, 9.0, options);
  kernels::write_paged(keys, values, fresh, fresh, at::full({1}, -1, at::kLong).to(gpu()));
  EXPECT_TRUE(at::equal(keys.cpu(), at::full({3, 16, 2, 64}, 5.0, at::kBFloat16)));
}

Near near_of(at::ScalarType type) {
  for (const Near& near : types()) {
    if (near.type == type) return near;
  }
  return {};
}

TEST(GpuStreamGemm, IsThePlainProduct) {
  using kernels::WeightFormat;
  for (const auto& format :
       std::vector<std::optional<WeightFormat>>{{}, WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kE4m3}) {
    for (const auto& [n, k] : {std::pair{16, 256}, {48, 512}, {336, 4096}, {4096, 512}, {64, 14336}, {6144, 256}}) {
      const Pair w = normal_pair({n, k}, at::kBFloat16, "w", 0.1);
      at::Tensor numbers = w.cpu;
      kernels::QuantisedWeight weight;
      if (format) {
        weight = kernels::quantise_weight(w.cpu.to(at::kFloat), {.format = *format});
        numbers = kernels::dequantise_weight(weight).to(at::kDouble);
        for (at::Tensor* part : {&weight.values, &weight.scales, &weight.zeros}) {
          if (part->defined()) *part = part->to(gpu());
        }
      }
      for (const std::int64_t m : {1, 3, 8, 9, 16}) {
        SCOPED_TRACE(fmt::format("format {} {}x{}x{}", format ? static_cast<int>(*format) : -1, m, n, k));
        const Pair x = normal_pair({m, k}, at::kBFloat16, "x"), residual = normal_pair({m, n}, at::kBFloat16, "r");
        kernels::SkinnyGemm call{.x = x.gpu, .weight = w.gpu};
        if (format) call = {.x = x.gpu, .quantised = &weight};
        if (!kernels::runs_stream_gemm(call)) {
          EXPECT_TRUE(k == 14336 && m > 8) << "what fits into shared memory";
          continue;
        }
        const at::Tensor product = at::matmul(x.cpu, numbers.t());
        expect_near({product, kernels::stream_gemm(call)}, near_of(at::kBFloat16), "out", 2);
        call.gated = true;
        const at::Tensor gate = product.narrow(1, 0, n / 2).to(at::kBFloat16).to(at::kDouble);
        const at::Tensor up = product.narrow(1, n / 2, n / 2).to(at::kBFloat16).to(at::kDouble);
        expect_near({gate * at::sigmoid(gate) * up, kernels::stream_gemm(call)}, near_of(at::kBFloat16), "gated", 4);
        call.gated = false;
        call.residual = residual.gpu;
        expect_near({product + residual.cpu, kernels::stream_gemm(call)}, near_of(at::kBFloat16), "residual", 2);
      }
    }
  }
}

TEST(GpuSkinnyGemm, IsThePlainProduct) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [n, k] : {std::pair{1, 8}, {16, 64}, {50, 72}, {333, 4096}, {64, 1000}, {4096, 520}}) {
      for (const std::int64_t m : {1, 2, 7, 8, 9, 16}) {
        SCOPED_TRACE(fmt::format("{} {}x{}x{}", c10::toString(type), m, n, k));
        const Pair x = normal_pair({m, k}, type, "x"), w = normal_pair({n, k}, type, "w", 0.1);
        const Pair bias = normal_pair({n}, type, "b"), residual = normal_pair({m, n}, type, "r");
        const kernels::SkinnyGemm call{.x = x.gpu, .weight = w.gpu, .bias = bias.gpu, .residual = residual.gpu};
        ASSERT_TRUE(kernels::runs_skinny_gemm(call));
        expect_near({at::matmul(x.cpu, w.cpu.t()) + bias.cpu + residual.cpu, kernels::skinny_gemm(call)}, near_of(type),
                    "out", 2);
        expect_near({at::matmul(x.cpu, w.cpu.t()), kernels::skinny_gemm({.x = x.gpu, .weight = w.gpu})}, near_of(type),
                    "plain", 2);
      }
    }
  }
}

TEST(GpuSkinnyGemm, TakesWeightsInFewerBitsAsTheyAre) {
  using kernels::WeightFormat;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kE4m3}) {
    for (const auto& [n, k] : {std::pair{16, 128}, {50, 256}, {333, 4096}, {2048, 1152}}) {
      for (const std::int64_t m : {1, 3, 8, 16}) {
        SCOPED_TRACE(fmt::format("format {} {}x{}x{}", static_cast<int>(format), m, n, k));
        const Pair x = normal_pair({m, k}, at::kBFloat16, "x");
        auto weight = kernels::quantise_weight(normal_tensor({n, k}, at::kFloat, "w", 0.1), {.format = format});
        const at::Tensor expected = at::matmul(x.cpu, kernels::dequantise_weight(weight).to(at::kDouble).t());
        for (at::Tensor* part : {&weight.values, &weight.scales, &weight.zeros}) {
          if (part->defined()) *part = part->to(gpu());
        }
        const kernels::SkinnyGemm call{.x = x.gpu, .quantised = &weight};
        ASSERT_TRUE(kernels::runs_skinny_gemm(call));
        expect_near({expected, kernels::skinny_gemm(call)}, near_of(at::kBFloat16), "out", 2);
      }
    }
  }
}

TEST(GpuQuantisedGemm, MultipliesManyRowsInFp8) {
  for (const auto& [n, k] : {std::pair{16, 128}, {48, 256}, {4096, 1152}}) {
    for (const std::int64_t m : {1, 17, 128, 333}) {
      SCOPED_TRACE(fmt::format("{}x{}x{}", m, n, k));
      const Pair x = normal_pair({m, k}, at::kBFloat16, "x");
      const Pair bias = normal_pair({n}, at::kBFloat16, "b"), residual = normal_pair({m, n}, at::kBFloat16, "r");
      auto weight = kernels::quantise_weight(normal_tensor({n, k}, at::kFloat, "w", 0.1),
                                             {.format = kernels::WeightFormat::kE4m3});
      // Times the reciprocal, as a GPU divides by a number: one unit of a scale moves a code at the edge of two.
      const at::Tensor scales = x.cpu.to(at::kFloat).abs().amax({1}, true) * (1 / 448.0F);
      const at::Tensor codes = (x.cpu.to(at::kFloat) / scales).to(at::kFloat8_e4m3fn);
      const at::Tensor rows = (codes.to(at::kFloat) * scales).to(at::kDouble);
      const at::Tensor expected =
          at::matmul(rows, kernels::dequantise_weight(weight).to(at::kDouble).t()) + bias.cpu + residual.cpu;
      for (at::Tensor* part : {&weight.values, &weight.scales}) *part = part->to(gpu());
      const kernels::SkinnyGemm call{.x = x.gpu, .quantised = &weight, .bias = bias.gpu, .residual = residual.gpu};
      ASSERT_TRUE(kernels::runs_quantised_gemm(call));
      expect_near({expected, kernels::quantised_gemm(call)}, near_of(at::kBFloat16), "out", 4);  // sums of 14 bits
      const kernels::QuantisedRows made = kernels::quantise_rows(x.gpu);
      expect_near({scales.to(at::kDouble), made.scales}, near_of(at::kFloat), "scales");
      // A quotient may be rounded to the code beside.
      const at::Tensor back = made.codes.cpu().to(at::kFloat) * made.scales.cpu();
      EXPECT_LE((back.to(at::kDouble) - x.cpu).abs().max().item<double>(), 0.07 * rows.abs().max().item<double>());
    }
  }
}

TEST(GpuArgmax, IsTheFirstOfTheLargestAndKnowsWhatIsNoNumber) {
  for_every_type([&](const Near& near) {
    at::Tensor logits = normal_tensor({5, 5003}, near.type, "logits");
    logits[1][17] = 60;
    logits[1][4000] = 60;
    logits[2][5002] = std::numeric_limits<double>::quiet_NaN();
    logits[3][0] = std::numeric_limits<double>::infinity();
    logits[4].fill_(-std::numeric_limits<double>::infinity());
    at::Tensor tokens = at::full({5}, -9, at::TensorOptions(at::kLong).device(gpu()));
    kernels::argmax_tokens(tokens, logits.to(gpu()));
    const at::Tensor here = tokens.cpu();
    const double largest = logits[0].max().item<double>();
    EXPECT_EQ(logits[0][here[0].item<std::int64_t>()].item<double>(), largest);
    EXPECT_EQ(here[1].item<std::int64_t>(), 17);
    for (const std::int64_t row : {2, 3, 4}) EXPECT_EQ(here[row].item<std::int64_t>(), -1) << row;
  });
}

}  // namespace
}  // namespace trireme::gpu
