#include <ATen/ops/arange.h>

#include "tests/gpu/support.h"
#include "trireme/base/random.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/sparse/block_layout.h"

namespace trireme::gpu {
namespace {

TEST(GpuBlockAttention, EqualsTheCpu) {
  struct BlockShape {
    std::int64_t batch, tokens, heads, key_heads, size, block;
    bool causal, documents;
  };
  for_every_type([](const Near& near) {
    for (const BlockShape& c : {BlockShape{2, 200, 4, 2, 64, 16, true, false},
                                {1, 333, 2, 1, 128, 32, false, false},
                                {2, 256, 2, 2, 64, 128, true, true},
                                {1, 77, 2, 2, 24, 16, true, false}}) {
      SCOPED_TRACE(c.tokens);
      kernels::BlockLists lists{.tokens = c.tokens, .block = c.block, .heads = c.heads, .begin = {0}, .columns = {}};
      const Random random(5, "blocks");
      for (std::int64_t list = 0; list < c.heads * lists.rows(); ++list) {
        for (std::int64_t column = 0; column < lists.rows(); ++column) {
          const auto draw = static_cast<std::uint64_t>(list * lists.rows() + column);
          if (column == list % lists.rows() || random.uniform(draw) < 0.3)
            lists.columns.push_back(static_cast<std::int32_t>(column));
        }
        lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
      }
      const kernels::BlockLayout layout(std::move(lists));
      const Pair q = normal_pair({c.batch, c.tokens, c.heads, c.size}, near.type, "q");
      const Pair kv = normal_pair({c.batch, c.tokens, 2 * c.key_heads, c.size}, near.type, "kv");
      const Pair dout = normal_pair(q.cpu.sizes(), near.type, "dout");
      const at::Tensor numbers =
          at::arange(c.batch * c.tokens, at::kInt).div(61, "floor").to(at::kInt).view({c.batch, c.tokens});
      const Pair document{numbers, numbers.to(gpu())};
      Pair out = empty_pair(q.cpu.sizes(), near.type), lse = empty_pair({c.batch, c.heads, c.tokens}, near.type);
      Pair dq = empty_pair(q.cpu.sizes(), near.type), dkv = empty_pair(kv.cpu.sizes(), near.type);
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        kernels::Attention options{.scale = 0.125, .causal = c.causal};
        if (c.documents) options.query_documents = options.key_documents = &(document.*side);
        options.blocks = &layout;
        const at::Tensor k = (kv.*side).narrow(2, 0, c.key_heads), v = (kv.*side).narrow(2, c.key_heads, c.key_heads);
        at::Tensor dk = (dkv.*side).narrow(2, 0, c.key_heads), dv = (dkv.*side).narrow(2, c.key_heads, c.key_heads);
        const auto result = kernels::attention_forward(q.*side, k, v, options);
        out.*side = result.out;
        lse.*side = result.lse;
        kernels::attention_backward(dq.*side, dk, dv, dout.*side, q.*side, k, v, result.out, result.lse, options);
      }
      const double slack = near.type == at::kBFloat16 || near.type == at::kHalf ? 6 : 2;
      expect_near(out, near, "out", slack);
      expect_near(dq, near, "dq", slack);
      expect_near(dkv, near, "dkv", slack);
    }
  });
}

/// Rectangles of a layout, which ranks that share rows compute: as the CPU does, in every type.
TEST(GpuBlockAttention, OfRectanglesEqualsTheCpu) {
  struct RectangleShape {
    std::int64_t queries, keys, query_position, key_position, size;
    bool causal;
  };
  for_every_type([](const Near& near) {
    for (const RectangleShape& c : {RectangleShape{64, 192, 128, 0, 64, true},
                                    {192, 64, 0, 192, 128, false},
                                    {96, 96, 96, 96, 64, true},
                                    {32, 160, 0, 32, 24, false}}) {
      SCOPED_TRACE(c.queries);
      constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kBlock = 32;
      kernels::BlockLists lists{.tokens = std::max(c.queries, c.keys),
                                .block = kBlock,
                                .heads = kHeads,
                                .begin = {0},
                                .columns = {},
                                .queries = c.queries,
                                .keys = c.keys};
      const Random random(6, "rectangles");
      for (std::int64_t list = 0; list < kHeads * lists.rows(); ++list) {
        const bool has_queries = list % lists.rows() * kBlock < c.queries;
        for (std::int64_t column = 0; has_queries && column * kBlock < c.keys; ++column) {
          const auto draw = static_cast<std::uint64_t>(list * lists.rows() + column);
          if (random.uniform(draw) < 0.5) lists.columns.push_back(static_cast<std::int32_t>(column));
        }
        lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
      }
      const kernels::BlockLayout layout(std::move(lists));
      const Pair q = normal_pair({2, c.queries, kHeads, c.size}, near.type, "q");
      const Pair k = normal_pair({2, c.keys, kKeyHeads, c.size}, near.type, "k");
      const Pair v = normal_pair(k.cpu.sizes(), near.type, "v");
      const Pair dout = normal_pair(q.cpu.sizes(), near.type, "dout");
      Pair out = empty_pair(q.cpu.sizes(), near.type), dq = empty_pair(q.cpu.sizes(), near.type);
      Pair dk = empty_pair(k.cpu.sizes(), near.type), dv = empty_pair(k.cpu.sizes(), near.type);
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        const kernels::Attention options{.scale = 0.125,
                                         .causal = c.causal,
                                         .query_position = c.query_position,
                                         .key_position = c.key_position,
                                         .blocks = &layout};
        const auto result = kernels::attention_forward(q.*side, k.*side, v.*side, options);
        out.*side = result.out;
        kernels::attention_backward(dq.*side, dk.*side, dv.*side, dout.*side, q.*side, k.*side, v.*side, result.out,
                                    result.lse, options);
      }
      const double slack = near.type == at::kBFloat16 || near.type == at::kHalf ? 6 : 2;
      expect_near(out, near, "out", slack);
      expect_near(dq, near, "dq", slack);
      expect_near(dk, near, "dk", slack);
      expect_near(dv, near, "dv", slack);
    }
  });
}

}  // namespace
}  // namespace trireme::gpu
