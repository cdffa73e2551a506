// comm/nccl/rounds.h -- small exchanges between the hosts of a group, beside a call on their GPUs.
//
// Rounds: after log2(ranks) rounds of messages every rank has heard, directly or not, of every other (dissemination):
// so all have arrived, all have made the same call, and what each brought is combined. Letters: one number from each
// rank to each other. Both are pushed on by the operation that owns them.
// Depends on: transport.h, operation.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/operation.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

class Rounds {
 public:
  /// mine = mine (+) theirs, in any order and any number of times with the same result.
  using Combine = void (*)(std::byte* mine, const std::byte* theirs, std::size_t bytes);
  struct Context {
    Transport& host;
    const Members& members;
    CallKey key;
    std::uint32_t tag;
  };
  Rounds(const Context& context, std::vector<std::byte> mine, Combine combine);

  /// Raises a mismatch in the name of `owner` where the keys differ.
  Progress advance(const Operation& owner, Effort effort);
  void abandon() noexcept;
  const std::byte* data() const { return mine_.data(); }

 private:
  Context context_;
  std::vector<std::byte> mine_, sent_, received_;
  Combine combine_;
  int distance_ = 1;
  std::unique_ptr<Transfer> send_, recv_;
};

class Letters {
 public:
  /// `mine`: one for each rank of the group.
  Letters(const Rounds::Context& context, std::vector<std::uint64_t> mine);
  Progress advance(const Operation& owner, Effort effort);
  void abandon() noexcept;
  /// What each rank wrote to this one.
  const std::vector<std::uint64_t>& received() const { return received_; }

 private:
  Rounds::Context context_;
  std::vector<std::uint64_t> mine_, received_;
  std::vector<std::unique_ptr<Transfer>> open_;
  std::vector<int> peers_;
  bool posted_ = false;
};

}  // namespace trireme::comm
