// Block-sparse attention beside dense attention with the blocks' mask, by autograd in double.
#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/sparse/block_layout.h"

namespace trireme::kernels {
namespace {

struct BlockCase {
  std::int64_t batch, tokens, heads, key_heads, size, block;
  double density;
  bool causal, documents;
};

/// Some of all blocks, of each head others, by the seed; the diagonal where `diagonal`.
BlockLists random_block_lists(const BlockCase& c, bool diagonal) {
  BlockLists lists{.tokens = c.tokens, .block = c.block, .heads = c.heads, .begin = {0}, .columns = {}};
  const Random random(11, "blocks");
  for (std::int64_t list = 0; list < c.heads * lists.rows(); ++list) {
    for (std::int64_t column = 0; column < lists.rows(); ++column) {
      const auto draw = static_cast<std::uint64_t>(list * lists.rows() + column);
      if (random.uniform(draw) < c.density || (diagonal && column == list % lists.rows()))
        lists.columns.push_back(static_cast<std::int32_t>(column));
    }
    lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
  }
  return lists;
}

/// bool [batch, heads, queries, keys]
at::Tensor block_mask(const BlockLists& lists, const BlockCase& c, const at::Tensor& documents) {
  at::Tensor mask = at::full({c.batch, c.heads, c.tokens, c.tokens}, false, at::kBool);
  auto* const to = mask.mutable_data_ptr<bool>();
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t q = 0; q < c.tokens; ++q) {
        const auto list = static_cast<std::size_t>(h * lists.rows() + q / c.block);
        for (std::int64_t j = lists.begin[list]; j < lists.begin[list + 1]; ++j) {
          const std::int64_t first = lists.columns[static_cast<std::size_t>(j)] * c.block;
          for (std::int64_t k = first; k < std::min(first + c.block, c.tokens); ++k) {
            const bool same = !c.documents || documents[b][q].item<int>() == documents[b][k].item<int>();
            to[((b * c.heads + h) * c.tokens + q) * c.tokens + k] = same && (!c.causal || k <= q);
          }
        }
      }
    }
  }
  return mask;
}

at::Tensor block_documents(const BlockCase& c) {
  at::Tensor documents = at::empty({c.batch, c.tokens}, at::kInt);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t t = 0; t < c.tokens; ++t) documents[b][t] = static_cast<int>(t * (2 + b) / c.tokens);
  }
  return documents;
}

struct BlockResult {
  at::Tensor out, lse, dq, dk, dv;
};

BlockResult by_blocks(const BlockLayout& layout, const BlockCase& c, const at::Tensor& documents, const at::Tensor& q,
                      const at::Tensor& k, const at::Tensor& v, const at::Tensor& dout) {
  Attention options{.scale = 0.2, .causal = c.causal};
  if (c.documents) options.query_documents = options.key_documents = &documents;
  options.blocks = &layout;
  auto [out, lse] = attention_forward(q, k, v, options);
  BlockResult r{out, lse, at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  attention_backward(r.dq, r.dk, r.dv, dout, q, k, v, out, lse, options);
  return r;
}

BlockResult by_definition(const at::Tensor& mask, const at::Tensor& q0, const at::Tensor& k0, const at::Tensor& v0,
                          const at::Tensor& dout) {
  at::Tensor q = q0.to(at::kDouble).detach().requires_grad_(), k = k0.to(at::kDouble).detach().requires_grad_(),
             v = v0.to(at::kDouble).detach().requires_grad_();
  const std::int64_t group = q.size(2) / k.size(2);
  const at::Tensor keys = k.repeat_interleave(group, 2), values = v.repeat_interleave(group, 2);
  const at::Tensor scores = at::einsum("bqhd,bkhd->bhqk", {q, keys}) * 0.2;
  const at::Tensor shown = at::where(mask, scores, at::full_like(scores, -1e300));
  const at::Tensor any = mask.any(3, true);
  const at::Tensor p = at::where(any, at::softmax(shown, 3), at::zeros_like(shown));
  const at::Tensor out = at::einsum("bhqk,bkhd->bqhd", {p, values});
  (out * dout.to(at::kDouble)).sum().backward();
  return {out.detach(), at::logsumexp(shown, 3).detach(), q.grad(), k.grad(), v.grad()};
}

void expect_blocks_near(const at::Tensor& one, const at::Tensor& other, double tolerance, const char* what) {
  const double worst = (one.to(at::kDouble) - other).abs().max().item<double>();
  EXPECT_LE(worst, tolerance * std::max(1.0, other.abs().max().item<double>())) << what;
}

void compare_blocks(const BlockCase& c, at::ScalarType type, double tolerance) {
  const auto normal = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).to(type); };
  const at::Tensor q = normal({c.batch, c.tokens, c.heads, c.size}),
                   k = normal({c.batch, c.tokens, c.key_heads, c.size}),
                   v = normal({c.batch, c.tokens, c.key_heads, c.size}), dout = normal(q.sizes());
  const at::Tensor documents = block_documents(c);
  const BlockLists lists = random_block_lists(c, /*diagonal=*/c.density < 1 && c.block != 48);
  const BlockResult expected = by_definition(block_mask(lists, c, documents), q, k, v, dout);
  const BlockLayout layout(lists);
  const BlockResult found = by_blocks(layout, c, documents, q, k, v, dout);
  expect_blocks_near(found.out, expected.out, tolerance, "out");
  expect_blocks_near(found.dq, expected.dq, tolerance, "dq");
  expect_blocks_near(found.dk, expected.dk, tolerance, "dk");
  expect_blocks_near(found.dv, expected.dv, tolerance, "dv");
  const at::Tensor seen = found.lse.to(at::kDouble).gt(-1e200);
  expect_blocks_near(at::where(seen, found.lse.to(at::kDouble), at::zeros_like(expected.lse)),
                     at::where(seen, expected.lse, at::zeros_like(expected.lse)), tolerance, "lse");
}

