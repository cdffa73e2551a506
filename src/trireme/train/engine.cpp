#include "trireme/train/engine.h"

#include <fmt/format.h>

#include "trireme/base/error.h"

namespace trireme::train {

models::BuildOptions build_options(const spec::Recipe& recipe) {
  return {.recompute = {.kind = recipe.train.recompute, .every = recipe.train.recompute_every}};
}

std::unique_ptr<Engine> make_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                    std::int64_t length, const PrepareParams& prepare) {
  const spec::LayoutConfig& layout = recipe.layout;
  // What cannot be done yet must not silently be done otherwise.
  if (layout.tp > 1 || layout.cp > 1 || layout.zero > 0 || layout.sequence_parallel) {
    throw ConfigError(fmt::format("the recipe asks for tp {}, cp {} and ZeRO-{}; training so far spreads a model over "
                                  "pipeline stages and copies only",
                                  layout.tp, layout.cp, layout.zero),
                      "set layout.tp = 1, layout.cp = 1 and layout.zero = 0");
  }
  const int copies = layout.dp.value_or(world.size() / layout.pp);
  if (copies * layout.pp != world.size()) {
    throw ConfigError(fmt::format("layout.pp {} x layout.dp {} = {}, but there are {} ranks", layout.pp, copies,
                                  layout.pp * copies, world.size()),
                      world.size() % layout.pp == 0 ? "leave layout.dp out: it follows from the ranks"
                                                    : fmt::format("start {} ranks", layout.pp * std::max(1, copies)));
  }
  return layout.pp > 1 ? make_pipeline_engine(recipe, shape, world, length, prepare)
                       : make_replica_engine(recipe, shape, world, length, prepare);
}

}  // namespace trireme::train
