#include "trireme/train/engine/freeze.h"

#include <gmock/gmock.h>

#include "tests/errors.h"
#include "tests/train/support.h"

namespace trireme::train {
namespace {

using spec::Family;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::set<std::string> frozen(Family family, const std::vector<std::string>& patterns) {
  const spec::ModelShape shape = model_shape(small_recipe(family));
  std::vector<std::string> all;
  const auto skeleton = models::build(shape);
  for (const nn::Param& param : skeleton->params) all.push_back(param.name);
  return frozen_params(patterns, shape, all);
}

TEST(Freeze, PublishedNamesMeanTheirParameters) {
  EXPECT_EQ(frozen(Family::kLlama, {"model.layers.0.*"}), frozen(Family::kLlama, {"layers.0.*"}));
  EXPECT_EQ(frozen(Family::kGpt2, {"transformer.h.1.*"}), frozen(Family::kGpt2, {"layers.1.*"}));
  EXPECT_EQ(frozen(Family::kGpt2, {"h.1.*"}), frozen(Family::kGpt2, {"layers.1.*"})) << "files of the bare body";
  EXPECT_THAT(frozen(Family::kLlama, {"model.embed_tokens.*", "model.norm.weight"}),
              ElementsAre("embedding.tokens.weight", "norm.weight"));
}

TEST(Freeze, AFusedParameterIsFrozenAsAWhole) {
  EXPECT_THAT(
      words_of([] { frozen(Family::kLlama, {"model.layers.0.self_attn.q_proj.weight"}); }),
      AllOf(HasSubstr("q_proj.weight is only a part of the parameter layers.0.attention.qkv.weight"),
            HasSubstr("add \"model.layers.0.self_attn.k_proj.weight\", \"model.layers.0.self_attn.v_proj.weight\"")));
  EXPECT_THAT(frozen(Family::kLlama, {"*.0.self_attn.q_proj.*", "*.0.self_attn.k_proj.*", "*.0.self_attn.v_proj.*"}),
              ElementsAre("layers.0.attention.qkv.weight"));
}

TEST(Freeze, APatternThatMatchesNothingListsWhatThereIs) {
  EXPECT_THAT(words_of([] { frozen(Family::kLlama, {"layer.0.*"}); }),
              AllOf(HasSubstr("no parameter is called \"layer.0.*\""), HasSubstr("embedding.tokens.weight"),
                    HasSubstr("layers.*.attention.qkv.weight"), HasSubstr("as Hugging Face names them"),
                    HasSubstr("model.layers.*.self_attn.q_proj.weight")));
  // A family that nobody publishes has our names only.
  EXPECT_THAT(words_of([] { frozen(Family::kTransformer, {"nothing"}); }),
              AllOf(HasSubstr("there are "), testing::Not(HasSubstr("Hugging Face"))));
}

}  // namespace
}  // namespace trireme::train
