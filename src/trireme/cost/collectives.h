// cost/collectives.h -- which collective operations and algorithms there are, and what each should cost.
//
// The alpha-beta-gamma model of Thakur, Rabenseifner and Gropp (2005): a message of n bytes costs alpha + n*beta, and
// combining n bytes costs n*gamma. The planner prices layouts with these formulas and `auto` in the comm room picks
// algorithms with them, so what is predicted is what runs.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace trireme::cost {

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
};

enum class Algorithm : std::uint8_t {
  kAuto,               ///< chosen by size and rank count with this model
  kRing,               ///< p-1 steps to the neighbour, segments pipelined
  kRecursiveDoubling,  ///< lg p exchanges of everything held so far
  kHalvingDoubling,    ///< Rabenseifner: recursive halving, then recursive doubling
  kBinomial,           ///< binomial tree from or to the root
  kScatterAllGather,   ///< van de Geijn's long broadcast
  kBruck,              ///< ceil(lg p) rounds of shifted blocks
  kPairwise,           ///< p-1 exchanges, a different partner each
  kLinear,             ///< everyone with the root, at once
  kHierarchical,       ///< inside each node, then across nodes
  kDirect,             ///< shared memory: ranks of one machine read and write each other's data
  kNative,             ///< the transport library's own collective
};

/// What links and arithmetic cost; seconds, seconds per byte.
struct LinkCost {
  double alpha = 0;  ///< latency of one message
  double beta = 0;   ///< per byte on the wire
  double gamma = 0;  ///< per byte combined
};

std::string_view name(Collective op);
std::string_view name(Algorithm algorithm);
/// The inverse of name(); empty when the text names none.
std::optional<Collective> parse_collective(std::string_view text);
std::optional<Algorithm> parse_algorithm(std::string_view text);
std::span<const Collective> all_collectives();
std::span<const Algorithm> all_algorithms();

/// How many ranks there are on how many nodes, spread as evenly as they can be.
struct Topology {
  int ranks = 1, nodes = 1;
};
struct Links {
  LinkCost inside, across;  ///< between ranks of one node; between nodes
};

// Bytes are those of the whole buffer, as in nccl-tests: of the buffer for all_reduce, broadcast and reduce; of the
// longer side, which holds the blocks of all ranks, for all_gather, gather (output), reduce_scatter, scatter (input);
// of one rank's input for all_to_all.

/// Bus bandwidth over algorithm bandwidth: 2(p-1)/p, (p-1)/p or 1. Makes numbers of different rank counts comparable.
double bus_factor(Collective op, int ranks);
/// The least that the busiest rank must send, whatever the algorithm.
double wire_bytes(Collective op, int ranks, double bytes);

/// Seconds for one call; infinite when the operation has no such algorithm, or none for this number of ranks. Flat
/// algorithms wait for the slowest link in every step, so on several nodes they pay for the links across.
/// kDirect and kNative are no formulas but measurements: see cost_table.h.
double predict(Collective op, Algorithm algorithm, const Topology& topology, double bytes, const Links& links);
/// The same where all links are alike.
double predict(Collective op, Algorithm algorithm, int ranks, double bytes, const LinkCost& link);

}  // namespace trireme::cost
