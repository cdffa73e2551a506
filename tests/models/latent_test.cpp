// Models with latent attention and multi-token prediction: what is counted is what is built and computed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "trireme/nn/multi_token.h"
#include "trireme/spec/parameters.h"

namespace trireme::models {
namespace {

/// A small DeepSeek-V3 without experts.
spec::ModelShape latent_shape(std::int64_t q_lora_rank, std::int64_t mtp_depth) {
  spec::ModelShape shape = tiny_shape(spec::Family::kLlama);
  shape.num_kv_heads = shape.num_heads;
  shape.mla = {.q_lora_rank = q_lora_rank, .kv_lora_rank = 10, .qk_rope_head_dim = 4, .v_head_dim = 5};
  shape.rotary.scaling = spec::RotaryScaling::kYarn;
  shape.rotary.factor = 4;
  shape.rotary.original_positions = 12;
  shape.rotary.mscale = shape.rotary.mscale_all_dim = 1;
  shape.mtp_depth = mtp_depth;
  return shape;
}

std::vector<spec::ModelShape> shapes() {
  std::vector<spec::ModelShape> out;
  for (const std::int64_t q_lora_rank : {14, 0}) {
    for (const std::int64_t mtp_depth : {0, 1, 2}) out.push_back(latent_shape(q_lora_rank, mtp_depth));
  }
  out.push_back(latent_shape(14, 1));
  out.back().tied = true;
  out.push_back(tiny_shape(spec::Family::kQwen3));
  out.back().mtp_depth = 2;
  return out;
}

nn::Context latent_context(const spec::ModelShape& shape, const at::Tensor& ids) {
  nn::Context context = context_for(ids);
  context.training = true;
  context.targets = next_tokens(ids);
  nn::shift_tokens(ids, context, shape.mtp_depth);
  return context;
}

TEST(LatentModels, HaveTheParametersThatAreListedAndCounted) {
  for (const spec::ModelShape& shape : shapes()) {
    const auto model = build(shape);  // checks the count by itself
    const std::vector<spec::ParameterShape> listed = spec::list_parameters(shape);
    ASSERT_EQ(model->params.size(), listed.size());
    std::size_t i = 0;
    for (const nn::Param& param : model->params) {
      EXPECT_EQ(param.name, listed[i].name);
      EXPECT_EQ(param.placement.shape.at(0), listed[i].rows) << param.name;
      if (param.placement.shape.size() == 2) {
        EXPECT_EQ(param.placement.shape.at(1), listed[i].columns) << param.name;
      }
      ++i;
    }
  }
}

TEST(LatentModels, ComputeTheFlopsOfTheFormula) {
  for (const spec::ModelShape& shape : shapes()) {
    const auto model = build(shape);
    nn::initialise(model->params, nn::Precision::kFp32, 1);
    const at::Tensor ids = some_ids(2, 9, shape.vocab_size, 1);
    nn::Context context = latent_context(shape, ids);
    nn::Tape tape;
    model->forward({ids}, context, &tape);
    model->backward(context, tape);
    const double expected = 2 * spec::count_flops(shape, 9).total();
    EXPECT_NEAR(context.flops, 3 * expected, 1e-9 * expected);
    EXPECT_EQ(context.losses.size(), 1u + static_cast<std::size_t>(shape.mtp_depth));
  }
}

TEST(LatentModels, RecomputeToTheSameBits) {
  const spec::ModelShape shape = latent_shape(14, 2);
  const at::Tensor ids = some_ids(2, 14, shape.vocab_size, 1);
  std::map<std::string, at::Tensor> plain;
  for (const auto kind : {nn::RecomputeKind::kNone, nn::RecomputeKind::kSelective, nn::RecomputeKind::kFull}) {
    for (const bool norms : {false, true}) {
      const auto model = build(shape, {.recompute = {.kind = kind}, .recompute_norms = norms});
      fill(*model, nn::Precision::kFp32);
      nn::Context context = latent_context(shape, ids);
      train_once(*model, {ids}, context);
      for (nn::Param& param : model->params) {
        if (plain.count(param.name) == 0) plain[param.name] = param.gradient.clone();
        EXPECT_TRUE(at::equal(param.gradient, plain.at(param.name))) << param.name;
      }
    }
  }
}

TEST(LatentModels, LearnWithFurtherTokens) {
  const spec::ModelShape shape = latent_shape(14, 1);
  const auto model = build(shape);
  nn::initialise(model->params, nn::Precision::kFp32, 1);
  const at::Tensor ids = some_ids(2, 14, 7, 1);
  double first = 0, last = 0, first_further = 0, last_further = 0;
  for (int step = 0; step < 60; ++step) {
    nn::Context context = latent_context(shape, ids);
    train_once(*model, {ids}, context);
    last = nn::sum_of(context.losses), last_further = nn::sum_of(context.losses, "mtp_1");
    if (step == 0) first = last, first_further = last_further;
    for (nn::Param& param : model->params) {
      param.master.sub_(param.gradient, 0.5);
      nn::publish(param);
    }
  }
  EXPECT_LT(last, 0.8 * first);
  EXPECT_LT(last_further, 0.8 * first_further);
}

}  // namespace
}  // namespace trireme::models
