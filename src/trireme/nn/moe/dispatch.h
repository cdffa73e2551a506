// nn/moe/dispatch.h -- rows of tokens on their way to experts and back.
//
// A rank's kept choices, sorted by (expert, token), are its home rows. Experts are sharded over the ranks of a group in
// equal, contiguous parts, so what goes to one rank is contiguous in home order. Two steps: counts (one number an
// expert) are gathered, then rows travel in passes. Which rows go in which pass is a value, the DispatchPlan, which
// every rank derives from the same counts:
//   - a pass gives a rank at most `limit` rows, so that the memory of a pass is known beforehand however uneven the
//     routing is, and nothing is ever dropped for lack of it;
//   - it ends between experts where it can, so that the sum of an expert's weight gradient is that of one GEMM;
//   - all ranks take as many passes, some of them empty, so that collectives match.
//
// Received rows come by source; they are put in the order (expert, global token), which no number of ranks changes.
// Moving rows between two ranks is a RowExchange: nothing on one rank, all-to-all(v) over the expert-parallel group.
// Rows that all experts of a token get alike may travel by nodes (node_route.h).
// Depends on: base, comm, device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/nn/moe/node_route.h"

namespace trireme::nn::moe {

/// Rows on their way between ranks.
struct PendingRows {
  at::Tensor leaving, arriving;         ///< borrowed by the call until it is over
  std::optional<comm::Work> work = {};  ///< none: they are there
  at::Tensor wait() {
    if (work) std::exchange(work, std::nullopt)->wait();
    leaving = at::Tensor();
    return std::move(arriving);
  }
};

class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual int ranks() const = 0;
  virtual int rank() const = 0;
  /// Everybody's, by rank.
  virtual std::vector<std::int64_t> gather_counts(std::span<const std::int64_t> mine) = 0;
  /// `send[r]` rows for each rank r stand one after the other in `rows`; gives `receive[r]` rows from each.
  virtual at::Tensor exchange(const at::Tensor& rows, std::span<const std::int64_t> send,
                              std::span<const std::int64_t> receive) = 0;
  /// The same, begun. Ranks begin exchanges in the same order.
  virtual PendingRows begin(const at::Tensor& rows, std::span<const std::int64_t> send,
                            std::span<const std::int64_t> receive) {
    return {.leaving = at::Tensor(), .arriving = exchange(rows, send, receive)};
  }
};

/// All experts are here.
class LocalExchange final : public RowExchange {
 public:
  int ranks() const override { return 1; }
  int rank() const override { return 0; }
  std::vector<std::int64_t> gather_counts(std::span<const std::int64_t> mine) override;
  at::Tensor exchange(const at::Tensor& rows, std::span<const std::int64_t> send,
                      std::span<const std::int64_t> receive) override;
};

/// Experts are sharded over the group.
class AllToAllExchange final : public RowExchange {
 public:
  /// Borrowed.
  explicit AllToAllExchange(comm::Group& group) : group_(group) {}
  int ranks() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }
  std::vector<std::int64_t> gather_counts(std::span<const std::int64_t> mine) override;
  at::Tensor exchange(const at::Tensor& rows, std::span<const std::int64_t> send,
                      std::span<const std::int64_t> receive) override {
    return begin(rows, send, receive).wait();
  }
  PendingRows begin(const at::Tensor& rows, std::span<const std::int64_t> send,
                    std::span<const std::int64_t> receive) override;

 private:
  comm::Group& group_;
};

/// One pass as one rank sees it.
struct DispatchPass {
  std::vector<std::int64_t> send_first, send;  ///< by rank: its rows are send_first .. + send of home order
  std::vector<std::int64_t> receive;           ///< by rank: rows that come
  std::vector<std::int64_t> counts;            ///< [ranks, local experts], row by row: rows that come for each
  std::vector<std::int64_t> offsets;           ///< [local experts + 1]: rows of each when they are sorted

  std::int64_t rows() const { return offsets.back(); }
};
using DispatchPlan = std::vector<DispatchPass>;

/// `counts` [ranks, experts]: home rows of each rank for each expert. At least one pass.
DispatchPlan plan_dispatch(std::span<const std::int64_t> counts, int ranks, int rank, std::int64_t limit);
/// Rows of a pass for an arena of so many even shares; at least 1.
std::int64_t arena_rows(std::span<const std::int64_t> counts, int ranks, double arena);

/// A pass that has begun: home rows to expert order and back, as often as wanted, on all ranks together.
class Dispatch {
 public:
  /// Of each home row, int64 [home rows]: which of this rank's tokens it is, and its number in the global batch.
  struct Tokens {
    at::Tensor token, number;
  };
  /// `node_ranks`: neighbouring ranks that are a node, of several; 0: rows go straight to their ranks. Borrows exchange
  /// and pass.
  Dispatch(RowExchange& exchange, const DispatchPass& pass, Tokens home, std::int64_t node_ranks = 0);

  const DispatchPass& pass() const { return pass_; }
  /// int64 [rows]: of the rows in expert order.
  const at::Tensor& token_numbers() const {
    settle();
    return numbers_;
  }
  /// Of `home` [home rows, ..] those of this pass, as [rows, ..] in expert order.
  at::Tensor to_experts(const at::Tensor& home) const;
  /// The same of what all rows of a token have in common: `tokens` [tokens of this rank, ..].
  at::Tensor tokens_to_experts(const at::Tensor& tokens) const;
  /// The other way: into the rows of `home` that belong to this pass.
  void to_home(const at::Tensor& rows, at::Tensor& home) const;

  /// The same in two parts, with time for other things between them: what was begun arrives by arrived(), as rows in
  /// expert order, or by arrived_home(). Rows by nodes take two hops, and are there when begin_tokens() is back.
  PendingRows begin_to_experts(const at::Tensor& home) const;
  PendingRows begin_tokens(const at::Tensor& tokens) const;
  PendingRows begin_home(const at::Tensor& rows) const;
  at::Tensor arrived(PendingRows& pending) const;
  void arrived_home(PendingRows& pending, at::Tensor& home) const;

 private:
  at::Tensor send_rows(const at::Tensor& home) const;
  /// Numbers of the rows that come have arrived: these have an order.
  void settle() const;

  RowExchange& exchange_;
  const DispatchPass& pass_;
  Tokens home_;
  std::optional<NodeRoute> route_;
  mutable PendingRows pending_numbers_;  // until somebody needs them
  mutable at::Tensor order_;  // int64 [rows]: which received row stands where in expert order; undefined: as received
  mutable at::Tensor numbers_;
};

}  // namespace trireme::nn::moe
