// tests/comm/fake_nccl/fake_ranks.h -- ranks with pretended GPUs between which the stand-in for NCCL carries data.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "tests/comm/fake_nccl/fake_gpu.h"
#include "tests/comm/reference.h"
#include "trireme/comm/nccl/nccl_transport.h"
#include "trireme/comm/rank.h"

namespace trireme::fake {

/// The library with both stand-ins, named by its path.
class Library {
 public:
  explicit Library(const std::string& path) : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  const std::string& path() const { return path_; }
  const Gpu& gpu() const { return *find<decltype(trireme_fake_gpu)>("trireme_fake_gpu")(); }
  void misbehave(const Misbehaviour& how) const {
    find<decltype(trireme_fake_nccl_misbehave)>("trireme_fake_nccl_misbehave")(&how);
  }
  Usage usage() const { return find<decltype(trireme_fake_nccl_usage)>("trireme_fake_nccl_usage")(); }

  /// Gives a rank its pretended GPU; in the rank's own thread.
  void give_gpu(comm::Rank& rank) const {
    rank.world().use_gpu(comm::make_nccl_transport(gpu().cuda, {.gpu = rank.rank(), .library = path_}));
  }
  comm::Place place(const comm::Rank& rank) const {
    return {.device = {comm::DeviceKind::kCuda, rank.rank()}, .synchronise = gpu().synchronise};
  }

 private:
  template <typename Function>
  Function* find(const char* name) const {
    void* address = dlsym(handle_, name);
    if (address == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Function*>(address);
  }
  std::string path_;
  void* handle_;
};

}  // namespace trireme::fake
