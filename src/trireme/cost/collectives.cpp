#include "trireme/cost/collectives.h"

#include <algorithm>
#include <array>
#include <utility>

namespace trireme::cost {

namespace {

constexpr std::array kCollectives{
    Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
    Collective::kAllToAll,  Collective::kBroadcast,     Collective::kReduce,
    Collective::kGather,    Collective::kScatter,       Collective::kBarrier,
};

constexpr std::array kAlgorithms{
    Algorithm::kAuto,
    Algorithm::kRing,
    Algorithm::kRecursiveDoubling,
    Algorithm::kHalvingDoubling,
    Algorithm::kBinomial,
    Algorithm::kScatterAllGather,
    Algorithm::kBruck,
    Algorithm::kPairwise,
    Algorithm::kLinear,
    Algorithm::kHierarchical,
    Algorithm::kDirect,
    Algorithm::kNative,
};

template <typename Value, std::size_t size>
std::optional<Value> parse(const std::array<Value, size>& values, std::string_view text) {
  const auto found = std::ranges::find_if(values, [&](Value value) { return name(value) == text; });
  return found == values.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::string_view name(Collective op) {
  switch (op) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kBarrier:
      return "barrier";
  }
  return "?";
}

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRecursiveDoubling:
      return "recursive_doubling";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
    case Algorithm::kBinomial:
      return "binomial";
    case Algorithm::kScatterAllGather:
      return "scatter_all_gather";
    case Algorithm::kBruck:
      return "bruck";
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kLinear:
      return "linear";
    case Algorithm::kHierarchical:
      return "hierarchical";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kNative:
      return "native";
  }
  return "?";
}

std::optional<Collective> parse_collective(std::string_view text) { return parse(kCollectives, text); }
std::optional<Algorithm> parse_algorithm(std::string_view text) { return parse(kAlgorithms, text); }
std::span<const Collective> all_collectives() { return kCollectives; }
std::span<const Algorithm> all_algorithms() { return kAlgorithms; }

}  // namespace trireme::cost
