// comm/routine_operation.h -- runs a Routine over a transport's sends and receives: a few lines per step, no algorithm
// inside.
// Depends on: routine.h, transport.h, arithmetic.
#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/operation.h"
#include "trireme/comm/routine.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

/// Memory that routines borrow and give back, so that large scratch is not mapped anew for every call.
class ScratchPool {
 public:
  std::unique_ptr<std::byte[]> take(std::size_t bytes, std::size_t& capacity);
  void give(std::unique_ptr<std::byte[]> memory, std::size_t capacity);

 private:
  struct Piece {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity;
  };
  std::vector<Piece> free_;
};

class RoutineOperation final : public Operation {
 public:
  /// `members`, `scratch` and the memory of `call` outlive the operation; the routine is shared with the group's cache.
  RoutineOperation(Transport& transport, const Members& members, std::shared_ptr<const Routine> routine,
                   const Call& call, std::uint32_t tag, ScratchPool& scratch);
  ~RoutineOperation() override;

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  std::byte* address(const Slice& slice) const;
  void post(const Step& step);
  Progress push(std::size_t posted, Effort effort);
  bool push_others(std::size_t posted, Effort effort);

  Transport& transport_;
  const Members& members_;
  std::shared_ptr<const Routine> routine_;  // shared with the group's cache
  Call call_;
  std::uint32_t tag_;
  ScratchPool& pool_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_capacity_ = 0;
  std::vector<std::unique_ptr<Transfer>> transfers_;  // by step; null: not posted yet, or done
  std::size_t next_ = 0;
  std::size_t first_open_ = 0;  // no transfer of an earlier step is still open
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace trireme::comm
