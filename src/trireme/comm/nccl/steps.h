// comm/nccl/steps.h -- which calls of NCCL one call of ours is, as data.
//
// Even blocks are NCCL's own collectives. Uneven ones, which it lacks, are one broadcast or one reduce for each rank's
// block; gather, scatter and all_to_all are sends and receives; a rank's own block is copied. All steps of a call but
// the copies go into one NCCL group, which runs them at once.
// Depends on: call.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/call.h"

namespace trireme::comm {

struct NcclStep {
  enum class Act : std::uint8_t { kCopy, kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };
  Act act;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  // as NCCL counts: of one rank's block for reduce_scatter and all_gather
  int peer = -1;          // root, or the other rank of the group
  bool operator==(const NcclStep&) const = default;
};

/// This rank's steps of a collective; every rank of the group makes them from the same call.
std::vector<NcclStep> nccl_steps(const Call& call, int rank, int ranks);

}  // namespace trireme::comm
