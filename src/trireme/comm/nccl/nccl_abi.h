// comm/nccl/nccl_abi.h -- NCCL's interface as far as it is used here, declared anew: nothing is compiled or linked
// against NCCL.
//
// Values and layouts are those of NCCL 2.18 and later; tests/comm/nccl_abi_test.cpp holds them against nccl.h where
// that is installed. The configuration is the part that 2.18 has: the library reads `size` and `version` and fills the
// rest in.
// Depends on: nothing.
#pragma once

#include <climits>
#include <cstddef>

namespace trireme::comm::nccl {

struct Comm;  // the library's own

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum DataType : int {
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

struct UniqueId {
  char internal[128];
};

inline constexpr int kUndefined = INT_MIN;
inline constexpr int kOldestVersion = 21800;  // 2.18.0

struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

using Stream = void*;

/// The library's functions, by the names that they have there.
struct Functions {
  Result (*ncclGetVersion)(int* version);
  const char* (*ncclGetErrorString)(Result result);
  const char* (*ncclGetLastError)(Comm* comm);
  Result (*ncclGetUniqueId)(UniqueId* id);
  Result (*ncclCommInitRankConfig)(Comm** comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*ncclCommFinalize)(Comm* comm);
  Result (*ncclCommDestroy)(Comm* comm);
  Result (*ncclCommAbort)(Comm* comm);
  Result (*ncclCommGetAsyncError)(Comm* comm, Result* error);
  Result (*ncclCommRegister)(Comm* comm, void* data, std::size_t bytes, void** handle);
  Result (*ncclCommDeregister)(Comm* comm, void* handle);
  Result (*ncclGroupStart)();
  Result (*ncclGroupEnd)();
  Result (*ncclAllReduce)(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                          Stream stream);
  Result (*ncclReduce)(const void* in, void* out, std::size_t count, DataType type, RedOp op, int root, Comm* comm,
                       Stream stream);
  Result (*ncclBroadcast)(const void* in, void* out, std::size_t count, DataType type, int root, Comm* comm,
                          Stream stream);
  Result (*ncclReduceScatter)(const void* in, void* out, std::size_t count, DataType type, RedOp op, Comm* comm,
                              Stream stream);
  Result (*ncclAllGather)(const void* in, void* out, std::size_t count, DataType type, Comm* comm, Stream stream);
  Result (*ncclSend)(const void* data, std::size_t count, DataType type, int peer, Comm* comm, Stream stream);
  Result (*ncclRecv)(void* data, std::size_t count, DataType type, int peer, Comm* comm, Stream stream);
};

}  // namespace trireme::comm::nccl
