#include "trireme/kernels/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/kernels/attention_reference.h"
#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"

namespace trireme::kernels {
namespace {

using dense_attention::Case;
using dense_attention::Inputs;
using dense_attention::Results;

std::vector<InstructionSet> sets() {
  std::vector<InstructionSet> all;
  for (const auto set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4, InstructionSet::kV4Bf16}) {
    if (set <= machine_instruction_set()) all.push_back(set);
  }
  return all;
}

const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};

/// Of the largest element of a result: rounding of the result itself, and of probabilities where they are rounded.
double tolerance(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 4e-6;
    case at::kHalf:
      return 1.5e-3;
    default:
      return 1.2e-2;
  }
}

void expect_close(const at::Tensor& mine, const at::Tensor& right, double share, const std::string& what) {
  ASSERT_EQ(mine.sizes(), right.sizes()) << what;
  if (mine.numel() == 0) return;
  // At least 1: where a query sees one key, dq and dk are differences of equal numbers of that size or more.
  const double scale = std::max(right.abs().max().item<double>(), 1.0);
  const double error = mine.to(at::kDouble).sub(right).abs().max().item<double>();
  EXPECT_LE(error, share * scale) << what << ", largest " << scale;  // false for not-a-number
}

void expect_lse(const at::Tensor& mine, const at::Tensor& right, double share, const std::string& what) {
  const at::Tensor blind = right.isinf();
  EXPECT_TRUE(at::equal(mine.isinf(), blind)) << what;
  expect_close(mine.masked_fill(blind, 0), right.masked_fill(blind, 0), share, what);
}

const std::vector<Case> kCases = {
    {.name = "one of everything", .size = 1},
    {.name = "one token", .batch = 2, .heads = 3, .key_heads = 3, .size = 64, .causal = true},
    {.name = "plain", .batch = 2, .queries = 37, .keys = 37, .heads = 2, .key_heads = 2, .size = 64},
    {.name = "causal", .batch = 2, .queries = 257, .keys = 257, .heads = 2, .key_heads = 2, .size = 64, .causal = true},
    {.name = "whole tiles", .queries = 256, .keys = 256, .heads = 2, .key_heads = 2, .size = 64, .causal = true},
    {.name = "grouped",
     .batch = 2,
     .queries = 131,
     .keys = 131,
     .heads = 6,
     .key_heads = 2,
     .size = 80,
     .causal = true},
    {.name = "one head of keys", .queries = 67, .keys = 67, .heads = 5, .key_heads = 1, .size = 96, .causal = true},
    {.name = "head 8", .queries = 100, .keys = 100, .heads = 2, .key_heads = 1, .size = 8, .causal = true},
    {.name = "head 17", .queries = 41, .keys = 41, .heads = 2, .key_heads = 1, .size = 17, .causal = true},
    {.name = "head 128", .queries = 150, .keys = 150, .heads = 4, .key_heads = 2, .size = 128, .causal = true},
    {.name = "head 256", .queries = 70, .keys = 70, .heads = 1, .key_heads = 1, .size = 256, .causal = true},
    {.name = "cross", .batch = 2, .queries = 19, .keys = 133, .heads = 2, .key_heads = 2, .size = 64},
    {.name = "cross, more queries", .queries = 301, .keys = 11, .heads = 2, .key_heads = 2, .size = 64},
    {.name = "causal with a cache",
     .queries = 23,
     .keys = 123,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .causal = true,
     .query_position = 100},
    {.name = "keys ahead of some queries",
     .queries = 90,
     .keys = 50,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .causal = true,
     .query_position = 10,
     .key_position = 40},
    {.name = "keys ahead of all queries",
     .queries = 20,
     .keys = 30,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .causal = true,
     .key_position = 40},
    {.name = "no keys", .queries = 20, .keys = 0, .heads = 2, .key_heads = 2, .size = 64, .causal = true},
    {.name = "no queries", .queries = 0, .keys = 20, .heads = 2, .key_heads = 2, .size = 64, .causal = true},
    {.name = "window",
     .batch = 2,
     .queries = 289,
     .keys = 289,
     .heads = 2,
     .key_heads = 1,
     .size = 64,
     .causal = true,
     .window = 50},
    {.name = "window of one",
     .queries = 70,
     .keys = 70,
     .heads = 1,
     .key_heads = 1,
     .size = 64,
     .causal = true,
     .window = 1},
    {.name = "window both ways", .queries = 150, .keys = 150, .heads = 2, .key_heads = 2, .size = 64, .window = 20},
    {.name = "window away from the keys",
     .queries = 40,
     .keys = 90,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .causal = true,
     .window = 8,
     .query_position = 70},
    {.name = "documents",
     .batch = 3,
     .queries = 211,
     .keys = 211,
     .heads = 2,
     .key_heads = 1,
     .size = 64,
     .causal = true,
     .documents = 5},
    {.name = "documents both ways",
     .batch = 2,
     .queries = 90,
     .keys = 90,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .documents = 7},
    {.name = "documents and a window",
     .batch = 2,
     .queries = 211,
     .keys = 211,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .causal = true,
     .window = 13,
     .documents = 4},
    {.name = "views of a fused projection",
     .batch = 2,
     .queries = 101,
     .keys = 101,
     .heads = 4,
     .key_heads = 2,
     .size = 32,
     .causal = true,
     .fused = true},
    {.name = "dropout",
     .batch = 2,
     .queries = 131,
     .keys = 131,
     .heads = 4,
     .key_heads = 2,
     .size = 64,
     .causal = true,
     .dropout = 0.2},
    {.name = "dropout of a block inside",
     .queries = 70,
     .keys = 90,
     .heads = 2,
     .key_heads = 2,
     .size = 64,
     .query_position = 301,
     .key_position = 77,
     .dropout = 0.5},
    {.name = "cut into parts", .queries = 1100, .keys = 1100, .heads = 2, .key_heads = 1, .size = 16, .causal = true},
    {.name = "negative scale",
     .queries = 70,
     .keys = 70,
     .heads = 1,
     .key_heads = 1,
     .size = 64,
     .causal = true,
     .scale = -0.2},
    {.name = "large scores",
     .queries = 130,
     .keys = 130,
     .heads = 1,
     .key_heads = 1,
     .size = 64,
     .causal = true,
     .scale = 4},
};

