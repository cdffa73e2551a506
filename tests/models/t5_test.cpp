// T5 and Switch Transformer: against what the reference computed with the same folder, out again, and counted.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/errors.h"
#include "tests/formats/samples.h"
#include "tests/models/support.h"
#include "trireme/spec/parameters.h"

namespace trireme::models {
namespace {

using testing::HasSubstr;

/// The encoder reads the tokens, and the decoder is to give them again.
struct Copying {
  at::Tensor ids = fixture_ids(), start = at::zeros_like(ids);
  nn::Context context = context_for(ids);
  Copying() {
    start.narrow(1, 1, ids.size(1) - 1).copy_(ids.narrow(1, 0, ids.size(1) - 1));
    context.source = context.sequence;
  }
};

at::Tensor copied_logits(Model& model) {
  Copying copying;
  return model.forward({copying.ids, copying.start}, copying.context, nullptr);
}

TEST(T5Families, HaveTheReferencesLogitsLossAndGradients) {
  for (const std::string& name : kT5Fixtures) {
    SCOPED_TRACE(name);
    const Expected expected(name);
    const auto model = load_published(formats::HfDirectory(fixture(name)), {});
    EXPECT_EQ(model->shape.experts.used(), name == "switch");
    EXPECT_LE(largest(copied_logits(*model), expected["logits"]), 5e-5);
    Copying copying;
    copying.context.targets = copying.ids;
    EXPECT_NEAR(train_once(*model, {copying.ids, copying.start}, copying.context), expected["loss"].item<double>(),
                5e-6);
    expect_published_gradients(*model, name, expected);
    EXPECT_EQ(model->params.elements(), spec::count_parameters(model->shape).total());
  }
}

class T5Folder : public OwnFolder {};

TEST_F(T5Folder, ComesBackAsItWasWritten) {
  for (const std::string& name : kT5Fixtures) {
    SCOPED_TRACE(name);
    const auto model = load_published(formats::HfDirectory(fixture(name)), {});
    save_published(*model, folder_ / name, formats::Dtype::kF32);
    const auto again = load_published(formats::HfDirectory(folder_ / name), {});
    EXPECT_EQ(again->shape, model->shape);
    EXPECT_TRUE(at::equal(copied_logits(*again), copied_logits(*model)));
  }
}

TEST(T5Families, ListTheParametersThatTheyHave) {
  for (const std::string& name : kT5Fixtures) {
    SCOPED_TRACE(name);
    const auto model = load_published(formats::HfDirectory(fixture(name)), {});
    std::map<std::string, std::int64_t> listed, held;
    for (const spec::ParameterShape& one : spec::list_parameters(model->shape))
      listed[one.name] = one.rows * std::max<std::int64_t>(1, one.columns);
    for (const nn::Param& param : model->params) held[param.name] = param.elements();
    EXPECT_EQ(listed, held);
  }
}

/// A table serves all layers of its stack: each of them adds to its gradient.
TEST(T5Families, ShareOneTableAStack) {
  const auto model = load_published(formats::HfDirectory(fixture("switch")), {});
  EXPECT_EQ(model->params.at("encoder.relative_bias.weight").uses, 4);
  EXPECT_EQ(model->params.at("relative_bias.weight").uses, 2);
}

TEST(T5Families, NameWhatDoesNotFit) {
  const auto problem = [](const std::function<void(spec::ModelShape&)>& change) {
    spec::ModelShape shape = spec::family_shape(spec::Family::kT5);
    change(shape);
    std::string text;
    for (const auto& one : spec::find_problems(shape)) text += one.key + ": " + one.reason + " -> " + one.hint + "\n";
    return text;
  };
  EXPECT_EQ(problem([](auto&) {}), "");
  EXPECT_THAT(problem([](auto& s) { s.num_encoder_layers = 0; }), HasSubstr("family \"t5\" needs an encoder"));
  EXPECT_THAT(problem([](auto& s) { s.position_kind = spec::PositionKind::kRotary; }),
              HasSubstr("set model.position_kind = \"relative\""));
  EXPECT_THAT(problem([](auto& s) { s.relative_attention_num_buckets = 6; }),
              HasSubstr("set model.relative_attention_num_buckets = 4"));
  EXPECT_THAT(problem([](auto& s) { s.relative_attention_max_distance = 16; }),
              HasSubstr("set model.relative_attention_max_distance = 64"));
  EXPECT_THAT(problem([](auto& s) { s.attention_dropout = 0.1; }), HasSubstr("set model.attention_dropout = 0"));
}

}  // namespace
}  // namespace trireme::models
