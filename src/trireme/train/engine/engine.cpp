#include "trireme/train/engine/engine.h"

#include "trireme/base/error.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/plan/run_setup.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {
namespace {

/// What a block saves of a micro-batch is the planner's to say, which measured bytes are held against.
nn::Recompute recompute_of(const spec::Recipe& recipe) {
  nn::Recompute recompute{.kind = recipe.train.recompute, .every = recipe.train.recompute_every};
  if (recompute.kind != spec::RecomputeKind::kBudget) return recompute;
  const spec::ModelShape shape = model_shape(recipe);
  const auto cost = [&](bool encoder) {
    const spec::BlockBytes block = plan::block_bytes(recipe, shape, encoder);
    return nn::BlockCost{.saved = block.saved, .input = block.input};
  };
  recompute.block = cost(false);
  if (shape.num_encoder_layers > 0) recompute.encoder_block = cost(true);
  recompute.budget = recipe.train.recompute_gb.value() * 1e9;
  return recompute;
}

}  // namespace

layout::AxisNames row_axes(const layout::Mesh& mesh) {
  return mesh.size(nn::kContextAxis) > 1 ? layout::AxisNames{nn::kContextAxis} : layout::AxisNames{};
}

parallel::FirstMicroOptions Engine::first_micro() { return {.rows = row_axes(mesh()), .experts = parts_.expert_axes}; }

StepSums SingleStepEngine::compute_from(const NextBatch&, const MakeContext&) {
  throw InternalError("this engine's ranks share micro-batches: none can be taken by another");
}
StepSums SingleStepEngine::compute_alone(std::vector<data::Batch>&, const MakeContext&) {
  throw InternalError("this engine's ranks hold parts of a model: none can compute alone");
}

models::BuildOptions build_options(const spec::Recipe& recipe) {
  models::BuildOptions options{.recompute = recompute_of(recipe)};
  options.logits_chunk_bytes = spec::logits_chunk_bytes(recipe.run.device);
  options.partition_activations = recipe.train.partition_activations;
  options.recompute_norms = recipe.train.recompute_norms;
  options.save_mlp_activations = recipe.train.save_mlp_activations;
  options.deterministic_attention = recipe.precision.deterministic_attention;
  return options;
}

models::BuildOptions cut_options(const spec::Recipe& recipe) {
  models::BuildOptions options = build_options(recipe);
  if (nn::plans_chains(options.recompute.kind)) options.recompute = {.kind = spec::RecomputeKind::kFull};
  return options;
}

AnyEngine make_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                      std::int64_t length, const PrepareParams& prepare) {
  return recipe.layout.pp > 1 ? make_pipeline_engine(recipe, shape, world, length, prepare)
                              : make_replica_engine(recipe, shape, world, length, prepare);
}

}  // namespace trireme::train
