#include "trireme/nn/moe/expert_copies.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "trireme/base/error.h"

namespace trireme::nn::moe {
namespace {

std::size_t at_rank(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

ExpertCopies::ExpertCopies(RowExchange& exchange, std::int64_t experts, std::vector<std::int64_t> copies,
                           std::vector<std::int64_t> order)
    : exchange_(exchange),
      experts_(experts),
      own_(experts / exchange.ranks()),
      room_(static_cast<std::int64_t>(copies.size()) / exchange.ranks()),
      copies_(std::move(copies)),
      order_(std::move(order)),
      slots_of_(static_cast<std::size_t>(experts)) {
  TRIREME_CHECK(
      own_ * exchange.ranks() == experts && room_ * exchange.ranks() == static_cast<std::int64_t>(copies_.size()),
      "{} experts and {} copies on {} ranks", experts, copies_.size(), exchange.ranks());
  const auto first = [this](int rank) { return rank * (own_ + room_); };
  TRIREME_CHECK(order_.empty() || static_cast<std::int64_t>(order_.size()) == experts, "{} places for {} experts",
                order_.size(), experts);
  for (std::int64_t place = 0; place < experts; ++place) {
    const std::int64_t expert = expert_at(place);
    const auto owner = static_cast<int>(place / own_);
    slots_of_[static_cast<std::size_t>(expert)].push_back(first(owner) + place % own_);
    if (owner == exchange_.rank()) here_.push_back(expert);
  }
  for (int rank = 0; rank < exchange_.ranks(); ++rank) {
    for (std::int64_t i = 0; i < room_; ++i) {
      const std::int64_t expert = copies_[static_cast<std::size_t>(rank * room_ + i)];
      if (expert >= 0) slots_of_[static_cast<std::size_t>(expert)].push_back(first(rank) + own_ + i);
      if (rank == exchange_.rank()) here_.push_back(expert);
    }
  }
}

std::int64_t ExpertCopies::slot_of(std::int64_t expert, std::int64_t token_number) const {
  const std::vector<std::int64_t>& slots = slots_of_[static_cast<std::size_t>(expert)];
  // Sample and column: neighbours in either go to other slots.
  const std::int64_t turn = (token_number >> 32) + (token_number & 0xffffffff);
  return slots[static_cast<std::size_t>(turn) % slots.size()];
}

std::int64_t ExpertCopies::expert_at(std::int64_t place) const {
  return order_.empty() ? place : order_[static_cast<std::size_t>(place)];
}

ExpertCopies::Moves ExpertCopies::moves_of(std::int64_t elements) const {
  const int ranks = exchange_.ranks();
  const layout::Shape shape{experts_, elements};
  const auto piece = [elements](std::int64_t begin, std::int64_t end) {
    return layout::Piece{.box = {{begin, 0}, {end, elements}}, .padding = 0, .replica_axes = {}};
  };
  std::vector<layout::Placement> owners(at_rank(ranks)), holders(at_rank(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    owners[at_rank(rank)] = {.name = "experts", .shape = shape, .pieces = {}, .partition = {}};
    for (std::int64_t place = rank * own_; place < (rank + 1) * own_; ++place)
      owners[at_rank(rank)].pieces.push_back(piece(expert_at(place), expert_at(place) + 1));
    holders[at_rank(rank)] = {.name = "experts", .shape = shape, .pieces = {}, .partition = {}};
    for (std::int64_t i = 0; i < room_; ++i) {
      const std::int64_t expert = copies_[static_cast<std::size_t>(rank * room_ + i)];
      if (expert >= 0) holders[at_rank(rank)].pieces.push_back(piece(expert, expert + 1));
    }
  }
  Moves moves{.send = std::vector<std::int64_t>(at_rank(ranks), 0),
              .receive = std::vector<std::int64_t>(at_rank(ranks), 0),
              .taken = std::vector<std::vector<Moves::Run>>(at_rank(ranks)),
              .written = std::vector<std::vector<Moves::Run>>(at_rank(ranks))};
  for (const layout::ReshardTransfer& transfer : layout::plan_reshard(owners, holders, /*element_bytes=*/1).transfers) {
    for (const layout::Copy& copy : transfer.copies) {
      if (transfer.source == exchange_.rank()) {
        moves.taken[at_rank(transfer.target)].push_back({copy.from, copy.count});
        moves.send[at_rank(transfer.target)] += copy.count;
      }
      if (transfer.target == exchange_.rank()) {
        moves.written[at_rank(transfer.source)].push_back({copy.to, copy.count});
        moves.receive[at_rank(transfer.source)] += copy.count;
      }
    }
  }
  return moves;
}

at::Tensor ExpertCopies::with_copies(const at::Tensor& own) const {
  TRIREME_CHECK(own.size(0) == own_, "{} experts where {} are here", own.size(0), own_);
  const Moves moves = moves_of(own.numel() / own_);
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes[0] = own_ + room_;
  at::Tensor all = at::empty(sizes, own.options());
  all.narrow(0, 0, own_).copy_(own);
  at::Tensor copies = all.narrow(0, own_, room_).view({-1});
  const at::Tensor flat = own.contiguous().view({-1});
  std::vector<at::Tensor> leaving{at::empty({0}, own.options())};
  for (const auto& runs : moves.taken) {
    for (const auto& run : runs) leaving.push_back(flat.narrow(0, run.at, run.count));
  }
  const at::Tensor come = exchange_.exchange(at::cat(leaving), moves.send, moves.receive);
  std::int64_t at = 0;
  for (const auto& runs : moves.written) {
    for (const auto& run : runs) {
      copies.narrow(0, run.at, run.count).copy_(come.narrow(0, at, run.count));
      at += run.count;
    }
  }
  return all;
}

void ExpertCopies::add_to_owners(const at::Tensor& all, at::Tensor& own, bool fresh) const {
  const Moves moves = moves_of(own.numel() / own_);
  const at::Tensor mine = all.narrow(0, 0, own_);
  if (fresh) {
    own.copy_(mine);
  } else {
    own.add_(mine);
  }
  const at::Tensor copies = all.narrow(0, own_, room_).reshape({-1});
  std::vector<at::Tensor> leaving{at::empty({0}, all.options())};
  for (const auto& runs : moves.written) {
    for (const auto& run : runs) leaving.push_back(copies.narrow(0, run.at, run.count));
  }
  const at::Tensor come = exchange_.exchange(at::cat(leaving), moves.receive, moves.send);
  at::Tensor flat = own.view({-1});
  std::int64_t at = 0;
  for (const auto& runs : moves.taken) {  // by rank, whoever came first
    for (const auto& run : runs) {
      flat.narrow(0, run.at, run.count).add_(come.narrow(0, at, run.count));
      at += run.count;
    }
  }
}

}  // namespace trireme::nn::moe
