#include "trireme/train/engine/device.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/spec/model_shape.h"

namespace trireme::train {

c10::Device device_of(const spec::Recipe& recipe, comm::Group& world) {
  return parallel::device_of(recipe.run.device, world);
}

c10::Device init_device_exchange(const spec::Recipe& recipe, comm::Group& world) {
  return parallel::init_device_exchange(recipe.run.device, world);
}

void raise_gpu_full(const c10::OutOfMemoryError& error, const spec::ModelShape& shape, spec::Precision precision,
                    const device::RankMemory& memory) {
  const double parameters = static_cast<double>(spec::count_parameters(shape).total());
  const double width = precision == spec::Precision::kFp64 ? 8 : 4;
  const bool narrow = precision == spec::Precision::kBf16 || precision == spec::Precision::kFp16;
  // CUDA's own words are the first sentences; what follows is advice on its allocator.
  const std::string words = error.what_without_backtrace();
  throw ConfigError(
      fmt::format("GPU memory is full: {}\n{}A copy of the model has {:.3f} billion parameters: weights {:.2f} GB{}, "
                  "gradients {:.2f} GB, Adam's moments {:.2f} GB; the rest is activations and logits",
                  words.substr(0, words.find(" Of the allocated")), memory.device.table(), parameters / 1e9,
                  parameters * width / 1e9,
                  narrow ? fmt::format(" and {:.2f} GB in 16 bits", parameters * 2 / 1e9) : "",
                  parameters * width / 1e9, 2 * parameters * width / 1e9),
      "lower train.micro_batch_size, set train.recompute = \"full\", take precision.compute = \"bf16\", or share the "
      "model "
      "out over more GPUs (layout.zero, layout.tp, layout.pp)");
}

}  // namespace trireme::train
