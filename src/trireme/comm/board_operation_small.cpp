// Calls small enough for the board's slots: put the data up, take what the others put up.
#include <cstring>
#include <limits>

#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/board_operation.h"

namespace trireme::comm {
namespace {

std::size_t largest_block(const Call& call, int ranks) {
  if (call.blocks.offsets == nullptr) return call.blocks.equal;
  std::size_t largest = 0;
  for (int r = 0; r < ranks; ++r) largest = std::max(largest, call.blocks.count(r));
  return largest;
}

}  // namespace

std::size_t inline_payload_bytes(const Call& call, int ranks) {
  switch (call.key.op) {
    case Op::kAllToAll:  // with uneven blocks the ranks do not know each other's sizes
      if (call.blocks.offsets != nullptr) return std::numeric_limits<std::size_t>::max();
      return call.key.count * call.element();
    case Op::kAllGather:
      return largest_block(call, ranks) * call.element();
    default:
      return call.key.count * call.element();
  }
}

void BoardOperation::put_payload() {
  const int me = board_->me();
  const std::size_t element = call_.element();
  std::size_t bytes = call_.key.count * element;
  switch (call_.key.op) {
    case Op::kAllGather:
    case Op::kGather:
      bytes = call_.blocks.count(me) * element;
      break;
    case Op::kBroadcast:
    case Op::kScatter:
      if (me != call_.key.root) return;
      break;
    default:
      break;
  }
  if (bytes != 0) std::memcpy(board_->payload(me, call_.sequence), call_.in, bytes);
}

void BoardOperation::take_payloads() {
  const int me = board_->me(), ranks = board_->ranks(), root = call_.key.root;
  const std::size_t element = call_.element();
  const auto payload = [&](int r) -> const std::byte* { return board_->payload(r, call_.sequence); };
  auto* out = static_cast<std::byte*>(call_.out);
  const auto copy = [&](std::size_t to, const std::byte* from, std::size_t count) {
    if (count != 0) std::memcpy(out + to * element, from, count * element);
  };
  const auto fold = [&](std::size_t begin, std::size_t count) {
    if (count == 0) return;
    constexpr int kFew = 16;  // more ranks take the road over the heap
    const void* few[kFew];
    std::vector<const void*> many(ranks > kFew ? static_cast<std::size_t>(ranks) : 0);
    const void** from = ranks > kFew ? many.data() : few;
    for (int r = 0; r < ranks; ++r) from[r] = payload(r) + begin * element;
    void* to[] = {out};
    arithmetic(call_.key.type, call_.key.reduce)
        .fold(to, 1, from, static_cast<std::size_t>(ranks), count, call_.key.reduce == Reduce::kAvg ? ranks : 1, false);
  };
  switch (call_.key.op) {
    case Op::kAllReduce:
      fold(0, call_.key.count);
      break;
    case Op::kReduce:
      if (me == root) fold(0, call_.key.count);
      break;
    case Op::kReduceScatter:
      fold(call_.blocks.begin(me), call_.blocks.count(me));
      break;
    case Op::kGather:
      if (me != root) break;
      [[fallthrough]];
    case Op::kAllGather:
      for (int r = 0; r < ranks; ++r) copy(call_.blocks.begin(r), payload(r), call_.blocks.count(r));
      break;
    case Op::kBroadcast:
      if (me != root) copy(0, payload(root), call_.key.count);
      break;
    case Op::kScatter:
      copy(0, payload(root) + call_.blocks.begin(me) * element, call_.blocks.count(me));
      break;
    case Op::kAllToAll:
      for (int r = 0; r < ranks; ++r) {
        copy(call_.recv_blocks.begin(r), payload(r) + call_.blocks.begin(me) * element, call_.recv_blocks.count(r));
      }
      break;
    default:
      break;
  }
}

}  // namespace trireme::comm
