#include "trireme/parallel/gpu_exchange.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/gpu_memory.h"
#include "trireme/kernels/cuda.h"

namespace trireme::parallel {
namespace {

using comm::DType;
using comm::Reduce;
using kernels::CudaFold;

constexpr kernels::CudaStream kDefaultStream = nullptr;  // which all threads share

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
  kernels::check_cuda(kernels::cuda().copy(to, from, static_cast<std::int64_t>(bytes), kDefaultStream), "a copy");
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
  kernels::check_cuda(kernels::cuda().fold(call, kDefaultStream), "a sum over ranks");
}

constexpr comm::GpuMemory kMemory{.copy = copy, .fold = fold};

}  // namespace

void use_gpu_exchange() {
  kernels::cuda();  // now rather than in the middle of a step
  comm::set_gpu_memory(kMemory);
}

}  // namespace trireme::parallel
