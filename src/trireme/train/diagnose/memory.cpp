#include "trireme/train/diagnose/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/device/cuda.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/train/engine/require_rules.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {
namespace {

constexpr int kSettled = 5, kTold = 10;

const plan::RankMemory& fullest(const MemoryPlan& plan) {
  return *std::ranges::max_element(plan.stages, {}, &plan::RankMemory::peak);
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

void count_state(device::RankMemory& memory, const parallel::DataParallel& data_parallel, std::int64_t kept,
                 bool offloaded) {
  const parallel::DataParallel::Bytes bytes = data_parallel.bytes();
  memory.host.set(MemoryUse::kParameters, bytes.host_values);
  memory.host.set(MemoryUse::kGradients, bytes.host_gradients);
  memory.host.set(MemoryUse::kOptimizer, bytes.host_masters + (offloaded ? kept : 0));
  memory.device.set(MemoryUse::kParameters, bytes.parameters);
  memory.device.set(MemoryUse::kGradients, bytes.gradients);
  memory.device.set(MemoryUse::kOptimizer, bytes.masters + (offloaded ? 0 : kept));
  memory.device.set(MemoryUse::kBuckets, bytes.buckets + bytes.reducer);
}

CountedTape::CountedTape(device::RankMemory* memory, const nn::Tape& tape)
    : memory_(memory), bytes_(memory != nullptr ? tape.bytes() : 0) {
  if (memory_ != nullptr) memory_->device.add(MemoryUse::kActivations, bytes_);
}

CountedTape::~CountedTape() {
  if (memory_ != nullptr) memory_->device.add(MemoryUse::kActivations, -bytes_);
}

double MemoryPlan::peak() const { return stages.empty() ? 0 : fullest(*this).peak(); }

double MemoryPlan::host() const {
  double most = 0;
  for (const plan::RankMemory& one : stages) most = std::max(most, one.host);
  return most;
}

double MemoryPlan::together(int ranks) const {
  if (stages.empty()) return 0;
  if (ranks != config.ranks()) return ranks * peak();
  double sum = 0;
  for (const plan::RankMemory& one : stages) sum += one.peak();
  return sum * ranks / static_cast<double>(stages.size());
}

std::string MemoryPlan::table() const {
  std::string text = plan::memory_table(job, config, fullest(*this));
  if (stages.size() == 1) return text;
  text += fmt::format("of a rank in stage {}, the fullest;", fullest(*this).stage);
  for (const plan::RankMemory& one : stages) text += fmt::format(" stage {}: {}", one.stage, short_bytes(one.peak()));
  return text + '\n';
}

MemoryPlan plan_memory(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, std::int64_t length) {
  if (recipe.run.device == spec::DeviceKind::kCpu) return {};
  MemoryPlan plan{.job = plan::job_of(recipe, shape), .config = {}, .stages = {}};
  plan.job.seq_len = length;
  plan.config = plan::config_of(recipe, plan.job, ranks);
  plan.stages = plan::rank_memories(plan.job, plan.config);
  return plan;
}

std::string tell_memory(const MemoryRequest& request) {
  spec::Recipe recipe = request.recipe;
  recipe.run.device = spec::DeviceKind::kCuda;
  const spec::ModelShape shape = model_shape(recipe);
  require_rules(recipe, shape, {.ranks = request.ranks, .rank_kind = spec::RankKind::kProcesses});
  const MemoryPlan plan = plan_memory(recipe, shape, request.ranks, recipe.data.seq_len);
  return fmt::format("{}and about {} of each GPU for its context and libraries\n", plan.table(),
                     short_bytes(plan::context_bytes()));
}

void require_room(const MemoryPlan& plan, double gpu_bytes, int ranks) {
  const double needed = plan.together(ranks) + plan::context_bytes();
  if (needed <= gpu_bytes || gpu_bytes <= 0) return;
  throw ConfigError(
      fmt::format("{} of GPU memory would be needed{}, and the GPU has {}\n{}", short_bytes(needed),
                  ranks > 1 ? fmt::format(" by the {} ranks that share it", ranks) : "", short_bytes(gpu_bytes),
                  plan.table()),
      "lower train.micro_batch_size, set train.recompute_norms = true, precision.gradients = \"bf16\", "
      "train.recompute = \"full\" (and train.offload_activations = true), layout.offload = \"optimizer\", "
      "optim.state_dtype = \"bf16\" with precision.master_weights = \"none\", or shard the model over more GPUs");
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
