// comm/guarded_operation.h -- a transport library's own collective, entered only after the ranks have agreed on the
// call.
//
// The library would hang or write past a buffer on calls that do not match. Where the ranks share memory they compare
// keys on the board first; elsewhere the transport's native operation must do so itself.
// Depends on: board.h, transport.h.
#pragma once

#include <memory>

#include "trireme/comm/board.h"
#include "trireme/comm/operation.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

/// A library matches collectives of a group by the order in which each rank starts them. Ranks see each other arrive in
/// any order: a call is started only after those made before it.
struct NativeOrder {
  std::uint64_t made = 0, started = 0;
};

class GuardedOperation final : public Operation {
 public:
  /// `board` may be null; then the native operation sees to the agreement itself. `order` is the group's.
  GuardedOperation(Transport& transport, const Members& members, Board* board, std::uint64_t board_sequence,
                   const Call& call, NativeOrder& order)
      : transport_(transport),
        members_(members),
        board_(board),
        board_sequence_(board_sequence),
        call_(call),
        order_(order),
        number_(order.made++) {}

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override;

 private:
  Transport& transport_;
  const Members& members_;
  Board* board_;
  std::uint64_t board_sequence_;
  Call call_;
  bool entered_ = false;
  int next_rank_ = 0;
  NativeOrder& order_;
  std::uint64_t number_;
  std::unique_ptr<Operation> inner_;
};

}  // namespace trireme::comm