class AttentionEqualsTheDenseOne : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionEqualsTheDenseOne, InEveryTypeAndInstructionSet) {
  const Case& c = GetParam();
  for (const at::ScalarType type : kTypes) {
    const Inputs in(c, type);
    const Results right = dense_attention::reference(in);
    // Scores of tens: an error of the score is one of the probability, relatively.
    const double share = tolerance(type) * (c.scale > 1 ? 20 : 1);
    for (const InstructionSet set : sets()) {
      const UseInstructionSet use(set);
      const std::string what = fmt::format("{} {} {}", c.name, c10::toString(type), to_string(set));
      Results mine = dense_attention::forward(in);
      expect_close(mine.out, right.out, share, what + ": out");
      expect_lse(mine.lse, right.lse, type == at::kDouble ? 1e-12 : 4e-6, what + ": lse");
      dense_attention::backward(in, mine, c.fused);
      expect_close(mine.dq, right.dq, share, what + ": dq");
      expect_close(mine.dk, right.dk, share, what + ": dk");
      expect_close(mine.dv, right.dv, share, what + ": dv");
    }
  }
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.name) {
    if (c != ',') name += c == ' ' ? '_' : c;
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionEqualsTheDenseOne, ::testing::ValuesIn(kCases), test_name);

void expect_same_bits(const Results& a, const Results& b, const std::string& what) {
  EXPECT_TRUE(at::equal(a.out, b.out)) << what << ": out";
  EXPECT_TRUE(at::equal(a.lse, b.lse)) << what << ": lse";
  EXPECT_TRUE(at::equal(a.dq, b.dq)) << what << ": dq";
  EXPECT_TRUE(at::equal(a.dk, b.dk)) << what << ": dk";
  EXPECT_TRUE(at::equal(a.dv, b.dv)) << what << ": dv";
}

TEST(Attention, GivesTheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const std::vector<Case> cases = {
      {.name = "many heads",
       .batch = 3,
       .queries = 150,
       .keys = 150,
       .heads = 6,
       .key_heads = 2,
       .size = 64,
       .causal = true,
       .dropout = 0.1},
      {.name = "parts", .queries = 1300, .keys = 1300, .heads = 4, .key_heads = 1, .size = 32, .causal = true},
      {.name = "odd heads", .queries = 600, .keys = 600, .heads = 3, .key_heads = 3, .size = 64, .causal = true}};
  for (const Case& c : cases) {
    for (const at::ScalarType type : kTypes) {
      const Inputs in(c, type);
      std::vector<Results> results;
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        results.push_back(dense_attention::forward(in));
        dense_attention::backward(in, results.back());
        expect_same_bits(results.front(), results.back(), fmt::format("{}, {} threads", c.name, threads));
      }
    }
  }
  at::set_num_threads(before);
}

