#include "trireme/comm/nccl/library.h"

#include <dlfcn.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {
namespace {

constexpr const char* kUsualName = "libnccl.so.2";
constexpr const char* kInstallHint =
    "install NCCL 2.18 or newer (the CUDA build of torch brings one), or name its file in TRIREME_NCCL_LIBRARY";

}  // namespace

NcclLibrary::NcclLibrary(const std::string& path) {
  const std::string file = path.empty() ? kUsualName : path;
  // By its name alone this finds the one that the tensor library has loaded already.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw ConfigError(
        fmt::format("ranks that are processes need NCCL for GPU memory, and {} does not load: {}", file, dlerror()),
        kInstallHint);
  }
  const auto find = [&](auto& function, const char* name) {
    void* address = dlsym(handle, name);
    if (address == nullptr) throw ConfigError(fmt::format("{} has no function {}", file, name), kInstallHint);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
#define TRIREME_NCCL(name) find(functions_.name, #name)
  TRIREME_NCCL(ncclGetVersion);
  TRIREME_NCCL(ncclGetErrorString);
  TRIREME_NCCL(ncclGetLastError);
  TRIREME_NCCL(ncclGetUniqueId);
  check(functions_.ncclGetVersion(&version_), "asking NCCL for its version");
  if (version_ < nccl::kOldestVersion) {
    throw ConfigError(
        fmt::format("{} is NCCL version {}, but at least {} is needed", file, version_, nccl::kOldestVersion),
        kInstallHint);
  }
  TRIREME_NCCL(ncclCommInitRankConfig);
  TRIREME_NCCL(ncclCommFinalize);
  TRIREME_NCCL(ncclCommDestroy);
  TRIREME_NCCL(ncclCommAbort);
  TRIREME_NCCL(ncclCommGetAsyncError);
  if (version_ >= 21900) {
    TRIREME_NCCL(ncclCommRegister);
    TRIREME_NCCL(ncclCommDeregister);
  }
  TRIREME_NCCL(ncclGroupStart);
  TRIREME_NCCL(ncclGroupEnd);
  TRIREME_NCCL(ncclAllReduce);
  TRIREME_NCCL(ncclReduce);
  TRIREME_NCCL(ncclBroadcast);
  TRIREME_NCCL(ncclReduceScatter);
  TRIREME_NCCL(ncclAllGather);
  TRIREME_NCCL(ncclSend);
  TRIREME_NCCL(ncclRecv);
#undef TRIREME_NCCL
  log_debug("NCCL {} from {}", version_, file);
}

void NcclLibrary::check(nccl::Result result, const char* what, nccl::Comm* comm) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  std::string text = fmt::format("{}: NCCL says '{}' (code {})", what, functions_.ncclGetErrorString(result),
                                 static_cast<int>(result));
  const char* last = functions_.ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += fmt::format("; its last words: {}", last);
  throw CommError(text, "NCCL_DEBUG=INFO shows what NCCL did before");
}

nccl::DataType nccl_type(DType type) {
  switch (type) {
    case DType::kF32:
      return nccl::kFloat32;
    case DType::kF64:
      return nccl::kFloat64;
    case DType::kF16:
      return nccl::kFloat16;
    case DType::kBF16:
      return nccl::kBfloat16;
    case DType::kI32:
      return nccl::kInt32;
    case DType::kI64:
      return nccl::kInt64;
    case DType::kU8:
      return nccl::kUint8;
  }
  throw CommError(fmt::format("NCCL has no data type {}", name(type)));
}

nccl::RedOp nccl_op(Reduce reduce) {
  switch (reduce) {
    case Reduce::kSum:
      return nccl::kSum;
    case Reduce::kAvg:
      return nccl::kAvg;
    case Reduce::kMin:
      return nccl::kMin;
    case Reduce::kMax:
      return nccl::kMax;
    case Reduce::kProd:
      return nccl::kProd;
  }
  throw CommError(fmt::format("NCCL has no reduction {}", name(reduce)));
}

}  // namespace trireme::comm
