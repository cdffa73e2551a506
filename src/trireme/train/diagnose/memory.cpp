#include "trireme/train/diagnose/memory.h"

#include <sys/resource.h>

#include "trireme/device/cuda.h"

namespace trireme::train {

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

}  // namespace trireme::train
