#include "trireme/device/cuda.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"

namespace trireme::device {
namespace {

/// libtorch_cuda.so beside the libtorch_cpu.so of this process.
std::string torch_cuda_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&at::show_config), &info) == 0 || info.dli_fname == nullptr) {
    return "libtorch_cuda.so";
  }
  return (std::filesystem::path(info.dli_fname).parent_path() / "libtorch_cuda.so").string();
}

void load_torch_cuda() {
  static std::mutex mutex;
  static bool loaded = false;
  const std::lock_guard lock(mutex);
  if (loaded) return;
  const std::string path = torch_cuda_path();
  // All symbols at once and for all: operators register themselves while the library is loaded.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    const char* why = dlerror();
    throw ConfigError(
        fmt::format("a GPU was asked for, but the tensor library's CUDA part cannot be loaded: {}",
                    why == nullptr ? path : why),
        "install the CUDA build of torch 2.11 with its libraries (cuDNN, NCCL, ...) and put its lib folder "
        "first in LD_LIBRARY_PATH, or set run.device = \"cpu\"");
  }
  loaded = true;
}

const c10::impl::DeviceGuardImplInterface& cuda_impl() { return *c10::impl::getDeviceGuardImpl(c10::kCUDA); }

template <typename Body>
auto telling_why_not(const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw ConfigError(fmt::format("the GPU cannot be used: {}", error.what_without_backtrace()),
                      "look at `nvidia-smi`: the driver must be at least 580 for CUDA 13");
  }
}

const CudaRuntime* load_runtime() {
  const CudaRuntime* table = Plugin::load("cuda").function<CudaRuntimeEntry>(kCudaRuntimeEntry)();
  check_cuda_table("CUDA runtime", table->header, kCudaRuntimeHeader);
  if (const CudaError error = table->probe()) {
    throw ConfigError(fmt::format("libtrireme_cuda does not run on this GPU: {}", error),
                      "build with -DCMAKE_CUDA_ARCHITECTURES set to the GPU's, e.g. \"80;90a;100\"");
  }
  return table;
}

}  // namespace

int count_gpus() {
  load_torch_cuda();
  const int count = telling_why_not([] { return static_cast<int>(cuda_impl().deviceCount()); });
  if (count == 0) {
    throw ConfigError("a GPU was asked for, but this machine shows none",
                      "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set run.device = \"cpu\"");
  }
  return count;
}

c10::Device use_cuda(int index) {
  const int count = count_gpus();
  if (index >= 0 && index < count) {
    return telling_why_not([&] {
      at::globalContext().lazyInitDevice(c10::kCUDA);
      const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
      cuda_impl().setDevice(device);
      return device;
    });
  }
  throw ConfigError(fmt::format("GPU {} was asked for, but there are {}", index, count),
                    fmt::format("choose one from 0 to {}", count - 1));
}

bool has_cuda(std::string* why) {
  try {
    use_cuda(0);
    return true;
  } catch (const ConfigError& error) {
    if (why != nullptr) *why = error.message();
    return false;
  }
}

void synchronise(c10::Device device) {
  if (device.is_cuda()) cuda_impl().synchronizeDevice(device.index());
}

const CudaRuntime& cuda_runtime() {
  static const CudaRuntime* const table = load_runtime();
  return *table;
}

void check_cuda(CudaError error, std::string_view operation) {
  if (error == nullptr) return;
  throw Error(fmt::format("{} failed on the GPU: {}", operation, error),
              "an earlier operator may be the cause: set CUDA_LAUNCH_BLOCKING=1 to find it");
}

void check_cuda_table(std::string_view name, const CudaTableHeader& found, const CudaTableHeader& expected) {
  if (found.version == expected.version && found.bytes == expected.bytes) return;
  throw ConfigError(fmt::format("the {} table of libtrireme_cuda is version {} with {} bytes, but this is version {} "
                                "with {}",
                                name, found.version, found.bytes, expected.version, expected.bytes),
                    "build and install all of Trireme's libraries together");
}

}  // namespace trireme::device
