#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>

#include "tests/gpu/support.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/cross_entropy.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/embedding.h"
#include "trireme/kernels/norm.h"
#include "trireme/kernels/rotary.h"
#include "trireme/kernels/sum_rows.h"
#include "trireme/kernels/update.h"

namespace trireme::gpu {
namespace {

using kernels::Activation;
using kernels::NormKind;

struct NormCase {
  kernels::Norm norm;
  bool weight, bias, residual, wide_weight;
};

TEST(GpuNorm, EqualsTheCpu) {
  const std::vector<NormCase> cases = {{{NormKind::kLayer, 1e-5, false}, true, true, false, false},
                                       {{NormKind::kLayer, 1e-5, true}, true, true, true, true},
                                       {{NormKind::kLayer, 1e-5, false}, false, false, true, false},
                                       {{NormKind::kRms, 1e-6, false}, true, false, true, false},
                                       {{NormKind::kRms, 1e-6, true}, true, false, false, true},
                                       {{NormKind::kRms, 1e-5, false}, false, true, true, false}};
  // More rows than a card works on at a time, and not a multiple of what a block has, for every way to share them out.
  std::vector<kernels::RowsShape> all = shapes();
  all.insert(all.end(), {{1501, 768}, {2203, 512}, {1303, 1536}, {701, 1600}, {803, 2048}, {405, 4096}});
  for_every_type([&](const Near& near) {
    for (const NormCase& c : cases) {
      for (const auto [rows, width] : all) {
        SCOPED_TRACE(fmt::format("{} x {}, {}", rows, width, static_cast<int>(c.norm.kind)));
        const auto sums = sums_type(near.type);
        const Pair x = normal_pair({rows, width}, near.type, "x"),
                   residual = normal_pair({rows, width}, near.type, "r");
        const auto weights = c.wide_weight ? sums : near.type;
        const Pair weight = normal_pair({width}, weights, "w"), bias = normal_pair({width}, weights, "b");
        const Pair dy = normal_pair({rows, width}, near.type, "dy"), dsum = normal_pair({rows, width}, near.type, "ds");
        Pair y = empty_pair({rows, width}, near.type), sum = empty_pair({rows, width}, near.type);
        Pair mean = empty_pair({rows}, sums), rstd = empty_pair({rows}, sums),
             dx = empty_pair({rows, width}, near.type);
        Pair dweight = ones_pair({width}, sums), dbias = ones_pair({width}, sums);
        at::Tensor none;
        const bool layer = c.norm.kind == NormKind::kLayer;
        const auto run = [&](at::Tensor Pair::*side) {
          kernels::norm_forward(
              {x.*side, c.residual ? residual.*side : none, c.weight ? weight.*side : none, c.bias ? bias.*side : none,
               y.*side, c.residual ? sum.*side : none, layer ? mean.*side : none, rstd.*side},
              c.norm);
          // The CPU's sum in double is not rounded; give both what the GPU has.
          if (c.residual && side == &Pair::cpu) (sum.cpu).copy_((x.cpu + residual.cpu).to(near.type));
        };
        run(&Pair::cpu);
        run(&Pair::gpu);
        if (c.residual) {
          expect_near(sum, near, "sum");
          // From the rounded sum on.
          at::Tensor other = at::empty_like(y.cpu);
          kernels::norm_forward({sum.cpu, none, c.weight ? weight.cpu : none, c.bias ? bias.cpu : none, other, none,
                                 layer ? mean.cpu : none, rstd.cpu},
                                c.norm);
          y.cpu = other;
        }
        expect_near(y, near, "y", 2);
        const Near of_sums = near.type == at::kDouble ? near : types()[1];
        if (layer) expect_near(mean, of_sums, "mean");
        expect_near(rstd, of_sums, "rstd");
        const auto back = [&](at::Tensor Pair::*side) {
          kernels::norm_backward(
              {dy.*side, c.residual ? sum.*side : x.*side, c.weight ? weight.*side : none, layer ? mean.*side : none,
               rstd.*side, c.residual ? dsum.*side : none, dx.*side, dweight.*side, dbias.*side},
              c.norm);
        };
        back(&Pair::cpu);
        back(&Pair::gpu);
        expect_near(dx, near, "dx", 2);
        expect_near(dweight, of_sums, "dweight", 4);
        expect_near(dbias, of_sums, "dbias", 4);
        // Begun anew, each by itself: what was there does not count.
        const at::Tensor before_weight = dweight.gpu.clone(), before_bias = dbias.gpu.clone();
        dweight.gpu.fill_(77), dbias.gpu.fill_(1);
        kernels::norm_backward(
            {dy.gpu, c.residual ? sum.gpu : x.gpu, c.weight ? weight.gpu : none, layer ? mean.gpu : none, rstd.gpu,
             c.residual ? dsum.gpu : none, dx.gpu, dweight.gpu, dbias.gpu, /*begin_weight=*/true},
            c.norm);
        kernels::expect_near(dweight.gpu.cpu() + 1, before_weight.cpu(), 1e-5, 1e-5, "dweight, begun");
        EXPECT_TRUE(same_bits(dbias.gpu.cpu(), before_bias.cpu()));
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(GpuActivation, EqualsTheCpu) {
  for_every_type([](const Near& near) {
    for (const auto kind : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
      for (const auto [rows, width] : shapes()) {
        SCOPED_TRACE(fmt::format("{} x {}, {}", rows, width, static_cast<int>(kind)));
        const Pair x = normal_pair({rows, width}, near.type, "x", 3), dy = normal_pair({rows, width}, near.type, "dy");
        const Pair bias = normal_pair({width}, near.type, "b"), up = normal_pair({rows, width}, near.type, "up");
        Pair y = empty_pair({rows, width}, near.type), dx = y, gated = y, dgate = y, dup = y, again = y;
        for (Pair* pair : {&dx, &gated, &dgate, &dup, &again}) *pair = empty_pair({rows, width}, near.type);
        Pair dbias = ones_pair({width}, sums_type(near.type)), dx_alone = empty_pair({rows, width}, near.type);
        Pair y_again = empty_pair({rows, width}, near.type), y_alone = empty_pair({rows, width}, near.type);
        at::Tensor none;
        for (const auto side : {&Pair::cpu, &Pair::gpu}) {
          kernels::activation_forward(y.*side, x.*side, bias.*side, kind);
          kernels::activation_backward(dx.*side, dbias.*side, dy.*side, x.*side, bias.*side, kind, &(y_again.*side));
          kernels::activation_backward(dx_alone.*side, none, dy.*side, x.*side, none, kind, &(y_alone.*side));
          kernels::gated_forward(gated.*side, x.*side, up.*side, kind);
          kernels::gated_backward(dgate.*side, dup.*side, again.*side, dy.*side, x.*side, up.*side, kind);
        }
        expect_near(y, near, "y");
        expect_near(y_again, near, "y with its gradient");
        EXPECT_TRUE(same_bits(y_again.gpu.cpu(), y.gpu.cpu()));
        expect_near(y_alone, near, "y without bias");
        expect_near(dx, near, "dx");
        expect_near(dx_alone, near, "dx without bias");
        expect_near(dbias, near.type == at::kDouble ? near : types()[1], "dbias", 8);
        expect_near(gated, near, "gated");
        expect_near(dgate, near, "dgate");
        expect_near(dup, near, "dup");
        expect_near(again, near, "again");
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(GpuSumRows, EqualsTheCpuAndItself) {
  for_every_type([](const Near& near) {
    for (const auto [rows, width] : shapes()) {
      const Pair x = normal_pair({rows, width}, near.type, "x");
      Pair totals = ones_pair({width}, sums_type(near.type));
      kernels::add_row_sum(totals.cpu, x.cpu);
      at::Tensor again = totals.gpu.clone();
      kernels::add_row_sum(totals.gpu, x.gpu);
      kernels::add_row_sum(again, x.gpu);
      expect_near(totals, near.type == at::kDouble ? near : types()[1], "totals", 4);
      EXPECT_TRUE(same_bits(again.cpu(), totals.gpu.cpu()));
      kernels::add_row_sum(again.fill_(77), x.gpu, /*overwrite=*/true);
      at::Tensor from_zero = at::zeros_like(again);
      kernels::add_row_sum(from_zero, x.gpu);
      EXPECT_TRUE(same_bits(again.cpu(), from_zero.cpu()));
    }
  });
}

TEST(GpuCrossEntropy, EqualsTheCpu) {
  for_every_type([](const Near& near) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const auto [rows, width] : {kernels::RowsShape{1, 2},
                                       {7, 37},
                                       {700, 1000},
                                       {64, 50304},
                                       {5, 50257},
                                       {230, 60000},
                                       {9, 128256},
                                       {9, 151936},
                                       {4, 400000}}) {
        SCOPED_TRACE(fmt::format("{} x {}, smoothing {}", rows, width, smoothing));
        const auto sums = sums_type(near.type);
        Pair logits = normal_pair({rows, width}, near.type, "logits", 4);
        at::Tensor targets = at::arange(rows, at::kLong).mul(7919).remainder(width);
        for (std::int64_t row = 3; row < rows; row += row < 200 ? 60 : 1 + row % 70) targets[row] = -100;
        const Pair target{targets, targets.to(gpu())}, scale = normal_pair({rows}, sums, "scale");
        Pair losses = empty_pair({rows}, sums), z = empty_pair({rows}, sums), lse = empty_pair({rows}, sums);
        for (const auto side : {&Pair::cpu, &Pair::gpu}) {
          kernels::cross_entropy({.logits = logits.*side,
                                  .targets = target.*side,
                                  .gradient_scale = scale.*side,
                                  .losses = losses.*side,
                                  .z_losses = z.*side,
                                  .lse = lse.*side},
                                 {.label_smoothing = smoothing, .z_loss = 1e-3});
        }
        const Near of_sums = near.type == at::kDouble ? near : types()[1];
        expect_near(losses, of_sums, "losses");
        expect_near(z, of_sums, "z_losses");
        expect_near(lse, of_sums, "lse");
        expect_near(logits, near, "gradient");
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

/// Slices of the classes, as ranks have them, together give what one call gives.
TEST(GpuCrossEntropy, SlicesEqualTheCpu) {
  for_every_type([](const Near& near) {
    for (const auto [rows, width] : {kernels::RowsShape{7, 37}, {33, 1000}, {9, 25152}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, width));
      const auto sums = sums_type(near.type);
      Pair logits = normal_pair({rows, width}, near.type, "logits", 4);
      // A third of the targets is in no slice here.
      const at::Tensor targets = at::arange(rows, at::kLong).mul(7919).remainder(width + width / 2).sub(width / 4);
      const Pair target{targets, targets.to(gpu())};
      Pair lse = empty_pair({rows}, sums), hits = empty_pair({rows}, sums), totals = empty_pair({rows}, sums);
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        kernels::cross_entropy_slice_values({.logits = logits.*side,
                                             .targets = target.*side,
                                             .lse = lse.*side,
                                             .hits = hits.*side,
                                             .sums = totals.*side});
      }
      const Near of_sums = near.type == at::kDouble ? near : types()[1];
      expect_near(lse, of_sums, "lse");
      expect_near(hits, of_sums, "hits");
      expect_near(totals, of_sums, "sums", 8);
      Pair scale = normal_pair({rows}, sums, "scale");
      const Pair whole = pair_of(lse.cpu + 0.5, sums);  // others have classes too
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        (scale.*side)[1] = 0;
        kernels::cross_entropy_slice_gradients({.logits = logits.*side,
                                                .targets = target.*side,
                                                .scale = scale.*side,
                                                .lse = whole.*side,
                                                .vocabulary = 2 * width},
                                               {.label_smoothing = 0.1, .z_loss = 1e-3});
      }
      expect_near(logits, near, "gradient");
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(GpuCrossEntropy, ATargetThatIsNoClassIsNoNumber) {
  at::Tensor logits = at::zeros({2, 8}, at::TensorOptions(at::kFloat).device(gpu())), none;
  at::Tensor losses = at::zeros({2}, logits.options());
  kernels::cross_entropy({.logits = logits,
                          .targets = at::full({2}, 8, at::kLong).to(gpu()),
                          .gradient_scale = none,
                          .losses = losses,
                          .z_losses = none,
                          .lse = none},
                         {});
  EXPECT_TRUE(losses.isnan().all().item<bool>());
}

TEST(GpuEmbedding, EqualsTheCpuAndItself) {
  for_every_type([](const Near& near) {
    for (const std::int64_t width : {3, 64, 768, 2048}) {
      const std::int64_t tokens = 3000, rows = 100;
      const Pair table = normal_pair({rows, width}, near.type, "table"),
                 second = normal_pair({50, width}, near.type, "2");
      // One token is most of the batch, and some are outside this slice of the vocabulary.
      at::Tensor numbers = at::arange(tokens, at::kLong).remainder(9).mul(13).add(5);
      numbers.narrow(0, 500, 1500).fill_(17);
      const at::Tensor places = at::arange(tokens, at::kLong).remainder(50);
      const Pair ids{numbers, numbers.to(gpu())}, ids2{places, places.to(gpu())};
      const Pair dout = normal_pair({tokens, width}, near.type, "dout");
      Pair out = empty_pair({tokens, width}, near.type), dtable = ones_pair({rows, width}, sums_type(near.type));
      at::Tensor again = dtable.gpu.clone();
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        kernels::embedding_forward({.out = out.*side,
                                    .ids = ids.*side,
                                    .table = table.*side,
                                    .ids2 = ids2.*side,
                                    .table2 = second.*side,
                                    .first_row = 5});
        kernels::embedding_backward(dtable.*side, ids.*side, dout.*side, 5);
      }
      kernels::embedding_backward(again, ids.gpu, dout.gpu, 5);
      expect_near(out, near, "out");
      expect_near(dtable, near.type == at::kDouble ? near : types()[1], "dtable", 8);
      EXPECT_TRUE(same_bits(again.cpu(), dtable.gpu.cpu()));
      if (sums_type(near.type) == near.type) continue;
      // A table of 16 bits: the float one's sums, rounded once.
      at::Tensor narrow = at::ones({rows, width}, table.gpu.options());
      kernels::embedding_backward(narrow, ids.gpu, dout.gpu, 5);
      EXPECT_TRUE(same_bits(narrow.cpu(), dtable.gpu.to(near.type).cpu()));
    }
  });
}

/// Rows that end anywhere in a block's tile, lie in wider ones or begin at odd places, with numbers of no row.
TEST(GpuEmbedding, TakesRowsOfAnyWidthFromAnywhere) {
  for_every_type([](const Near& near) {
    for (const std::int64_t width : {1, 8, 17, 64, 768, 2048, 4104}) {
      for (const auto& [first, wider] : {std::pair{0, 0}, {8, 16}, {1, 3}}) {
        const Pair table = normal_pair({20, width + wider}, near.type, "table"),
                   second = normal_pair({7, width + wider}, near.type, "2");
        for (const std::int64_t tokens : {1, 37}) {
          SCOPED_TRACE(fmt::format("{} x {} from {} of {}", tokens, width, first, width + wider));
          const at::Tensor numbers = at::arange(tokens, at::kLong).mul(7).remainder(24).add(1);  // rows -2 to 21
          const at::Tensor places = at::arange(tokens, at::kLong).remainder(7);
          Pair one = empty_pair({tokens, width + wider}, near.type),
               two = empty_pair({tokens, width + wider}, near.type);
          for (const auto side : {&Pair::cpu, &Pair::gpu}) {
            const auto part = [&](const at::Tensor& whole) { return whole.narrow(1, first, width); };
            const at::Tensor ids = numbers.to((table.*side).device()), ids2 = places.to(ids.device()), none;
            const at::Tensor rows = part(table.*side), rows2 = part(second.*side);
            at::Tensor out = part((one.*side).fill_(-77)), out2 = part((two.*side).fill_(-77));
            kernels::embedding_forward(
                {.out = out, .ids = ids, .table = rows, .ids2 = none, .table2 = none, .first_row = 3});
            kernels::embedding_forward(
                {.out = out2, .ids = ids, .table = rows, .ids2 = ids2, .table2 = rows2, .first_row = 3});
          }
          expect_near(one, near, "one table");
          expect_near(two, near, "two tables");
        }
      }
    }
  });
}

TEST(GpuEmbedding, APlaceThatTheTableLacksIsNoNumber) {
  const Pair table = ones_pair({4, 16}, at::kBFloat16);
  Pair out = empty_pair({3, 16}, at::kBFloat16);
  kernels::embedding_forward({.out = out.gpu,
                              .ids = at::arange(3, at::kLong).to(gpu()),
                              .table = table.gpu,
                              .ids2 = at::arange(3, at::kLong).add(2).to(gpu()),
                              .table2 = table.gpu,
                              .first_row = 0});
  EXPECT_TRUE(out.gpu.narrow(0, 2, 1).isnan().all().item<bool>());
  EXPECT_TRUE(out.gpu.narrow(0, 0, 2).eq(2).all().item<bool>());
}

/// Groups that end before, with and behind the rows that a warp looks up together.
TEST(GpuEmbedding, GradientsOfGroupsOfAnySizeEqualTheCpu) {
  for_every_type([](const Near& near) {
    for (const std::int64_t width : {1, 8, 40, 1032}) {
      std::vector<std::int64_t> numbers;
      std::int64_t row = 0;
      for (const int size : {1, 7, 8, 9, 31, 32, 33, 64, 65, 1}) {
        for (int i = 0; i < size; ++i) numbers.push_back(row);
        ++row;
      }
      const auto tokens = static_cast<std::int64_t>(numbers.size());
      const at::Tensor sorted = at::from_blob(numbers.data(), {tokens}, at::kLong);
      const at::Tensor ids = sorted.index_select(0, at::arange(tokens, at::kLong).mul(101).remainder(tokens));
      const Pair dout = normal_pair({tokens, width}, near.type, "dout");
      Pair dtable = ones_pair({row - 1, width}, sums_type(near.type));  // the last group is of no row here
      for (const auto side : {&Pair::cpu, &Pair::gpu}) {
        kernels::embedding_backward(dtable.*side, ids.to((dout.*side).device()), dout.*side, 0);
      }
      expect_near(dtable, near.type == at::kDouble ? near : types()[1], "dtable", 8);
    }
  });
}

struct Turned {
  std::int64_t size, rotated, heads, first;  // `first`: numbers of a head before those that are turned
};

TEST(GpuRotary, EqualsTheCpu) {
  const std::vector<Turned> cases = {{6, 6, 2, 0},     {8, 8, 1, 0},     {64, 64, 3, 0},   {64, 64, 12, 0},
                                     {128, 128, 4, 0}, {128, 128, 5, 0}, {128, 64, 17, 0}, {80, 32, 9, 0},
                                     {64, 24, 8, 0},   {64, 32, 2, 2},   {64, 48, 11, 16}};
  for_every_type([&](const Near& near) {
    for (const auto pairs : {kernels::RotaryPairs::kHalves, kernels::RotaryPairs::kNeighbours}) {
      for (const Turned& c : cases) {
        for (const bool inverse : {false, true}) {
          SCOPED_TRACE(fmt::format("{} of {}, {} heads from {}", c.rotated, c.size, c.heads, c.first));
          const std::int64_t sequence = 11;
          const Pair all = normal_pair({2, sequence, (c.heads + 1) * c.size}, near.type, "x");
          const Pair angles = normal_pair({9, c.rotated / 2}, sums_type(near.type), "angles", 3);
          const at::Tensor places = at::arange(2 * sequence, at::kLong).remainder(9).view({2, sequence});
          for (const auto side : {&Pair::cpu, &Pair::gpu}) {
            // All heads but one: views of a fused projection.
            at::Tensor x = (all.*side).view({2, sequence, c.heads + 1, c.size}).narrow(2, 1, c.heads);
            x = x.narrow(3, c.first, c.size - c.first);
            kernels::rotary_(x, (angles.*side).cos(), (angles.*side).sin(), places.to(x.device()), pairs, inverse);
          }
          expect_near(all, near, "turned");
        }
      }
    }
  });
}

TEST(GpuRotary, APositionThatTheTablesLackIsNoNumber) {
  at::Tensor x = at::ones({1, 3, 5, 32}, at::TensorOptions(at::kBFloat16).device(gpu()));
  const at::Tensor angles = at::zeros({2, 8}, x.options().dtype(at::kFloat));
  const at::Tensor places = at::arange(3, at::kLong).view({1, 3}).to(gpu());
  kernels::rotary_(x, angles.cos(), angles.sin(), places, kernels::RotaryPairs::kHalves, false);
  EXPECT_TRUE(x.narrow(1, 2, 1).narrow(3, 0, 16).isnan().all().item<bool>());
  EXPECT_TRUE(x.narrow(1, 2, 1).narrow(3, 16, 16).eq(1).all().item<bool>());
  EXPECT_TRUE(x.narrow(1, 0, 2).eq(1).all().item<bool>());
}

/// Rows that begin with any draw of a block of four, in whole vectors or not, and beside numbers that stay.
TEST(GpuDropout, DropsWhatTheCpuDrops) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t width : {1, 4, 5, 8, 64, 768, 1001, 2048, 4104}) {
      const std::int64_t rows = 19;
      const at::Tensor all = normal_tensor({rows, width + 16}, type, "x");
      for (const std::int64_t first_column : {0, 1, 2, 3, 4, 8}) {
        for (const auto& [begin, wider] : {std::pair{0, 0}, {8, 16}, {1, 3}}) {
          const std::int64_t total = (first_column + width + 3) / 4 * 4 + (first_column == 8 ? 7 : 0);
          at::Tensor cpu = all.narrow(1, 0, width + wider).clone(at::MemoryFormat::Contiguous), there = cpu.to(gpu());
          at::Tensor some = cpu.narrow(1, begin, width), some_there = there.narrow(1, begin, width);
          const at::Tensor index = at::arange(rows, at::kLong).mul(123456789012);
          const kernels::Dropout rule{.stream = Random(5, "dropout/test"), .p = 0.3};
          kernels::dropout_(some, rule, index, first_column, total);
          kernels::dropout_(some_there, rule, index.to(gpu()), first_column, total);
          EXPECT_TRUE(same_bits(there.cpu(), cpu))
              << c10::toString(type) << " " << width << " " << first_column << " " << begin;
        }
      }
    }
  }
}

TEST(GpuDropout, TakesTheWordsThatLieThere) {
  const kernels::Dropout given{.stream = Random(5, "dropout/test"), .p = 0.3};
  auto numbers = kernels::dropout_words(given.stream);
  const at::Tensor words = at::from_blob(numbers.data(), {4}, at::kInt).to(gpu());
  const kernels::Dropout there{.stream = Random(6, "dropout/other"), .p = 0.3, .words = &words};
  for (const std::int64_t width : {768, 1001}) {
    const at::Tensor index = at::arange(37, at::kLong).to(gpu());
    at::Tensor x = normal_tensor({37, width}, at::kBFloat16, "x").to(gpu()), same = x.clone();
    kernels::dropout_(x, given, index, 0, width);
    kernels::dropout_(same, there, index, 0, width);
    EXPECT_TRUE(same_bits(x.cpu(), same.cpu())) << width;
  }
}

/// Sums of ones are exact, so that a vector left out or taken twice shows, wherever groups and pieces end.
TEST(GpuSquares, TakeEveryNumberOnce) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t count : {1, 1023, 8192, 8195, 16384, 16392, 20001, 32768, 3 * 32768 + 14341}) {
      for (const std::int64_t first : {0, 4}) {
        const at::Tensor x = at::ones({first + count}, at::TensorOptions(type).device(gpu())).narrow(0, first, count);
        EXPECT_EQ(kernels::sum_of_squares(x), static_cast<double>(count)) << c10::toString(type) << " " << first;
      }
    }
  }
}

TEST(GpuArguments, MustLieInOnePlace) {
  at::Tensor totals = at::zeros({8});
  const at::Tensor x = at::ones({4, 8}).to(gpu());
  EXPECT_THAT(kernels::refusal([&] { kernels::add_row_sum(totals, x); }), testing::HasSubstr("GPU 0"));
}

}  // namespace
}  // namespace trireme::gpu
