// The closed formulas. Names as in Thakur, Rabenseifner and Gropp (2005): p ranks, n bytes, lg p rounds; section
// numbers are theirs. Where they only give powers of two, the corrections for other p follow from what our routines do,
// and the tests hold every formula against a replay of the routines themselves.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "trireme/cost/collectives.h"

namespace trireme::cost {

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

bool is_power_of_two(int p) { return std::has_single_bit(static_cast<unsigned>(p)); }
int floor_lg(int p) { return std::bit_width(static_cast<unsigned>(p)) - 1; }
int ceil_lg(int p) { return is_power_of_two(p) ? floor_lg(p) : floor_lg(p) + 1; }

/// All messages and all combining on the critical path.
double sum(const LinkCost& link, double messages, double bytes, double combined = 0) {
  return messages * link.alpha + bytes * link.beta + combined * link.gamma;
}

/// (p-1)/p n: everything but one's own block.
double others(int p, double n) { return (p - 1.0) / p * n; }

// ---- rings, trees and exchanges, each with p ranks

double ring_reduce_scatter(int p, double n, const LinkCost& link) {
  return sum(link, p - 1, others(p, n), others(p, n));  // 4.2
}
double ring_all_gather(int p, double n, const LinkCost& link) { return sum(link, p - 1, others(p, n)); }  // 3.1
double binomial_broadcast(int p, double n, const LinkCost& link) {
  return sum(link, ceil_lg(p), ceil_lg(p) * n);  // 3.3
}
double binomial_reduce(int p, double n, const LinkCost& link) {
  return sum(link, ceil_lg(p), ceil_lg(p) * n, ceil_lg(p) * n);  // 4.3
}
double binomial_gather(int p, double n, const LinkCost& link) { return sum(link, ceil_lg(p), others(p, n)); }
double doubling_all_gather(int p, double n, const LinkCost& link) { return sum(link, floor_lg(p), others(p, n)); }
double halving_reduce_scatter(int p, double n, const LinkCost& link) {
  return sum(link, floor_lg(p), others(p, n), others(p, n));  // 4.2
}

/// Pairs of ranks become one: they exchange halves, combine them, and one half is sent over (Rabenseifner 2004, 2.2).
double fold(int p, double n, const LinkCost& link) { return is_power_of_two(p) ? 0 : sum(link, 2, n, n / 2); }
double unfold(int p, double n, const LinkCost& link) { return is_power_of_two(p) ? 0 : sum(link, 1, n); }

/// Recursive halving where the first ranks stand for two after folding: in every round somebody exchanges the heavier
/// part, which is S(2^j) blocks in the round with 2^j members left on each side, S(m) = m + min(m, pairs).
double folded_halving_reduce_scatter(int p, double n, const LinkCost& link) {
  const int members = 1 << floor_lg(p), pairs = p - members;
  double blocks = 0;
  for (int side = 1; side < members; side *= 2) blocks += side + std::min(side, pairs);
  return sum(link, floor_lg(p), blocks / p * n, blocks / p * n);
}

double doubling_all_reduce(int p, double n, const LinkCost& link) {  // 4.5
  const double rounds = floor_lg(p);
  if (is_power_of_two(p)) return sum(link, rounds, rounds * n, rounds * n);
  return sum(link, rounds + 2, (rounds + 2) * n, (rounds + 1) * n);
}

double halving_doubling_all_reduce(int p, double n, const LinkCost& link) {  // 4.5
  const int members = 1 << floor_lg(p);
  return fold(p, n, link) + halving_reduce_scatter(members, n, link) + doubling_all_gather(members, n, link) +
         unfold(p, n, link);
}

double bruck_all_to_all(int p, double n, const LinkCost& link) {  // 3.6: lg p n/2 beta for powers of two
  double moved = 0;
  for (int distance = 1; distance < p; ++distance) moved += std::popcount(static_cast<unsigned>(distance));
  return sum(link, ceil_lg(p), moved / p * n);
}

double scatter_all_gather(int p, double n, const LinkCost& link) {  // 3.4
  return binomial_gather(p, n, link) +
         (is_power_of_two(p) ? doubling_all_gather(p, n, link) : ring_all_gather(p, n, link));
}

// ---- by algorithm; one kind of link

double ring(Collective op, int p, double n, const LinkCost& link) {
  if (op == Collective::kAllReduce) return ring_reduce_scatter(p, n, link) + ring_all_gather(p, n, link);
  if (op == Collective::kReduceScatter) return ring_reduce_scatter(p, n, link);
  return op == Collective::kAllGather ? ring_all_gather(p, n, link) : kNone;
}

double recursive_doubling(Collective op, int p, double n, const LinkCost& link) {
  if (op == Collective::kAllReduce) return doubling_all_reduce(p, n, link);
  return op == Collective::kAllGather && is_power_of_two(p) ? doubling_all_gather(p, n, link) : kNone;
}

double halving_doubling(Collective op, int p, double n, const LinkCost& link) {
  const int members = 1 << floor_lg(p);
  if (op == Collective::kAllReduce) return halving_doubling_all_reduce(p, n, link);
  if (op == Collective::kReduce)
    return fold(p, n, link) + halving_reduce_scatter(members, n, link) + binomial_gather(members, n, link);
  if (op == Collective::kReduceScatter)
    return fold(p, n, link) + folded_halving_reduce_scatter(p, n, link) + unfold(p, n / p, link);
  return kNone;
}

double binomial(Collective op, int p, double n, const LinkCost& link) {
  switch (op) {
    case Collective::kAllReduce:
      return binomial_reduce(p, n, link) + binomial_broadcast(p, n, link);
    case Collective::kBroadcast:
      return binomial_broadcast(p, n, link);
    case Collective::kReduce:
      return binomial_reduce(p, n, link);
    case Collective::kGather:
    case Collective::kScatter:
      return binomial_gather(p, n, link);
    default:
      return kNone;
  }
}

double bruck(Collective op, int p, double n, const LinkCost& link) {
  if (op == Collective::kAllGather) return sum(link, ceil_lg(p), others(p, n));  // 3.1
  if (op == Collective::kAllToAll) return bruck_all_to_all(p, n, link);
  return op == Collective::kBarrier ? sum(link, ceil_lg(p), 0) : kNone;
}

double pairwise(Collective op, int p, double n, const LinkCost& link) {
  if (op == Collective::kAllToAll) return sum(link, p - 1, others(p, n));  // 3.6
  return op == Collective::kReduceScatter ? ring_reduce_scatter(p, n, link) : kNone;
}

double linear(Collective op, int p, double n, const LinkCost& link) {
  switch (op) {
    case Collective::kBroadcast:
      return sum(link, p - 1, (p - 1) * n);
    case Collective::kReduce:
      return sum(link, p - 1, (p - 1) * n, (p - 1) * n);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return sum(link, p - 1, others(p, n));
    default:
      return kNone;
  }
}

/// k nodes of m ranks; with unequal nodes, m is the fullest's and leaders speak for them.
double hierarchical(Collective op, const Topology& topology, double n, const Links& links) {
  const int p = topology.ranks, k = topology.nodes, m = (p + k - 1) / k;
  const LinkCost &in = links.inside, &out = links.across;
  const bool equal = p % k == 0;
  switch (op) {
    case Collective::kAllReduce:
      if (equal)
        return ring_reduce_scatter(m, n, in) + halving_doubling_all_reduce(k, n / m, out) + ring_all_gather(m, n, in);
      return binomial_reduce(m, n, in) + halving_doubling_all_reduce(k, n, out) + binomial_broadcast(m, n, in);
    case Collective::kReduceScatter:
      // Inside, a step has a piece for each node; combining one hides behind moving the next, but for the last.
      if (equal) return sum(in, (m - 1.0) * k, others(m, n), n / m / k) + ring_reduce_scatter(k, n / m, out);
      return binomial_reduce(m, n, in) + ring_reduce_scatter(k, n, out) + sum(in, m - 1, (m - 1) * n / p);
    case Collective::kAllGather:
      if (equal) return ring_all_gather(k, n / m, out) + sum(in, (m - 1.0) * k, others(m, n));
      return sum(in, m - 1, (m - 1) * n / p) + ring_all_gather(k, n, out) + binomial_broadcast(m, n, in);
    case Collective::kBroadcast:
      return binomial_broadcast(k, n, out) + binomial_broadcast(m, n, in);
    case Collective::kReduce:
      return binomial_reduce(m, n, in) + binomial_reduce(k, n, out);
    case Collective::kBarrier:
      return sum(in, 2 * ceil_lg(m), 0) + sum(out, ceil_lg(k), 0);
    default:
      return kNone;
  }
}

}  // namespace

