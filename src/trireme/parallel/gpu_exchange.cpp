#include "trireme/parallel/gpu_exchange.h"

#include <algorithm>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/gpu_memory.h"
#include "trireme/comm/group.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/nccl/nccl_transport.h"
#include "trireme/device/cuda.h"
#include "trireme/kernels/cuda.h"

namespace trireme::parallel {
namespace {

using comm::DType;
using comm::Reduce;
using kernels::CudaFold;

constexpr device::CudaStream kDefaultStream = nullptr;  // which all threads share

CudaFold::Type type_of(DType type) {
  switch (type) {
    case DType::kF32:
      return CudaFold::kFloat;
    case DType::kF64:
      return CudaFold::kDouble;
    case DType::kF16:
      return CudaFold::kHalf;
    case DType::kBF16:
      return CudaFold::kBfloat16;
    case DType::kI32:
      return CudaFold::kInt32;
    case DType::kI64:
      return CudaFold::kInt64;
    case DType::kU8:
      break;
  }
  return CudaFold::kUint8;
}

CudaFold::Reduce reduce_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::kMin:
      return CudaFold::kMin;
    case Reduce::kMax:
      return CudaFold::kMax;
    case Reduce::kProd:
      return CudaFold::kProduct;
    case Reduce::kSum:
    case Reduce::kAvg:
      break;
  }
  return CudaFold::kSum;
}

void copy(void* to, const void* from, std::size_t bytes) {
  device::check_cuda(device::cuda_runtime().memcpy_async(to, from, bytes, kDefaultStream), "a copy");
}

void fold(void* const* to, std::size_t tos, const void* const* from, std::size_t froms, std::size_t count, DType type,
          Reduce reduce, int divisor) {
  TRIREME_CHECK(tos <= CudaFold::kMost && froms <= CudaFold::kMost, "{} ranks share a GPU, but at most {} can", froms,
                CudaFold::kMost);
  CudaFold call{.froms = static_cast<int>(froms),
                .tos = static_cast<int>(tos),
                .divisor = divisor,
                .type = type_of(type),
                .reduce = reduce_of(reduce),
                .count = static_cast<std::int64_t>(count)};
  std::copy_n(from, froms, call.from);
  std::copy_n(to, tos, call.to);
  device::check_cuda(kernels::cuda().fold(call, kDefaultStream), "a sum over ranks");
}

constexpr comm::GpuMemory kMemory{.copy = copy, .fold = fold};

/// Of every rank's GPU.
std::vector<comm::GpuIdentity> identities(comm::Group& world, int gpu) {
  comm::GpuIdentity mine{};
  device::check_cuda(device::cuda_runtime().device_uuid(gpu, mine.data()), "asking a GPU for its UUID");
  std::vector<comm::GpuIdentity> all(static_cast<std::size_t>(world.size()));
  world
      .all_gather(comm::ConstBuffer{mine.data(), mine.size(), DType::kU8},
                  comm::Buffer{all.data(), all.size() * mine.size(), DType::kU8})
      .wait();
  return all;
}

}  // namespace

c10::Device device_of(spec::DeviceKind kind, comm::Group& world) {
  if (kind == spec::DeviceKind::kCpu) return c10::kCPU;
  if (!world.has_processes()) {
    const c10::Device device = device::use_cuda(0);
    use_gpu_exchange();
    return device;
  }
  const int gpu = gpu_of_process(world, device::count_gpus());
  const c10::Device device = device::use_cuda(gpu);
  use_nccl(world, gpu);
  return device;
}

c10::Device init_device_exchange(spec::DeviceKind kind, comm::Group& world) {
  const c10::Device device = device_of(kind, world);
  if (device.is_cuda() && world.has_processes()) tell_nccl_of_shared_gpus(world, device.index());
  return device;
}

void use_gpu_exchange() {
  kernels::cuda();  // now rather than in the middle of a step
  comm::set_gpu_memory(kMemory);
}

int gpu_of_process(const comm::Group& world, int gpus) {
  const comm::Launch launch = comm::detect_launch();
  const int local_rank = launch.local_rank >= 0 ? launch.local_rank : world.local_rank();
  return comm::choose_gpu(local_rank, gpus, env_int("TRIREME_GPU"));
}

void use_nccl(comm::Group& world, int gpu) {
  if (const comm::GpuTransport* there = world.gpu()) {
    TRIREME_CHECK(there->gpu() == gpu, "this rank uses GPU {} already, not {}", there->gpu(), gpu);
    return;
  }
  world.use_gpu(comm::make_nccl_transport(
      device::cuda_runtime(), {.gpu = gpu, .library = env("TRIREME_NCCL_LIBRARY").value_or(std::string())}));
}

void tell_nccl_of_shared_gpus(comm::Group& world, int gpu) {
  if (world.size() == 1) return;
  const auto host = comm::pretended_host(identities(world, gpu), world.rank());
  if (!host || env("NCCL_HOSTID")) return;
  log_info("rank {} shares its GPU with another: NCCL is told that they are on different hosts, and is slow",
           world.rank());
  set_env("NCCL_HOSTID", *host);
}

int ranks_that_share(comm::Group& world, int gpu) {
  if (world.size() == 1) return 1;
  const std::vector<comm::GpuIdentity> all = identities(world, gpu);
  return static_cast<int>(std::ranges::count(all, all[static_cast<std::size_t>(world.rank())]));
}

}  // namespace trireme::parallel
