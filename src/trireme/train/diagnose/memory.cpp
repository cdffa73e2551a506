#include "trireme/train/diagnose/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/device/cuda.h"
#include "trireme/nn/param.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/step_plan.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {
namespace {

constexpr int kSettled = 5, kTold = 10;

/// Those that lose their masters: see choose_types in trainer.cpp.
double matrices_of_layers(const spec::ModelShape& shape) {
  const auto width = static_cast<double>(shape.hidden_size), inner = static_cast<double>(shape.ffn_size);
  const double heads = static_cast<double>((2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
  return static_cast<double>(shape.num_layers) * width * (heads + inner * (shape.gated ? 3 : 2));
}

/// And those whose gradients may have the compute type: tables and the head too.
double matrices_of_model(const spec::ModelShape& shape) {
  const bool learned = shape.position_kind == spec::PositionKind::kLearned;
  const std::int64_t rows =
      shape.vocab_size * (shape.tied ? 1 : 2) + shape.segments + (learned ? shape.max_seq_len : 0);
  return matrices_of_layers(shape) + static_cast<double>(rows * shape.hidden_size);
}

}  // namespace

using device::MemoryUse;

device::RankMemory memory_of(const spec::Recipe& recipe) {
  device::RankMemory memory;
  if (recipe.train.memory_gb) {
    memory.device = device::MemoryPool("device", static_cast<std::int64_t>(*recipe.train.memory_gb * 1e9));
  }
  return memory;
}

std::int64_t most_memory(at::Device device) {
  if (device.is_cuda()) return device::cuda_runtime().max_memory_allocated(device.index());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void count_state(device::RankMemory& memory, const parallel::DataParallel& data_parallel,
                 const optim::Optimizer& optimizer, bool offloaded) {
  const parallel::DataParallel::Bytes bytes = data_parallel.bytes();
  memory.host.set(MemoryUse::kParameters, bytes.host_values);
  memory.host.set(MemoryUse::kGradients, bytes.host_gradients);
  memory.host.set(MemoryUse::kOptimizer, bytes.host_masters + (offloaded ? optimizer.bytes() : 0));
  memory.device.set(MemoryUse::kParameters, bytes.parameters);
  memory.device.set(MemoryUse::kGradients, bytes.gradients);
  memory.device.set(MemoryUse::kOptimizer, bytes.masters + (offloaded ? 0 : optimizer.bytes()));
  memory.device.set(MemoryUse::kBuckets, bytes.buckets + bytes.reducer);
}

CountedTape::CountedTape(device::RankMemory* memory, const nn::Tape& tape)
    : memory_(memory), bytes_(memory != nullptr ? tape.bytes() : 0) {
  if (memory_ != nullptr) memory_->device.add(MemoryUse::kActivations, bytes_);
}

CountedTape::~CountedTape() {
  if (memory_ != nullptr) memory_->device.add(MemoryUse::kActivations, -bytes_);
}

plan::StepMemory plan_memory(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks,
                             std::int64_t length) {
  if (recipe.run.device == spec::DeviceKind::kCpu) return {};
  const spec::LayoutConfig& layout = recipe.layout;
  const int copies = layout.dp.value_or(std::max(1, ranks / static_cast<int>(layout.ranks_per_copy())));
  const StepPlan step = plan_step(recipe, {},
                                  {.rank = 0,
                                   .ranks = copies,
                                   .length = length,
                                   .micro_batch_size = recipe.train.micro_batch_size.value_or(0),
                                   .weights = layout.dp_batch_weights});
  plan::StepMemoryTask task;
  task.step = {.shape = shape,
               .layout = layout,
               .recompute = recipe.train.recompute,
               .recompute_norms = recipe.train.recompute_norms,
               .save_mlp_activations = recipe.train.save_mlp_activations};
  task.step.layout.dp = copies;
  task.step.sequence = length;
  task.step.rows = step.microbatches.empty() ? 0 : static_cast<std::int64_t>(step.microbatches.front().size());
  task.step.micros = static_cast<std::int64_t>(step.microbatches.size());
  task.step.layers = shape.num_layers;
  task.step.compute_bytes = static_cast<int>(c10::elementSize(nn::compute_type(recipe.precision.compute)));
  task.step.sum_bytes = static_cast<int>(c10::elementSize(nn::master_type(recipe.precision.compute)));
  task.elements = static_cast<double>(spec::count_parameters(shape).total()) / layout.tp;
  const spec::MasterWeights masters = recipe.precision.master_weights;
  if (masters != spec::MasterWeights::kFp32) {
    const bool tables = masters == spec::MasterWeights::kVectors;
    task.narrow_elements = (tables ? matrices_of_model(shape) : matrices_of_layers(shape)) / layout.tp;
  }
  if (spec::has_narrow_gradients(recipe.precision) || masters == spec::MasterWeights::kVectors)
    task.narrow_gradients = matrices_of_model(shape) / layout.tp;
  task.directions = recipe.optim.kind == spec::OptimizerKind::kLamb;
  task.moments = spec::moments_of(recipe.optim);
  task.moment_bytes = recipe.optim.state_dtype == spec::StateDtype::kBf16 ? 2 : task.step.sum_bytes;
  task.sharing = layout.zero_group.value_or(copies * layout.cp);
  task.offload = layout.offload == spec::OffloadKind::kOptimizer;
  task.late = layout.delayed_update;
  task.rounded_sums = layout.reduce == spec::ReduceKind::kBf16 && layout.zero == 0 && ranks == 1;
  task.stash = recipe.train.offload_activations;
  task.logits_bytes = static_cast<double>(build_options(recipe).logits_chunk_bytes);
  task.bucket_bytes = layout.bucket_mb * 1e6;
  task.largest_elements = static_cast<double>(shape.vocab_size * shape.hidden_size) / layout.tp;
  return plan::step_memory(task);
}

std::string tell_memory(const MemoryRequest& request) {
  spec::Recipe recipe = request.recipe;
  recipe.run.device = spec::DeviceKind::kCuda;
  const plan::StepMemory plan = plan_memory(recipe, model_shape(recipe), request.ranks, recipe.data.seq_len);
  if (plan.lines.empty()) {
    throw ConfigError("there is no plan of the GPU memory of pipeline stages, or of models that norm after they add",
                      "ask for one stage (--set layout.pp=1), or see trireme plan, which estimates stages too");
  }
  return fmt::format("{}and about {} of each GPU for its context and libraries\n", plan.table(),
                     short_bytes(plan::kContextBytes));
}

void require_room(const plan::StepMemory& plan, double gpu_bytes, int ranks) {
  const double needed = plan.peak() * ranks + plan::kContextBytes;
  if (needed <= gpu_bytes || gpu_bytes <= 0) return;
  throw ConfigError(
      fmt::format("{} of GPU memory would be needed{}, and the GPU has {}\n{}", short_bytes(needed),
                  ranks > 1 ? fmt::format(" by the {} ranks that share it", ranks) : "", short_bytes(gpu_bytes),
                  plan.table()),
      "lower train.micro_batch_size, set train.recompute_norms = true, precision.gradients = \"bf16\", "
      "train.recompute = \"full\" (and train.offload_activations = true), layout.offload = \"optimizer\", "
      "optim.state_dtype = \"bf16\" with precision.master_weights = \"none\", or share the model out "
      "over more GPUs");
}

void MemoryWatch::step_ended() {
  if (!device_.is_cuda() || steps_ >= kTold) return;
  ++steps_;
  if (steps_ == kSettled) allocations_ = device::cuda_runtime().num_device_allocs(device_.index());
  if (steps_ < kTold) return;
  const std::int64_t more = device::cuda_runtime().num_device_allocs(device_.index()) - allocations_;
  log_info("GPU memory: {} at most so far{}; {} by the driver in the last {} steps",
           short_bytes(static_cast<double>(device::cuda_runtime().max_memory_allocated(device_.index()))),
           planned_ > 0 ? fmt::format(", {} planned", short_bytes(planned_)) : "",
           more == 0 ? "no allocation" : counted(static_cast<std::size_t>(more), "allocation"), kTold - kSettled);
}

}  // namespace trireme::train
