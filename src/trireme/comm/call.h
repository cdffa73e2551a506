// comm/call.h -- one call on a group, as every rank must agree on it.
//
// The CallKey travels beside the data (32 bytes); ranks whose keys differ fail with both keys in the message. `history`
// mixes in all earlier calls of the group, so even calls that happened to get by each other (two ranks each taking
// themselves for the root) are noticed at the next one.
// Depends on: types.h, cost (names of operations and algorithms).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "trireme/comm/types.h"
#include "trireme/cost/collectives.h"

namespace trireme::comm {

using cost::Algorithm;
using cost::Collective;

/// The collectives in the order of cost::Collective, then what two ranks do between themselves.
enum class Op : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
};
inline constexpr int kOps = 11;
std::string_view name(Op op);
constexpr Op op_of(Collective collective) { return static_cast<Op>(collective); }
constexpr Collective collective_of(Op op) { return static_cast<Collective>(op); }
constexpr bool is_collective(Op op) { return op <= Op::kBarrier; }
constexpr bool reduces(Op op) { return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce; }

struct CallKey {
  Op op = Op::kBarrier;
  DType type = DType::kU8;
  Reduce reduce : 4 = Reduce::kSum;
  DeviceKind place : 4 = DeviceKind::kCpu;  // where all ranks have their memory
  Algorithm algorithm = Algorithm::kAuto;
  std::int32_t root = 0;          // send, recv: the tag
  std::uint64_t count = 0;        // elements of the whole: the longer of the two buffers
  std::uint64_t counts_hash = 0;  // of the blocks' sizes, for the uneven forms
  std::uint64_t history = 0;
  bool operator==(const CallKey&) const = default;
};
static_assert(sizeof(CallKey) == 32);

/// "all_reduce of 1024 x f32 (sum, ring)".
std::string describe(const CallKey& key);
/// What differs, for people: "counts 100 and 200, types f32 and f64".
std::string difference(const CallKey& mine, const CallKey& theirs);
/// The history after this call.
std::uint64_t next_history(const CallKey& key);
std::uint64_t hash_counts(std::span<const std::size_t> counts);

/// How a buffer is cut into one block a rank: equal ones, or as `offsets` says.
struct Blocks {
  std::size_t equal = 0;
  const std::size_t* offsets = nullptr;  // ranks + 1 entries; null: equal blocks

  std::size_t begin(int rank) const { return offsets ? offsets[rank] : equal * static_cast<std::size_t>(rank); }
  std::size_t count(int rank) const { return offsets ? offsets[rank + 1] - offsets[rank] : equal; }
};

/// A call with its memory: what operations are made from. Borrowed parts outlive the operation.
struct Call {
  CallKey key = {};
  std::uint64_t sequence = 0;  // among the collectives of the group
  const void* in = nullptr;
  void* out = nullptr;
  Blocks blocks = {};       // all_to_all: what this rank sends
  Blocks recv_blocks = {};  // all_to_all: what it receives
  std::size_t element() const { return size_of(key.type); }
};

}  // namespace trireme::comm
