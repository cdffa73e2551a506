#include "trireme/train/engine/engine.h"

namespace trireme::train {

models::BuildOptions build_options(const spec::Recipe& recipe) {
  models::BuildOptions options{.recompute = {.kind = recipe.train.recompute, .every = recipe.train.recompute_every}};
  // Each chunk of logits reads and writes the whole gradient of the head: a GPU has room for few large ones.
  if (recipe.run.device == spec::DeviceKind::kCuda) options.logits_chunk_bytes = std::int64_t{1} << 30;
  options.recompute_norms = recipe.train.recompute_norms;
  options.save_mlp_activations = recipe.train.save_mlp_activations;
  options.deterministic_attention = recipe.precision.deterministic_attention;
  return options;
}

AnyEngine make_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                      std::int64_t length, const PrepareParams& prepare) {
  return recipe.layout.pp > 1 ? make_pipeline_engine(recipe, shape, world, length, prepare)
                              : make_replica_engine(recipe, shape, world, length, prepare);
}

}  // namespace trireme::train
