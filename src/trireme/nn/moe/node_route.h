// nn/moe/node_route.h -- hierarchical all-to-all: a token crosses once to each node that it has experts on.
//
// Neighbouring ranks of the expert-parallel group are a node. Flat, a token's row travels once for each of its experts;
// here it makes two hops: to the rank of the other node that has the sender's place in it, with a mask of the ranks
// that want it there, and from that one, inside the node, once to each of those, which lay it out for their experts. So
// rows between nodes are, over all tokens, the number of other nodes that each has experts on (DeepSeek-V3, 2412.19437,
// section 3.2.2), and rows inside one the number of ranks. Rows that differ from expert to expert, on their way back,
// travel flat: they are summed at the token's home, in the order that no layout changes.
// Depends on: base, dispatch.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::nn::moe {

class RowExchange;
struct DispatchPass;

/// The two hops of one pass, as one rank sees them.
class NodeRoute {
 public:
  struct Sent {
    std::span<const std::int64_t> tokens;   ///< [home rows]: which of this rank's tokens
    std::span<const std::int64_t> numbers;  ///< [home rows]: global
  };
  /// `received` [rows]: numbers of the rows that come, by source. On all ranks together; ranks of a node at most 62.
  NodeRoute(RowExchange& exchange, int node_ranks, const DispatchPass& pass, const Sent& sent,
            std::span<const std::int64_t> received);

  /// Of `tokens` [tokens of this rank, ..] those of the pass, as rows by source, once for each expert.
  at::Tensor move(const at::Tensor& tokens) const;

 private:
  void plan_first_hop(const DispatchPass& pass, const Sent& sent);
  void plan_second_hop(const DispatchPass& pass, std::span<const std::int64_t> received);
  int node_of(int rank) const { return rank / node_ranks_; }

  RowExchange& exchange_;
  int node_ranks_;
  std::vector<std::int64_t> first_token_, mask_;  // of the rows of the first hop, by node
  std::vector<std::int64_t> first_send_, first_receive_, second_send_, second_receive_;  // by rank of the group
  std::vector<std::int64_t> second_row_;  // of the rows of the second hop, by rank of the node: a row of the first
  std::vector<std::int64_t> row_;         // of the pass's rows, by source: a row of the second hop
};

}  // namespace trireme::nn::moe