/// Changes what query `query` must not see and expects its row, to the bit; the others see it, so they must change.
void expect_no_leak(const Case& c, std::int64_t query, const std::vector<std::array<std::int64_t, 2>>& unseen) {
  for (const at::ScalarType type : kTypes) {
    for (const InstructionSet set : sets()) {
      const UseInstructionSet use(set);
      const Inputs in(c, type);
      Inputs other = in;
      other.k = in.k.clone(), other.v = in.v.clone();
      for (const auto& [begin, end] : unseen) {
        other.k.slice(1, begin, end).mul_(-3).add_(1);
        other.v.slice(1, begin, end).mul_(2).sub_(5);
      }
      const Results a = dense_attention::forward(in), b = dense_attention::forward(other);
      const std::string what = fmt::format("{} {} {}", c.name, c10::toString(type), to_string(set));
      EXPECT_TRUE(at::equal(a.out.select(1, query), b.out.select(1, query))) << what;
      EXPECT_TRUE(at::equal(a.lse.select(2, query), b.lse.select(2, query))) << what;
      EXPECT_FALSE(at::equal(a.out, b.out)) << what << ": the change changed nothing";
    }
  }
}

TEST(Attention, LaterKeysChangeNoBitOfAQuery) {
  for (const std::int64_t query : {0, 1, 15, 16, 63, 64, 100, 127, 128, 198}) {
    expect_no_leak(
        {.name = "causal", .queries = 200, .keys = 200, .heads = 2, .key_heads = 1, .size = 64, .causal = true}, query,
        {{query + 1, 200}});
  }
}

TEST(Attention, KeysBeyondTheWindowChangeNoBitOfAQuery) {
  for (const std::int64_t query : {40, 63, 64, 100, 150}) {
    expect_no_leak({.name = "window",
                    .queries = 200,
                    .keys = 200,
                    .heads = 2,
                    .key_heads = 1,
                    .size = 64,
                    .causal = true,
                    .window = 30},
                   query, {{0, query - 29}, {query + 1, 200}});
  }
}

TEST(Attention, OtherDocumentsChangeNoBitOfAQuery) {
  const Case c{
      .name = "documents", .queries = 200, .keys = 200, .heads = 1, .key_heads = 1, .size = 64, .documents = 5};
  expect_no_leak(c, 90, {{0, 80}, {120, 200}});  // the third of five even parts
}

/// Blocks of keys one after the other, as they come round a ring.
struct Blocks {
  std::vector<Inputs> parts;
  explicit Blocks(const Inputs& in, const std::vector<std::int64_t>& cuts) {
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      Inputs part = in;
      part.k = in.k.slice(1, cuts[i], cuts[i + 1]);
      part.v = in.v.slice(1, cuts[i], cuts[i + 1]);
      if (in.key_documents.defined()) part.key_documents = in.key_documents.slice(1, cuts[i], cuts[i + 1]);
      part.options.key_position = in.options.key_position + cuts[i];
      part.point();
      parts.push_back(part);
    }
  }
};

TEST(Attention, BlocksOfKeysMergeToTheWhole) {
  for (const at::ScalarType type : kTypes) {
    for (const InstructionSet set : sets()) {
      const UseInstructionSet use(set);
      const Inputs in({.batch = 2,
                       .queries = 120,
                       .keys = 120,
                       .heads = 4,
                       .key_heads = 2,
                       .size = 64,
                       .causal = true,
                       .window = 70,
                       .documents = 2,
                       .dropout = 0.1},
                      type);
      const Results right = dense_attention::reference(in);
      const Blocks blocks(in, {0, 17, 64, 100, 120});
      Results whole = dense_attention::forward(blocks.parts[0]);
      for (std::size_t i = 1; i < blocks.parts.size(); ++i) {
        const Results part = dense_attention::forward(blocks.parts[i]);
        attention_merge(whole.out, whole.lse, part.out, part.lse);
      }
      const std::string what = fmt::format("{} {}", c10::toString(type), to_string(set));
      expect_close(whole.out, right.out, 2 * tolerance(type), what + ": out");
      expect_lse(whole.lse, right.lse, type == at::kDouble ? 1e-12 : 4e-6, what + ": lse");

      at::Tensor dq = at::zeros(in.q.sizes(), at::kDouble);
      for (std::size_t i = 0; i < blocks.parts.size(); ++i) {
        Results part{.out = whole.out, .lse = whole.lse};
        dense_attention::backward(blocks.parts[i], part);
        dq += part.dq.to(at::kDouble);
        const std::int64_t begin = blocks.parts[i].options.key_position, end = begin + part.dk.size(1);
        expect_close(part.dk, right.dk.slice(1, begin, end), 2 * tolerance(type), what + ": dk");
        expect_close(part.dv, right.dv.slice(1, begin, end), 2 * tolerance(type), what + ": dv");
      }
      expect_close(dq, right.dq, 2 * tolerance(type), what + ": dq");
    }
  }
}