double bus_factor(Collective op, int ranks) {
  switch (op) {
    case Collective::kAllReduce:
      return 2 * others(ranks, 1);
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter:
      return others(ranks, 1);
    case Collective::kBroadcast:
    case Collective::kReduce:
      return 1;
    case Collective::kBarrier:
      return 0;
  }
  return 0;
}

double wire_bytes(Collective op, int ranks, double bytes) { return ranks == 1 ? 0 : bus_factor(op, ranks) * bytes; }

double predict(Collective op, Algorithm algorithm, const Topology& topology, double bytes, const Links& links) {
  const int p = topology.ranks;
  const LinkCost& link = topology.nodes > 1 ? links.across : links.inside;
  const auto priced = [&]() -> double {
    switch (algorithm) {
      case Algorithm::kRing:
        return ring(op, p, bytes, link);
      case Algorithm::kRecursiveDoubling:
        return recursive_doubling(op, p, bytes, link);
      case Algorithm::kHalvingDoubling:
        return halving_doubling(op, p, bytes, link);
      case Algorithm::kBinomial:
        return binomial(op, p, bytes, link);
      case Algorithm::kScatterAllGather:
        return op == Collective::kBroadcast ? scatter_all_gather(p, bytes, link) : kNone;
      case Algorithm::kBruck:
        return bruck(op, p, bytes, link);
      case Algorithm::kPairwise:
        return pairwise(op, p, bytes, link);
      case Algorithm::kLinear:
        return linear(op, p, bytes, link);
      case Algorithm::kHierarchical:
        return hierarchical(op, topology, bytes, links);
      case Algorithm::kAuto:
      case Algorithm::kDirect:
      case Algorithm::kNative:
        return kNone;
    }
    return kNone;
  };
  const double seconds = priced();
  return p == 1 && std::isfinite(seconds) ? 0 : seconds;  // one rank talks to nobody
}

double predict(Collective op, Algorithm algorithm, int ranks, double bytes, const LinkCost& link) {
  return predict(op, algorithm, Topology{.ranks = ranks, .nodes = 1}, bytes, {link, link});
}

}  // namespace trireme::cost
