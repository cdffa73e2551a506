#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "trireme/models/model.h"

namespace trireme::models {
namespace {

struct Counted {
  double forward = 0, both = 0, again = 0;
};

Counted count(const spec::ModelShape& shape, std::int64_t batch, std::int64_t length, spec::RecomputeKind kind,
              const std::string& frozen = {}) {
  const auto model = build(shape, {.recompute = {.kind = kind}});
  for (nn::Param& param : model->params) param.trainable = frozen.empty() || !spec::matches(frozen, param.name);
  nn::initialise(model->params, nn::Precision::kFp32, 1);
  nn::Context context;
  context.sequence = nn::plain_sequence(batch, length);
  const at::Tensor ids = at::randint(shape.vocab_size, {batch, length}, at::kLong);
  nn::Tensors inputs{ids};
  if (shape.num_encoder_layers > 0) {
    context.source = nn::plain_sequence(batch, length + 3);
    inputs = {at::randint(shape.vocab_size, {batch, length + 3}, at::kLong), ids};
  }
  context.targets = ids;
  nn::Tape tape;
  model->forward(inputs, context, &tape);
  Counted counted{.forward = context.flops};
  model->backward(context, tape);
  counted.both = context.flops;
  counted.again = context.recomputed_flops;
  return counted;
}

/// The layers count what the shape's formula says: the figure that utilisation is told by is the figure that runs.
TEST(CountedFlops, AreThoseOfTheFormulaForEveryFamily) {
  for (const auto& [name, family] : spec::enum_names(std::type_identity<spec::Family>())) {
    const spec::ModelShape shape = tiny_shape(family);
    const std::int64_t batch = 2, length = 9, source = shape.num_encoder_layers > 0 ? length + 3 : 0;
    const double expected = static_cast<double>(batch) * spec::count_flops(shape, length, source).total();
    const Counted counted = count(shape, batch, length, spec::RecomputeKind::kNone);
    EXPECT_NEAR(counted.both, 3 * expected, 1e-9 * expected) << name;
    EXPECT_EQ(counted.again, 0);
  }
}

TEST(CountedFlops, TellWhatIsComputedAgainApart) {
  const spec::ModelShape shape = tiny_shape(spec::Family::kGpt2);
  const double batch = 2, once = batch * spec::count_flops(shape, 9).total();
  const spec::FlopCount parts = spec::count_flops(shape, 9);
  const Counted full = count(shape, 2, 9, spec::RecomputeKind::kFull);
  EXPECT_NEAR(full.both, 3 * once, 1e-9 * once);
  EXPECT_NEAR(full.again, batch * (parts.projections + parts.attention), 1e-9 * once);
  const Counted selective = count(shape, 2, 9, spec::RecomputeKind::kSelective);
  EXPECT_NEAR(selective.both, 3 * once, 1e-9 * once);
  EXPECT_NEAR(selective.again, batch * parts.attention, 1e-9 * once);
}

TEST(CountedFlops, LeaveOutTheWeightGradientsOfFrozenLayers) {
  const spec::ModelShape shape = tiny_shape(spec::Family::kGpt2);
  const spec::FlopCount parts = spec::count_flops(shape, 9);
  const Counted frozen = count(shape, 2, 9, spec::RecomputeKind::kNone, "layers.*");
  EXPECT_NEAR(frozen.both, 2 * (2 * parts.projections + 3 * parts.attention + 3 * parts.head), 1e-6);
}

}  // namespace
}  // namespace trireme::models
