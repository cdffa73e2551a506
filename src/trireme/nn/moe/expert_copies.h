// nn/moe/expert_copies.h -- copies of hot experts on other expert-parallel ranks, which share their tokens.
//
// The parameters stay as they are: each expert's weights, master weights and optimizer state are on the rank that owns
// it, and checkpoints hold experts, not copies. While a layer runs, ranks with copies have their weights beside their
// own, moved as a reshard plan says (layout/reshard.h), and in backward what the copies give of the weight gradient
// goes back the same way and is added by the owner, in the order of ranks: dW is the sum over all tokens that met the
// expert.
//
// Experts themselves may lie in another order than that of their numbers (layout::place_owners): then each place among
// a rank's own is one of its slots as before.
//
// An expert's rows go to its slots in turn, by global token number; a rank's slots are its own experts, then its
// copies.
// Depends on: base, layout, dispatch.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/layout/reshard.h"
#include "trireme/nn/moe/dispatch.h"

namespace trireme::nn::moe {

class ExpertCopies {
 public:
  /// `copies` [ranks x room]: layout::place_copies(); `order` [experts]: who lies in each place of the ranks' own;
  /// empty: 0, 1, ... The exchange is borrowed.
  ExpertCopies(RowExchange& exchange, std::int64_t experts, std::vector<std::int64_t> copies,
               std::vector<std::int64_t> order = {});

  const std::vector<std::int64_t>& copies() const { return copies_; }
  const std::vector<std::int64_t>& order() const { return order_; }
  /// False: experts lie in another order, and that is all.
  bool any() const { return room_ > 0; }
  /// Over all ranks.
  std::int64_t slots() const { return exchange_.ranks() * (own_ + room_); }
  std::int64_t slot_of(std::int64_t expert, std::int64_t token_number) const;
  /// The expert in each slot of this rank, for what is drawn by expert; that of an empty one is -1.
  const std::vector<std::int64_t>& experts_here() const { return here_; }

  /// [own experts + room, ..]: `own` [own experts, ..] and behind it the copies'. On all ranks together.
  at::Tensor with_copies(const at::Tensor& own) const;
  /// What `all`, as above, has in copies is added to the owners' experts, and its first part to `own`: accumulated
  /// there, or written where `fresh`.
  void add_to_owners(const at::Tensor& all, at::Tensor& own, bool fresh) const;

 private:
  /// Which elements of a tensor with so many an expert go where.
  struct Moves {
    struct Run {
      std::int64_t at, count;
    };
    std::vector<std::int64_t> send, receive;       // elements, by rank
    std::vector<std::vector<Run>> taken, written;  // by rank: stretches of this rank's experts, and of its copies
  };
  Moves moves_of(std::int64_t elements) const;
  std::int64_t expert_at(std::int64_t place) const;

  RowExchange& exchange_;
  std::int64_t experts_, own_, room_;
  std::vector<std::int64_t> copies_, order_, here_;
  std::vector<std::vector<std::int64_t>> slots_of_;  // by expert
};

}  // namespace trireme::nn::moe
