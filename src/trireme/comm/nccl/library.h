// comm/nccl/library.h -- NCCL, loaded when a group first needs it.
//
// Depends on: nccl_abi.h.
#pragma once

#include <memory>
#include <string>

#include "trireme/comm/call.h"
#include "trireme/comm/nccl/nccl_abi.h"

namespace trireme::comm {

class NcclLibrary {
 public:
  /// The file at `path`; none: libnccl.so.2, as the loader finds it. ConfigError where it does not load, lacks a
  /// function, or is older than 2.18. Stays loaded: NCCL has threads of its own.
  explicit NcclLibrary(const std::string& path);

  const nccl::Functions& call() const { return functions_; }
  int version() const { return version_; }
  /// Throws CommError where a result is an error; kInProgress is none.
  void check(nccl::Result result, const char* what, nccl::Comm* comm = nullptr) const;

 private:
  nccl::Functions functions_ = {};
  int version_ = 0;
};

/// NCCL's names for ours. It has them all.
nccl::DataType nccl_type(DType type);
nccl::RedOp nccl_op(Reduce reduce);

}  // namespace trireme::comm
