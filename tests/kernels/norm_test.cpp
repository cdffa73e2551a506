#include "trireme/kernels/norm.h"

#include "tests/kernels/support.h"
#include "trireme/kernels/cpu/norm_table.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

struct Case {
  Norm norm;
  bool weight, bias, residual;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{NormKind::kLayer, 1e-5, false}, true, true, false}, {{NormKind::kLayer, 1e-5, false}, false, false, false},
      {{NormKind::kLayer, 1e-3, true}, true, true, true},   {{NormKind::kRms, 1e-6, false}, true, false, false},
      {{NormKind::kRms, 1e-6, true}, true, false, true},    {{NormKind::kRms, 1e-5, false}, false, true, true},
  };
  return all;
}

/// norm(x) * weight + bias in double, by the definition.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Norm& norm) {
  const at::Tensor centered = norm.kind == NormKind::kLayer ? x.sub(x.mean(-1, true)) : x;
  at::Tensor y = centered.mul(centered.square().mean(-1, true).add(norm.epsilon).rsqrt());
  if (weight.defined()) y = y.mul(norm.unit_offset ? weight.add(1) : weight);
  return bias.defined() ? y.add(bias) : y;
}

struct NormResult {
  at::Tensor y, sum, mean, rstd, dx, dweight, dbias;
};

NormResult run_norm(const Case& c, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                    const at::Tensor& bias, const at::Tensor& dy, const at::Tensor& dsum) {
  const auto sums = x.options().dtype(sums_type(x.scalar_type()));
  NormResult r;
  r.y = at::empty(x.sizes(), x.options());
  if (c.residual) r.sum = at::empty(x.sizes(), x.options());
  if (c.norm.kind == NormKind::kLayer) r.mean = at::empty({x.size(0)}, sums);
  r.rstd = at::empty({x.size(0)}, sums);
  norm_forward({x, residual, weight, bias, r.y, r.sum, r.mean, r.rstd}, c.norm);
  r.dx = at::empty(x.sizes(), x.options());
  r.dweight = at::ones({x.size(1)}, sums);  // to be added to
  r.dbias = at::ones({x.size(1)}, sums);
  norm_backward({dy, c.residual ? r.sum : x, weight, r.mean, r.rstd, dsum, r.dx, r.dweight, r.dbias}, c.norm);
  // Begun anew: what was there does not count.
  at::Tensor dx = at::empty_like(r.dx), begun = at::full({x.size(1)}, 77, sums), ones = at::ones({x.size(1)}, sums);
  norm_backward({dy, c.residual ? r.sum : x, weight, r.mean, r.rstd, dsum, dx, ones, begun, false, true}, c.norm);
  EXPECT_TRUE(same_bits(ones, r.dweight));
  expect_near(begun, r.dbias.sub(1), 1e-5, 1e-5, "dbias, begun");
  return r;
}

TEST(NormKernels, EqualTheDefinitionAndItsGradient) {
  for_every_type_and_set([](const Precision& precision) {
    for (const Case& c : cases()) {
      for (const auto [rows, width] : row_shapes()) {
        SCOPED_TRACE(
            fmt::format("[{}, {}] layer {} residual {}", rows, width, c.norm.kind == NormKind::kLayer, c.residual));
        const auto type = precision.type;
        const at::Tensor none, x = normal_tensor({rows, width}, type, "x");
        const at::Tensor residual = c.residual ? normal_tensor({rows, width}, type, "residual") : none;
        const at::Tensor weight = c.weight ? normal_tensor({width}, type, "weight") : none;
        const at::Tensor bias = c.bias ? normal_tensor({width}, type, "bias") : none;
        const at::Tensor dy = normal_tensor({rows, width}, type, "dy");
        const at::Tensor dsum = c.residual ? normal_tensor({rows, width}, type, "dsum") : none;
        const NormResult ours = run_norm(c, x, residual, weight, bias, dy, dsum);
        if (c.residual) {
          ASSERT_TRUE(same_bits(ours.sum, x.add(residual)));
        }

        at::Tensor in = wide(c.residual ? ours.sum : x), w, b;
        if (c.weight) w = wide(weight);
        if (c.bias) b = wide(bias);
        const at::Tensor y = plain_norm(in, w, b, c.norm);
        y.backward(wide(dy, false));
        at::Tensor dx = in.grad();
        if (c.residual) dx = dx.add(wide(dsum, false));
        // A row of one or three numbers can have nearly no spread, and then rstd magnifies what was rounded.
        const double few = width <= 3 ? 50 : 1;
        expect_near(ours.y, y, precision.relative, precision.absolute * 2 * few, "y");
        expect_near(ours.dx, dx, precision.relative, precision.absolute * 4 * few, "dx");
        const double sum_error = sums_type(type) == at::kDouble ? 1e-12 : 1e-5;
        if (c.weight) expect_near(ours.dweight, w.grad().add(1), sum_error, sum_error * 3, "dweight");
        if (c.bias) expect_near(ours.dbias, b.grad().add(1), sum_error, sum_error * 3, "dbias");
      }
    }
  });
}

