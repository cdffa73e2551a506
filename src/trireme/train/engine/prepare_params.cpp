// What the recipe says of parameters before training: which are frozen, what types they and their GEMMs have, and which
// numbers they begin with.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/init_weights.h"
#include "trireme/kernels/fp8.h"
#include "trireme/spec/parameters.h"
#include "trireme/train/engine/device.h"
#include "trireme/train/engine/freeze.h"
#include "trireme/train/engine/train_state.h"

namespace trireme::train {
namespace {

/// Matrices of blocks, stacks of experts' among them, but for those that the recipe keeps.
void choose_gemms(nn::Params& params, const spec::PrecisionConfig& precision) {
  if (precision.gemm == spec::GemmPrecision::kSame) return;
  for (nn::Param& param : params) {
    const bool kept = std::any_of(precision.gemm_exclude.begin(), precision.gemm_exclude.end(),
                                  [&](const auto& pattern) { return spec::matches(pattern, param.name); });
    if (!spec::takes_gemm_precision(param.name) || kept || param.placement.shape.size() < 2) continue;
    std::vector<std::int64_t> sizes = nn::local_shape(param.placement);
    if (sizes.size() == 3) sizes.erase(sizes.begin());  // one expert's
    const auto scaling = precision.gemm == spec::GemmPrecision::kFp8Blocks ? kernels::Fp8Scaling::kBlocks128x128
                                                                           : kernels::Fp8Scaling::kTensor;
    TRIREME_CHECK(kernels::takes_fp8(scaling, sizes[0], sizes[1]),
                  "{} is {} x {} on a rank, which FP8 GEMMs do not take", param.name, sizes[0], sizes[1]);
    param.gemm = precision.gemm;
  }
}

/// Vectors always have masters: they are few numbers. So are tables beside a large model's blocks. Gradients of 16 bits
/// have all but vectors, which add up over all tokens and cost no memory.
void choose_types(nn::Params& params, const spec::PrecisionConfig& precision) {
  for (nn::Param& param : params) {
    const std::size_t dimensions = param.placement.shape.size();
    const bool inside = param.name.starts_with("layers.") || param.name.starts_with("encoder.");
    const bool tables = precision.master_weights == spec::MasterWeights::kVectors;
    // Routers choose by small differences: they keep their masters too.
    const bool matrix = dimensions >= 2 && !param.name.ends_with(".router.weight");
    param.has_master = precision.master_weights == spec::MasterWeights::kFp32 || !matrix || !(inside || tables);
    param.narrow_gradient = spec::has_narrow_gradients(precision) && dimensions >= 2;
  }
}

}  // namespace

PrepareParams preparation(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world) {
  PrepareParams prepare;
  prepare.freeze = [&recipe, &shape](nn::Params& params, const std::vector<std::string>& all) {
    const std::set<std::string> frozen = frozen_params(recipe.train.freeze, shape, all);
    for (nn::Param& param : params) param.trainable = !frozen.contains(param.name);
    choose_gemms(params, recipe.precision);
    choose_types(params, recipe.precision);
  };
  prepare.fill = [&recipe, &shape, &world](nn::Params& params) {
    const at::Device device = device_of(recipe, world);
    if (!recipe.model.init_from) {
      nn::initialise(params, recipe.precision.compute, static_cast<std::uint64_t>(recipe.run.seed), device);
      return;
    }
    checkpoint::InitReport report;
    if (recipe.model.init_partial || recipe.model.init_resize_vocab || recipe.model.init_dense) {
      nn::initialise(params, recipe.precision.compute, static_cast<std::uint64_t>(recipe.run.seed), device);
      report = checkpoint::fill_what_fits(recipe.model, shape, params);
    } else {
      nn::allocate(params, recipe.precision.compute, device);
      const checkpoint::StoredWeights weights(*recipe.model.init_from, shape);
      weights.fill(params);  // this rank's part alone
      report = {.what = weights.what(), .elements = weights.model().params.elements()};
      for ([[maybe_unused]] const nn::Param& param : weights.model().params) ++report.loaded;
    }
    if (world.rank() != 0) return;
    log_info("{}", report.text());
    if (const auto warning = checkpoint::longer_context(shape, *recipe.model.init_from); !warning.empty())
      log_warn("{}", warning);
  };
  return prepare;
}

}  // namespace trireme::train