TEST(BlockAttention, EqualsDenseMaskedAttention) {
  for (const BlockCase& c : {BlockCase{1, 64, 2, 2, 16, 16, 0.4, false, false},
                             {2, 150, 3, 3, 24, 16, 0.2, true, false},
                             {1, 300, 2, 1, 32, 32, 0.3, true, true},
                             {1, 260, 2, 2, 16, 64, 0.3, false, true},
                             {1, 131, 1, 1, 8, 48, 0.3, true, false},
                             {1, 37, 4, 2, 16, 16, 1.0, true, false}}) {
    SCOPED_TRACE(c.tokens);
    compare_blocks(c, at::kDouble, 1e-12);
    compare_blocks(c, at::kFloat, 2e-5);
  }
  compare_blocks({1, 200, 2, 2, 32, 16, 0.3, true, false}, at::kBFloat16, 4e-2);
}

TEST(BlockAttention, AllBlocksGiveTheBitsOfDenseAttention) {
  const BlockCase c{2, 150, 4, 2, 32, 16, 1.0, true, true};
  const at::Tensor q = at::randn({2, 150, 4, 32}), k = at::randn({2, 150, 2, 32}), v = at::randn({2, 150, 2, 32}),
                   dout = at::randn(q.sizes()), documents = block_documents(c);
  const BlockLayout layout(random_block_lists(c, false));
  const BlockResult blocks = by_blocks(layout, c, documents, q, k, v, dout);
  const Attention options{.scale = 0.2, .causal = true, .query_documents = &documents, .key_documents = &documents};
  const auto [out, lse] = attention_forward(q, k, v, options);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  attention_backward(dq, dk, dv, dout, q, k, v, out, lse, options);
  EXPECT_TRUE(blocks.out.equal(out) && blocks.lse.equal(lse));
  EXPECT_TRUE(blocks.dq.equal(dq) && blocks.dk.equal(dk) && blocks.dv.equal(dv));
}

TEST(BlockAttention, KeysThatNobodySeesGetNoGradient) {
  BlockLists lists{.tokens = 96, .block = 32, .heads = 1, .begin = {0, 1, 2, 3}, .columns = {0, 2, 0}};
  const BlockLayout layout(lists);
  const at::Tensor q = at::randn({1, 96, 1, 16}), k = at::randn({1, 96, 1, 16}), v = at::randn({1, 96, 1, 16});
  const BlockResult r =
      by_blocks(layout, {1, 96, 1, 1, 16, 32, 0, false, false}, {}, q, k, v, at::randn({1, 96, 1, 16}));
  EXPECT_EQ(r.dk.narrow(1, 32, 32).abs().sum().item<double>(), 0);
  EXPECT_EQ(r.dv.narrow(1, 32, 32).abs().sum().item<double>(), 0);
  EXPECT_GT(r.dk.narrow(1, 0, 32).abs().sum().item<double>(), 0);
}

TEST(BlockAttention, ListsGrowWithTheBlocksNotWithTheirSquare) {
  const auto bytes = [](std::int64_t tokens) {
    BlockLists lists{.tokens = tokens, .block = 16, .heads = 1, .begin = {0}, .columns = {}};
    for (std::int64_t row = 0; row < lists.rows(); ++row) {
      for (std::int64_t c = std::max<std::int64_t>(0, row - 3); c <= row; ++c)
        lists.columns.push_back(static_cast<std::int32_t>(c));
      lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
    }
    return static_cast<double>(BlockLayout(std::move(lists)).bytes());
  };
  EXPECT_NEAR(bytes(32768) / bytes(4096), 8, 0.1);
}

TEST(BlockAttention, WrongListsAreNamed) {
  EXPECT_THROW(BlockLayout({.tokens = 32, .block = 24, .heads = 1, .begin = {0, 0, 0}, .columns = {}}), ConfigError);
  EXPECT_THROW(BlockLayout({.tokens = 32, .block = 16, .heads = 1, .begin = {0, 1, 2}, .columns = {0, 2}}),
               ConfigError);
  EXPECT_THROW(BlockLayout({.tokens = 32, .block = 16, .heads = 1, .begin = {0, 2, 2}, .columns = {1, 0}}),
               ConfigError);
  const BlockLayout layout({.tokens = 32, .block = 16, .heads = 1, .begin = {0, 1, 2}, .columns = {0, 1}});
  const at::Tensor q = at::randn({1, 48, 1, 16});
  Attention options{.scale = 1, .blocks = &layout};
  EXPECT_THROW(attention_forward(q, q, q, options), ConfigError);  // another length
  // Of a rectangle: its longer side is not what lists are of; a list beyond its queries; a column beyond its keys.
  EXPECT_THROW(BlockLayout({.tokens = 32, .block = 16, .heads = 1, .begin = {0, 0, 0}, .queries = 16, .keys = 16}),
               ConfigError);
  EXPECT_THROW(
      BlockLayout(
          {.tokens = 32, .block = 16, .heads = 1, .begin = {0, 1, 2}, .columns = {0, 0}, .queries = 16, .keys = 32}),
      ConfigError);
  EXPECT_THROW(
      BlockLayout(
          {.tokens = 32, .block = 16, .heads = 1, .begin = {0, 1, 2}, .columns = {0, 1}, .queries = 32, .keys = 16}),
      ConfigError);
}

}  // namespace
}  // namespace trireme::kernels
