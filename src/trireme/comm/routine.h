// comm/routine.h -- a collective as data: for one rank, the sends, receives and local steps it takes, in order.
//
// The algorithms (algorithms/*.cpp, one file each) only build routines; one short interpreter runs them over any
// transport's send and receive. So message counts, bytes and freedom from deadlock are checked on the value, without
// running anything. To add an algorithm: write one builder file and list it in algorithms/table.cpp; the shared tests
// then cover it. Depends on: base, cost (names of operations and algorithms).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/cost/collectives.h"

namespace trireme::comm {

using cost::Algorithm;
using cost::Collective;

/// Which memory a slice lies in. For broadcast everything is kOutput (the buffer is sent and received in place). Only
/// the root has an output of reduce and gather, and an input of scatter. kInput is never written. Input and output may
/// be the same memory (all_reduce, reduce), or the block of the own rank inside the bigger of the two (reduce_scatter,
/// all_gather, gather, scatter): a builder must stay right then too.
enum class Space : std::uint8_t { kInput, kOutput, kScratch };

struct Slice {
  Space space = Space::kOutput;
  std::size_t begin = 0, count = 0;  // in elements
  auto operator<=>(const Slice&) const = default;
};

enum class Act : std::uint8_t {
  kSend,        ///< post: send `from` to `peer`; `from` must not change until waited for
  kRecv,        ///< post: receive from `peer` into `to`
  kRecvReduce,  ///< post: to = from (+) what arrives from `peer`; `from` may be `to`; neither may be touched until
                ///< waited for
  kWait,        ///< go on only when the posted step with index `on` has finished
  kCopy,        ///< to = from; nothing happens when both are the same memory
  kReduce,      ///< to = to (+) from
  kFinish,      ///< `to` now holds the full combination: turn a sum into the average where that was asked for
};

struct Step {
  Act act;
  int peer = -1;  // rank in the group
  int on = -1;    // index of the posted step, for kWait
  Slice from = {}, to = {};
  bool operator==(const Step&) const = default;
};

/// One rank's part. Messages of one routine between the same two ranks match in the order they were posted. Every
/// posted step is waited for by the end.
struct Routine {
  std::vector<Step> steps;
  std::size_t scratch = 0;  // elements of scratch memory needed
};

/// What a collective looks like to a builder. All ranks agree on everything here, except that for all_to_all `counts`
/// and `recv_counts` are this rank's own.
struct Shape {
  Collective op = Collective::kAllReduce;
  int ranks = 1;
  int root = 0;           // broadcast, reduce, gather, scatter
  std::size_t count = 0;  // all_reduce, broadcast, reduce: elements of the buffer
  std::vector<std::size_t> counts =
      {};  // elements of each rank's block, for the other operations; all_to_all: sent to each rank
  std::vector<std::size_t> recv_counts = {};  // all_to_all: received from each rank
  bool uneven = false;  // all_to_all: called in its v-form; a rank cannot see whether the others' counts are equal
  std::size_t element_bytes = 4;          // only to cut segments
  std::size_t segment_bytes = 256 << 10;  // long transfers are cut so that combining one overlaps moving the next
  std::vector<int> node_of = {};          // node of each rank; empty: all on one node
};

using Builder = Routine (*)(const Shape& shape, int rank);

struct AlgorithmEntry {
  Algorithm algorithm;
  Collective op;
  Builder build;
  /// Why this shape is outside the algorithm's domain; empty when it is fine. Asked with shape.counts etc. of this
  /// rank, but the answer must be the same on all ranks.
  std::string (*refuses)(const Shape& shape);
};

/// Every algorithm made of sends and receives.
std::span<const AlgorithmEntry> algorithm_table();
/// The entry, or null when this operation has no such algorithm.
const AlgorithmEntry* find_algorithm(Collective op, Algorithm algorithm);

/// "0: send out[0,8) to 1", a step a line: for logs, golden tests and error messages.
std::string to_text(const Routine& routine);
std::string to_text(const Step& step);    // "send out[0,8) to 1"
std::string to_text(const Slice& slice);  // "out[0,8)"

/// What a routine makes this rank send.
struct Volume {
  std::size_t messages = 0, elements = 0, reduced = 0;
  bool operator==(const Volume&) const = default;
};
Volume volume(const Routine& routine);

/// A rank's or a step's place in a vector.
inline std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace trireme::comm