TEST(Attention, MergingTwoBlindPartsStaysBlind) {
  at::Tensor out = at::zeros({1, 3, 1, 4}, at::kFloat), lse = at::full({1, 1, 3}, -INFINITY, at::kFloat);
  attention_merge(out, lse, out.clone(), lse.clone());
  EXPECT_EQ(out.abs().max().item<float>(), 0);
  EXPECT_TRUE(lse.isinf().all().item<bool>());
}

TEST(Attention, NotANumberIsNotHidden) {
  for (const at::ScalarType type : kTypes) {
    for (const InstructionSet set : sets()) {
      const UseInstructionSet use(set);
      const Inputs in({.queries = 80, .keys = 80, .heads = 1, .key_heads = 1, .size = 64, .causal = true}, type);
      in.k[0][70][0][5] = NAN;
      Results r = dense_attention::forward(in);
      EXPECT_TRUE(r.out[0][75].isnan().all().item<bool>());
      EXPECT_TRUE(r.lse[0][0][75].isnan().item<bool>());
      EXPECT_FALSE(r.lse[0][0][60].isnan().item<bool>());
      dense_attention::backward(in, r);
      EXPECT_TRUE(r.dq[0][75].isnan().any().item<bool>());
    }
  }
}

TEST(Attention, TheShareOfCoinsThatFallIsP) {
  // With v = 1 an output is its row's share of probability that stayed, divided by 1 - p: 1 on average.
  Inputs in({.batch = 2, .queries = 256, .keys = 256, .heads = 4, .key_heads = 4, .size = 16, .dropout = 0.3},
            at::kFloat);
  in.q.zero_();
  in.v.fill_(1);
  const Results r = dense_attention::forward(in);
  // 256 draws a row, 2048 rows: the mean of all has standard deviation sqrt(0.3 / 0.7 / 524288) = 0.0009.
  EXPECT_NEAR(r.out.mean().item<double>(), 1, 0.004);
  EXPECT_NEAR(r.out.select(3, 0).std().item<double>(), std::sqrt(0.3 / 0.7 / 256), 0.003);
}

TEST(Attention, RefusesWhatDoesNotFitAndSaysWhy) {
  using ::testing::HasSubstr;
  const Inputs in({.batch = 2, .queries = 5, .keys = 5, .heads = 4, .key_heads = 2, .size = 8}, at::kFloat);
  const auto message = [&](const auto& change) {
    Inputs changed = in;
    at::Tensor out = at::empty(in.q.sizes(), at::kFloat), lse = dense_attention::empty_lse(in);
    change(changed, out, lse);
    changed.point();
    try {
      attention_forward(out, lse, changed.q, changed.k, changed.v, changed.options);
    } catch (const ConfigError& error) {
      return error.message();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](Inputs&, at::Tensor&, at::Tensor&) {}), "accepted");
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) { c.k = c.k.slice(3, 0, 4); }),
              HasSubstr("k is Float [2, 5, 2, 4], but with q Float [2, 5, 4, 8] it must be Float [2, 5, 2, 8]"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) { c.q = c.q.slice(2, 0, 3); }),
              HasSubstr("q has 3 heads and k has 2"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) { c.v = c.v.to(at::kDouble); }),
              HasSubstr("v is Double"));
  EXPECT_THAT(
      message([](Inputs& c, at::Tensor&, at::Tensor&) { c.q = c.q.transpose(1, 3).contiguous().transpose(1, 3); }),
      HasSubstr("last dimension must be contiguous"));
  EXPECT_THAT(message([](Inputs&, at::Tensor&, at::Tensor& lse) { lse = lse.to(at::kDouble); }),
              HasSubstr("lse is Double"));
  EXPECT_THAT(message([](Inputs&, at::Tensor& out, at::Tensor&) { out = out.slice(1, 1); }), HasSubstr("out is"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) { c.q = c.q.to(at::kInt); }), HasSubstr("q is Int"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) { c.options.window = -1; }), HasSubstr("window is -1"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) { c.query_documents = Inputs::documents(2, 5, 2); }),
              HasSubstr("queries or keys only"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) {
                c.query_documents = c.key_documents = Inputs::documents(2, 5, 2);
                c.key_documents = c.key_documents.clone();
                c.key_documents[1][4] = c.key_documents[1][0].item<int>();
                c.key_documents[1][2] = 77;
              }),
              HasSubstr("again keys from"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) {
                c.dropout = AttentionDropout{.stream = Random(1, "x"), .p = 1.0};
                c.samples = at::zeros({2}, at::kLong);
              }),
              HasSubstr("dropout is 1"));
  EXPECT_THAT(message([](Inputs& c, at::Tensor&, at::Tensor&) {
                c.dropout = AttentionDropout{.stream = Random(1, "x"), .p = 0.5};
                c.samples = at::zeros({3}, at::kLong);
              }),
              HasSubstr("samples are Long [3]"));
}

}  // namespace
}  // namespace trireme::kernels