#if defined(__x86_64__)
TEST(NormKernels, AreCompiledForEachInstructionSet) {
  EXPECT_EQ(kNormPlain.lanes, 4);
  EXPECT_EQ(kNormV3.lanes, 8);
  EXPECT_EQ(kNormV4.lanes, 16);
  EXPECT_EQ(kNormV4Bf16.lanes, 16);
}
#endif

TEST(NormKernels, TakeFloatWeightsForHalfRows) {
  const at::Tensor none, x = normal_tensor({5, 48}, at::kBFloat16, "x");
  const at::Tensor weight = normal_tensor({48}, at::kFloat, "w");
  at::Tensor y = at::empty_like(x), nothing;
  norm_forward({x, none, weight, none, y, nothing, nothing, nothing}, {});
  expect_near(y, plain_norm(wide(x, false), wide(weight, false), none, {}), 0.0040, 3e-6, "y");
}

TEST(NormKernels, TakeRowsThatLieApartAndWriteOverTheResidualsGradient) {
  for_every_type_and_set([](const Precision& precision) {
    const Case c{{NormKind::kLayer, 1e-5, false}, true, true, false};
    const at::Tensor none, x = normal_tensor({9, 37}, precision.type, "x");
    const at::Tensor weight = normal_tensor({37}, precision.type, "w"), bias = normal_tensor({37}, precision.type, "b");
    const at::Tensor dy = normal_tensor({9, 37}, precision.type, "dy"),
                     dsum = normal_tensor({9, 37}, precision.type, "s");
    const NormResult expected = run_norm(c, x, none, weight, bias, dy, dsum);
    at::Tensor y = apart(x), nothing, dx = apart(dsum), dweight = at::ones_like(expected.dweight),
               dbias = at::ones_like(expected.dbias), mean = at::empty_like(expected.mean),
               rstd = at::empty_like(expected.rstd);
    norm_forward({apart(x), none, weight, bias, y, nothing, mean, rstd}, c.norm);
    norm_backward({apart(dy), apart(x), weight, mean, rstd, dx, dx, dweight, dbias}, c.norm);
    EXPECT_TRUE(same_bits(y, expected.y));
    EXPECT_TRUE(same_bits(dx, expected.dx));
    EXPECT_TRUE(same_bits(dweight, expected.dweight));
  });
}

