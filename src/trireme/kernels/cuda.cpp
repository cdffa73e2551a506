#include "trireme/kernels/cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"

namespace trireme::kernels {
namespace {

const CudaKernels* load() {
  const CudaKernels* table = Plugin::load("cuda").function<CudaKernelsEntry>(kCudaKernelsEntry)();
  if (table->version != kCudaKernelsVersion) {
    throw ConfigError(
        fmt::format("libtrireme_cuda is of version {}, but this is {}", table->version, kCudaKernelsVersion),
        "build and install all of Trireme's libraries together");
  }
  if (const CudaError error = table->probe()) {
    throw ConfigError(fmt::format("libtrireme_cuda does not run on this GPU: {}", error),
                      "build with -DCMAKE_CUDA_ARCHITECTURES set to the GPU's, e.g. \"80;90a;100\"");
  }
  return table;
}

}  // namespace

const CudaKernels& cuda() {
  static const CudaKernels* const table = load();
  return *table;
}

void check_cuda(CudaError error, std::string_view operation) {
  if (error == nullptr) return;
  throw Error(fmt::format("{} failed on the GPU: {}", operation, error),
              "an earlier operator may be the cause: set CUDA_LAUNCH_BLOCKING=1 to find it");
}

at::Tensor cuda_sum_room(const at::Tensor& like, Element element, std::int64_t width, int sums) {
  const auto type = element == Element::kDouble ? at::kDouble : at::kFloat;
  return at::empty({sums * kCudaSumBlocks * width}, like.options().dtype(type));
}

}  // namespace trireme::kernels
