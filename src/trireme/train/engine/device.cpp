#include "trireme/train/engine/device.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/spec/model_shape.h"

namespace trireme::train {

std::vector<config::Problem> find_device_problems(const spec::Recipe& recipe, const comm::Group& world) {
  std::vector<config::Problem> problems;
  if (recipe.run.device == spec::DeviceKind::kCpu) {
    if (recipe.train.cuda_graphs) {
      problems.push_back({.key = "train.cuda_graphs",
                          .reason = "captures kernels of a GPU, but run.device is \"cpu\"",
                          .hint = "set run.device = \"cuda\", or train.cuda_graphs = false"});
    }
    return problems;
  }
  const auto refuse = [&](const char* key, std::string reason, const char* hint) {
    problems.push_back({.key = key, .reason = std::move(reason), .hint = hint});
  };
  if (world.size() > 1 && !world.moves(comm::DeviceKind::kCuda) && !world.has_processes()) {
    refuse("run.device",
           fmt::format("is \"cuda\", but the {} ranks are behind an emulated network, which carries no GPU memory",
                       world.size()),
           "leave comm.transport out, or set run.device = \"cpu\"");
  }
  const spec::LayoutConfig& layout = recipe.layout;
  if (recipe.train.cuda_graphs && (layout.zero > 1 || layout.pp > 1 || layout.cp > 1)) {
    refuse(
        "train.cuda_graphs",
        "captures ranks that run all layers on whole rows, with gradients that stay where they are: layout.zero up to "
        "1, and layout.tp",
        "set layout.zero = 1 and layout.cp and pp to 1, or train.cuda_graphs = false");
  } else if (recipe.train.cuda_graphs && layout.tp > 1 && layout.tp_overlap) {
    refuse("train.cuda_graphs", "captures no messages between two ranks, which layout.tp_overlap sends beside GEMMs",
           "set layout.tp_overlap = false, or train.cuda_graphs = false");
  } else if (recipe.train.cuda_graphs && world.size() > 1 && !world.has_processes()) {
    refuse("train.cuda_graphs",
           fmt::format("captures reductions over ranks that are processes, but the {} ranks are threads", world.size()),
           "start them with mpirun, or set train.cuda_graphs = false");
  } else if (recipe.train.cuda_graphs && (world.size() > 1 || layout.zero > 0) &&
             layout.offload != spec::OffloadKind::kNone) {
    refuse("train.cuda_graphs", "captures reductions that stay on the GPU, but layout.offload takes them to the host",
           "set layout.offload = \"none\", or train.cuda_graphs = false");
  }
  if (recipe.precision.gemm == spec::GemmPrecision::kFp8Delayed && (layout.pp > 1 || layout.zero == 3)) {
    refuse("precision.gemm",
           fmt::format(
               "is \"fp8-delayed\", whose scales ranks agree on where each keeps the weights of all layers, but {}",
               layout.pp > 1 ? fmt::format("layout.pp = {} gives it some of them", layout.pp)
                             : "layout.zero = 3 lends them for a while"),
           layout.pp > 1 ? "set layout.pp = 1, or precision.gemm = \"fp8\""
                         : "set layout.zero = 2, or precision.gemm = \"fp8\"");
  }
  return problems;
}

static void check_device(const spec::Recipe& recipe, const comm::Group& world) {
  if (auto problems = find_device_problems(recipe, world); !problems.empty()) {
    throw config::ProblemsError("the recipe", std::move(problems));
  }
}

c10::Device device_of(const spec::Recipe& recipe, comm::Group& world) {
  check_device(recipe, world);
  return parallel::device_of(recipe.run.device, world);
}

c10::Device init_device_exchange(const spec::Recipe& recipe, comm::Group& world) {
  check_device(recipe, world);
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
