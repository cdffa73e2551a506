#include "trireme/kernels/embedding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

/// Skewed, as words are: small numbers come often.
at::Tensor ids_for(std::int64_t count, std::int64_t rows, std::string_view name) {
  at::Tensor ids = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = Random(5, name).uniform(static_cast<std::uint64_t>(i));
    ids[i] = static_cast<std::int64_t>(u * u * u * static_cast<double>(rows));
  }
  return ids;
}

TEST(EmbeddingKernels, LookUpRowsOfOneTableAndOfTwo) {
  for_every_type_and_set([](const Precision& precision) {
    for (const auto [count, width] : row_shapes()) {
      SCOPED_TRACE(fmt::format("{} tokens of {}", count, width));
      const at::Tensor table = normal_tensor({29, width}, precision.type, "t"), none;
      const at::Tensor table2 = normal_tensor({50, width}, precision.type, "t2");
      const at::Tensor ids = ids_for(count, 29, "a"), ids2 = ids_for(count, 50, "b");
      at::Tensor out = at::empty({count, width}, precision.type);
      embedding_forward({out, ids, table, none, none});
      EXPECT_TRUE(same_bits(out, table.index_select(0, ids)));
      embedding_forward({out, ids, table, ids2, table2});
      EXPECT_TRUE(same_bits(out, table.index_select(0, ids).add(table2.index_select(0, ids2))));
    }
  });
}

TEST(EmbeddingKernels, SlicesOfAVocabularyAddUpToTheWhole) {
  for_every_type_and_set([](const Precision& precision) {
    const at::Tensor table = normal_tensor({30, 19}, precision.type, "t"), ids = ids_for(24, 30, "a").view({4, 6}),
                     none;
    const at::Tensor dout = normal_tensor({4, 6, 19}, precision.type, "d");
    at::Tensor whole = at::empty({4, 6, 19}, precision.type), part = at::empty_like(whole), sum = at::zeros_like(whole);
    embedding_forward({whole, ids, table, none, none});
    at::Tensor dwhole = at::zeros({30, 19}, sums_type(precision.type)), dparts = at::zeros_like(dwhole);
    embedding_backward(dwhole, ids, dout, 0);
    for (const std::int64_t first : {0, 12, 24}) {
      const std::int64_t end = std::min<std::int64_t>(first + 12, 30);
      embedding_forward({part, ids, table.slice(0, first, end), none, none, first});
      sum.add_(part);
      at::Tensor dslice = dparts.slice(0, first, end);
      embedding_backward(dslice, ids, dout, first);
    }
    EXPECT_TRUE(same_bits(sum, whole));
    EXPECT_TRUE(same_bits(dparts, dwhole));
  });
}

TEST(EmbeddingKernels, AddGradientsRowByRowInOrder) {
  for_every_type_and_set([](const Precision& precision) {
    // Tables that take one and two rounds of the sort.
    for (const std::int64_t rows : {1, 29, 5000}) {
      for (const auto [count, width] : row_shapes()) {
        SCOPED_TRACE(fmt::format("{} tokens of {}, {} rows", count, width, rows));
        const at::Tensor ids = ids_for(count, rows, "a"), dout = normal_tensor({count, width}, precision.type, "d");
        at::Tensor dtable = normal_tensor({rows, width}, sums_type(precision.type), "start"), expected = dtable.clone();
        for (std::int64_t i = 0; i < count; ++i) {
          expected[ids[i].item<std::int64_t>()].add_(dout[i].to(expected.scalar_type()));
        }
        embedding_backward(dtable, ids, dout, 0);
        EXPECT_TRUE(same_bits(dtable, expected));
      }
    }
  });
}

/// A table of 16 bits holds what a float one would, rounded once for all of a call's tokens.
TEST(EmbeddingKernels, RoundTheSumsOfANarrowTableOnce) {
  for_every_type_and_set([](const Precision& precision) {
    if (sums_type(precision.type) == precision.type) return;
    for (const std::int64_t rows : {1, 29, 5000}) {
      for (const auto& [count, width] : {std::pair<std::int64_t, std::int64_t>{40, 7}, {2003, 300}, {64, 513}}) {
        SCOPED_TRACE(fmt::format("{} tokens of {}, {} rows", count, width, rows));
        const at::Tensor ids = ids_for(count, rows, "a"), dout = normal_tensor({count, width}, precision.type, "d");
        at::Tensor dtable = normal_tensor({rows, width}, precision.type, "start"), wide = dtable.to(at::kFloat);
        embedding_backward(wide, ids, dout, 0);
        const auto once = [&] {
          at::Tensor mine = dtable.clone();
          embedding_backward(mine, ids, dout, 0);
          return mine;
        };
        EXPECT_TRUE(same_bits(with_threads(1, once), wide.to(precision.type)));
        EXPECT_TRUE(same_bits(with_threads(3, once), wide.to(precision.type)));
      }
    }
  });
}

TEST(EmbeddingKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for_every_type_and_set([](const Precision& precision) {
    const at::Tensor ids = ids_for(2003, 40, "a"), dout = normal_tensor({2003, 300}, precision.type, "d");
    const auto once = [&] {
      at::Tensor dtable = at::zeros({40, 300}, sums_type(precision.type));
      embedding_backward(dtable, ids, dout, 0);
      return dtable;
    };
    const at::Tensor one = with_threads(1, once);
    EXPECT_TRUE(same_bits(one, with_threads(2, once)) && same_bits(one, with_threads(5, once)));
  });
}

TEST(EmbeddingKernels, SayWhatIsWrong) {
  const at::Tensor table = at::zeros({4, 8}), positions = at::zeros({2, 8}), none;
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong), late = at::tensor({0, 1, 2}, at::kLong);
  at::Tensor out = at::zeros({3, 8}), wrong = at::zeros({2, 8}), half = at::zeros({4, 8}, at::kHalf);
  EXPECT_THAT(refusal([&] {
                embedding_forward({wrong, ids, table, none, none});
              }),
              HasSubstr("out, float [2, 8] must have a row for each of ids, int64 [3]"));
  EXPECT_EQ(refusal([&] {
              embedding_forward({out, ids, table, late, positions});
            }),
            "embedding_forward: ids2[2] is 2, but table2, float [2, 8] has rows 0 to 1");
  EXPECT_THAT(refusal([&] { embedding_backward(half, ids, out, 0); }), HasSubstr("dtable, half [4, 8] must be float"));
}

}  // namespace
}  // namespace trireme::kernels
