// Layers that are streamed to a GPU: the tokens of a model that is there as a whole.
#include "trireme/serve/weight_stream.h"

#include <gtest/gtest.h>

#include "tests/files.h"
#include "tests/gpu/support.h"
#include "trireme/comm/rank.h"
#include "trireme/formats/safetensors.h"
#include "trireme/models/published.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/rank_model.h"

namespace trireme::gpu {
namespace {

class GpuStreams : public OwnFolder {
 protected:
  /// Its bytes in fp32.
  std::int64_t write_model(std::int64_t layers) {
    spec::ModelShape shape = spec::family_shape(spec::Family::kLlama);
    shape.num_layers = layers, shape.hidden_size = 128, shape.num_heads = 4, shape.num_kv_heads = 2;
    shape.head_dim = 32, shape.ffn_size = 384, shape.max_seq_len = 256, shape.vocab_size = 320;
    shape.num_encoder_layers = 0;
    const auto model = models::build(shape);
    nn::initialise(model->params, nn::Precision::kFp32, 5);
    for (nn::Param& param : model->params) {
      if (param.placement.shape.size() == 2)
        param.value.copy_(normal_tensor(param.value.sizes(), at::kFloat, param.name, 0.15));
    }
    models::save_published(*model, folder_ / "model", formats::Dtype::kF32);
    return 4 * model->params.elements();
  }
  serve::TokenLists tokens(std::int64_t arena, serve::GeneratePrecision precision) {
    const serve::GenerateRequest request{.model = folder_ / "model",
                                         .prompts = {{1, 2, 3}, {9}, {4, 8, 15, 16, 23, 42, 7, 7, 7}, {60, 1}},
                                         .tokens = 11,
                                         .precision = precision,
                                         .device = spec::DeviceKind::kCuda,
                                         .weight_arena_bytes = arena,
                                         .batch = 3};
    serve::TokenLists added;
    comm::run_ranks(1, [&](comm::Rank& rank) { added = serve::generate(request, rank.world()); });
    return added;
  }
};

TEST_F(GpuStreams, AModelFourTimesTheArenaGivesTheSameTokens) {
  const std::int64_t bytes = write_model(24);
  for (const auto& [precision, whole] :
       {std::pair{serve::GeneratePrecision::kFp32, bytes}, {serve::GeneratePrecision::kBf16, bytes / 2}}) {
    const serve::TokenLists expected = tokens(0, precision);
    for (const std::int64_t part : {4, 3, 2}) EXPECT_EQ(tokens(whole / part, precision), expected) << part;
    EXPECT_EQ(tokens(2 * whole, precision), expected) << "everything stays";
  }
}

TEST_F(GpuStreams, ReadsEachLayerEveryTimeWhereTheHostHasNoRoomForIt) {
  const std::int64_t bytes = write_model(12);
  comm::run_ranks(1, [&](comm::Rank& rank) {
    serve::ModelRequest request{.model = folder_ / "model"};
    request.device = spec::DeviceKind::kCuda;
    request.weight_arena_bytes = bytes / 3;
    const auto model = serve::open_rank_model(request, rank.world());
    const auto plan = serve::plan_stream(serve::stream_units(model->model(), 4), bytes / 3);
    const auto run = [&](std::int64_t pinned) {
      serve::WeightStream stream(model->model(), plan, model->opened.weights,
                                 {.device = gpu(), .pinned_bytes = pinned});
      serve::InferenceEngine engine(model->model(), {.kv_tokens = 64, .cuda_graphs = false, .weights = &stream});
      std::vector<std::int64_t> made;
      EXPECT_EQ(engine.add({.id = 1,
                            .prompt = {1, 2, 3},
                            .max_new_tokens = 9,
                            .on_token = [&](const serve::GeneratedToken& out) { made.push_back(out.token); }}),
                std::nullopt);
      while (!engine.idle()) engine.step();
      EXPECT_GE(stream.totals().bytes, 8 * plan.streamed_bytes);
      return made;
    };
    const auto expected = run(bytes);
    EXPECT_EQ(expected.size(), 9U);
    EXPECT_EQ(run(0), expected);
    EXPECT_EQ(run(bytes / 6), expected) << "some of them";
  });
}

}  // namespace
}  // namespace trireme::gpu