TEST(NormKernels, WriteOverWhatTheHeaderAllows) {
  for_every_type_and_set([](const Precision& precision) {
    for (const Case& c : {cases()[2], cases()[4]}) {
      const at::Tensor none, x = normal_tensor({9, 37}, precision.type, "x"), b = c.bias ? x[0] : none;
      const at::Tensor r = normal_tensor({9, 37}, precision.type, "r"), w = normal_tensor({37}, precision.type, "w");
      const at::Tensor dy = normal_tensor({9, 37}, precision.type, "dy");
      const NormResult expected = run_norm(c, x, r, w, b, dy, none);
      at::Tensor nothing, y = x.clone(), sum = r.clone(), over_dy = dy.clone(), over_x = expected.sum.clone();
      norm_forward({y, sum, w, b, y, sum, nothing, nothing}, c.norm);  // y over x, the sum over the residual
      EXPECT_TRUE(same_bits(y, expected.y) && same_bits(sum, expected.sum));
      norm_backward({over_dy, sum, w, expected.mean, expected.rstd, none, over_dy, nothing, nothing}, c.norm);
      norm_backward({dy, over_x, w, expected.mean, expected.rstd, none, over_x, nothing, nothing}, c.norm);
      EXPECT_TRUE(same_bits(over_dy, expected.dx) && same_bits(over_x, expected.dx));
    }
  });
}

TEST(NormKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for_every_type_and_set([](const Precision& precision) {
    const at::Tensor none, x = normal_tensor({1031, 100}, precision.type, "x");
    const at::Tensor weight = normal_tensor({100}, precision.type, "w"),
                     dy = normal_tensor({1031, 100}, precision.type, "dy");
    const auto once = [&] { return run_norm(cases()[0], x, none, weight, weight, dy, none); };
    const NormResult one = with_threads(1, once), two = with_threads(2, once), three = with_threads(3, once);
    for (const NormResult* other : {&two, &three}) {
      EXPECT_TRUE(same_bits(one.y, other->y) && same_bits(one.dx, other->dx));
      EXPECT_TRUE(same_bits(one.dweight, other->dweight) && same_bits(one.dbias, other->dbias));
    }
  });
}

TEST(NormKernels, PassNanAndInfinityOnWithinTheirRowOnly) {
  for_every_type_and_set([](const Precision& precision) {
    at::Tensor none, nothing, x = normal_tensor({4, 33}, precision.type, "x");
    x[1][5] = std::nan("");
    x[2][32] = INFINITY;
    at::Tensor y = at::empty_like(x);
    for (const auto kind : {NormKind::kLayer, NormKind::kRms}) {
      norm_forward({x, none, none, none, y, nothing, nothing, nothing}, {.kind = kind});
      EXPECT_TRUE(y[1].isnan().all().item<bool>());
      EXPECT_TRUE(y[2][32].isnan().item<bool>());
      EXPECT_TRUE(y[0].isfinite().all().item<bool>() && y[3].isfinite().all().item<bool>());
    }
  });
}

TEST(NormKernels, KeepTheirAccuracyFarFromZero) {
  // One pass over x and x^2 would lose all digits here.
  at::Tensor none, nothing, x = normal_tensor({3, 512}, at::kFloat, "x").add(4096), y = at::empty_like(x);
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    norm_forward({x, none, none, none, y, nothing, nothing, nothing}, {});
    expect_near(y, plain_norm(wide(x, false), none, none, {}), 1e-4, 5e-4, "y");
  }
}

TEST(NormKernels, SayWhatIsWrong) {
  const at::Tensor none, x = at::zeros({4, 6});
  at::Tensor nothing, y = at::zeros({4, 5}), half = at::zeros({4, 6}, at::kHalf);
  EXPECT_EQ(refusal([&] {
              norm_forward({x, none, none, none, y, nothing, nothing, nothing}, {});
            }),
            "norm_forward: y, float [4, 5] must be of x's type and shape, float in 4 rows of 6");
  EXPECT_THAT(refusal([&] {
                norm_forward({x, none, none, none, half, nothing, nothing, nothing}, {});
              }),
              HasSubstr("y, half [4, 6]"));
  EXPECT_THAT(refusal([&] {
                norm_forward({x.t(), none, none, none, y, nothing, nothing, nothing}, {});
              }),
              HasSubstr("x, float [6, 4] has strides [1, 6]"));
  at::Tensor dx = at::zeros({4, 6});
  EXPECT_THAT(refusal([&] {
                norm_backward({x, x, none, none, none, none, dx, nothing, nothing}, {});
              }),
              HasSubstr("mean and rstd are undefined"));
}

}  // namespace
}  // namespace trireme::kernels
