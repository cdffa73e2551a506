// The list of all algorithms: what is not here does not exist for tests, `auto` and the benchmark.
#include <algorithm>

#include "trireme/comm/algorithms/builder.h"
#include "trireme/comm/algorithms/builders.h"

namespace trireme::comm {

namespace {

/// One rank talks to nobody; whatever the algorithm, it only moves its data to the output.
Routine alone(const Shape& shape) {
  RoutineBuilder to(shape, 0, Cut::kWhole);
  if (shape.op == Collective::kBroadcast || shape.op == Collective::kBarrier) return to.take();
  const Slice output = whole_output(shape).memory;
  to.copy(whole_input(shape).memory, output);
  if (shape.op == Collective::kAllReduce || shape.op == Collective::kReduce || shape.op == Collective::kReduceScatter)
    to.finish(output);
  return to.take();
}

template <Builder algorithm>
Routine build(const Shape& shape, int rank) {
  return shape.ranks == 1 ? alone(shape) : algorithm(shape, rank);
}

std::string refuses_nothing(const Shape&) { return ""; }

constexpr AlgorithmEntry kTable[] = {
    {Algorithm::kRing, Collective::kAllReduce, build<ring_all_reduce>, refuses_nothing},
    {Algorithm::kRing, Collective::kReduceScatter, build<ring_reduce_scatter>, refuses_nothing},
    {Algorithm::kRing, Collective::kAllGather, build<ring_all_gather>, refuses_nothing},

    {Algorithm::kRecursiveDoubling, Collective::kAllReduce, build<recursive_doubling_all_reduce>, refuses_nothing},
    {Algorithm::kRecursiveDoubling, Collective::kAllGather, build<recursive_doubling_all_gather>,
     recursive_doubling_all_gather_refuses},

    {Algorithm::kHalvingDoubling, Collective::kAllReduce, build<halving_doubling_all_reduce>, refuses_nothing},
    {Algorithm::kHalvingDoubling, Collective::kReduceScatter, build<halving_doubling_reduce_scatter>, refuses_nothing},
    {Algorithm::kHalvingDoubling, Collective::kReduce, build<halving_doubling_reduce>, refuses_nothing},

    {Algorithm::kBinomial, Collective::kAllReduce, build<binomial_all_reduce>, refuses_nothing},
    {Algorithm::kBinomial, Collective::kBroadcast, build<binomial_broadcast>, refuses_nothing},
    {Algorithm::kBinomial, Collective::kReduce, build<binomial_reduce>, refuses_nothing},
    {Algorithm::kBinomial, Collective::kGather, build<binomial_gather>, refuses_nothing},
    {Algorithm::kBinomial, Collective::kScatter, build<binomial_scatter>, refuses_nothing},

    {Algorithm::kScatterAllGather, Collective::kBroadcast, build<scatter_all_gather_broadcast>, refuses_nothing},

    {Algorithm::kBruck, Collective::kAllGather, build<bruck_all_gather>, bruck_refuses},
    {Algorithm::kBruck, Collective::kAllToAll, build<bruck_all_to_all>, bruck_refuses},
    {Algorithm::kBruck, Collective::kBarrier, build<bruck_barrier>, bruck_refuses},

    {Algorithm::kPairwise, Collective::kAllToAll, build<pairwise_all_to_all>, refuses_nothing},
    {Algorithm::kPairwise, Collective::kReduceScatter, build<pairwise_reduce_scatter>, refuses_nothing},

    {Algorithm::kLinear, Collective::kBroadcast, build<linear_broadcast>, refuses_nothing},
    {Algorithm::kLinear, Collective::kReduce, build<linear_reduce>, refuses_nothing},
    {Algorithm::kLinear, Collective::kGather, build<linear_gather>, refuses_nothing},
    {Algorithm::kLinear, Collective::kScatter, build<linear_scatter>, refuses_nothing},
    {Algorithm::kLinear, Collective::kAllGather, build<linear_all_gather>, refuses_nothing},
    {Algorithm::kLinear, Collective::kAllToAll, build<linear_all_to_all>, refuses_nothing},

    {Algorithm::kHierarchical, Collective::kAllReduce, build<hierarchical_all_reduce>, hierarchical_refuses},
    {Algorithm::kHierarchical, Collective::kReduceScatter, build<hierarchical_reduce_scatter>, hierarchical_refuses},
    {Algorithm::kHierarchical, Collective::kAllGather, build<hierarchical_all_gather>, hierarchical_refuses},
    {Algorithm::kHierarchical, Collective::kBroadcast, build<hierarchical_broadcast>, hierarchical_refuses},
    {Algorithm::kHierarchical, Collective::kReduce, build<hierarchical_reduce>, hierarchical_refuses},
    {Algorithm::kHierarchical, Collective::kBarrier, build<hierarchical_barrier>, hierarchical_refuses},
};

}  // namespace

std::span<const AlgorithmEntry> algorithm_table() { return kTable; }

const AlgorithmEntry* find_algorithm(Collective op, Algorithm algorithm) {
  const auto found = std::ranges::find_if(
      kTable, [&](const AlgorithmEntry& entry) { return entry.op == op && entry.algorithm == algorithm; });
  return found == std::end(kTable) ? nullptr : &*found;
}

}  // namespace trireme::comm
