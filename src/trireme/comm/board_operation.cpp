#include "trireme/comm/board_operation.h"

#include <cstring>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/group.h"

namespace trireme::comm {
namespace {

// Work done before the engine may look at other operations again.
constexpr std::size_t kPieceBytes = 1 << 20;
// Pulled from each other process at a time, for combining.
constexpr std::size_t kPullBytes = 128 << 10;
// Results larger than this do not stay in the caches until they are read: write past them.
constexpr std::size_t kStreamBytes = 4 << 20;

/// Around every access to other ranks' memory, whichever way it ends. `allowed` is false when some rank gave up.
struct Touch {
  explicit Touch(Board& board_) : board(board_), allowed(board_.begin_touching()) {}
  ~Touch() {
    if (allowed) board.end_touching();
  }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;

  Board& board;
  const bool allowed;
};

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
    case Op::kGather:
      return largest_block(call, ranks) * call.element();
    default:
      return call.key.count * call.element();
  }
}

void BoardOperation::prepare(Board& board, const Call& call) {
  board_ = &board;
  call_ = call;
  small_ = inline_payload_bytes(call, board.ranks()) <= kInlineBytes;
  phase_ = Phase::kEnter;
  next_rank_ = 0;
  task_count_ = task_ = task_done_ = 0;
}

Progress BoardOperation::advance(Effort effort) {
  bool moved = false;
  const std::uint64_t sequence = call_.sequence;
  if (phase_ == Phase::kEnter) {
    if (!board_->may_enter(sequence)) return Progress::kStuck;
    if (small_) put_payload();
    board_->put_up(sequence, call_.key, call_.in, call_.out, call_.blocks.offsets);
    phase_ = Phase::kArrivals;
    moved = true;
  }
  if (phase_ == Phase::kArrivals) {
    for (; next_rank_ < board_->ranks(); ++next_rank_) {
      if (!board_->has_arrived(next_rank_, sequence)) return moved ? Progress::kMoved : Progress::kStuck;
      const CallKey& theirs = board_->slot(next_rank_, sequence).key;
      if (theirs != call_.key) group_of(*this).raise_mismatch(*this, next_rank_, theirs);
      moved = true;
    }
    if (small_) {
      take_payloads();
      board_->complete(sequence);
      return Progress::kDone;
    }
    const Touch touch(*board_);  // the offsets of an uneven all_to_all are read where the other ranks keep them
    if (!touch.allowed) return Progress::kStuck;
    make_tasks();
    phase_ = Phase::kPart;
  }
  if (phase_ == Phase::kPart) {
    if (effort == Effort::kPost) return Progress::kMoved;
    if (task_ < task_count_) {
      const Touch touch(*board_);
      if (!touch.allowed) return Progress::kStuck;  // a rank gave up; its reason is on the way
      if (run_piece()) return Progress::kMoved;
    }
    board_->set_done(sequence);
    phase_ = Phase::kLeave;
    next_rank_ = 0;
    moved = true;
  }
  // The caller gets its memory back when nobody reads or writes it any more.
  for (; next_rank_ < board_->ranks(); ++next_rank_) {
    if (!board_->is_done(next_rank_, sequence)) return moved ? Progress::kMoved : Progress::kStuck;
  }
  board_->complete(sequence);
  return Progress::kDone;
}

void BoardOperation::abandon() noexcept {
  if (phase_ != Phase::kEnter) board_->break_off();
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
  if (bytes != 0) std::memcpy(board_->slot(me, call_.sequence).payload, call_.in, bytes);
}

void BoardOperation::take_payloads() {
  const int me = board_->me(), ranks = board_->ranks(), root = call_.key.root;
  const std::size_t element = call_.element();
  const auto payload = [&](int r) -> const std::byte* { return board_->slot(r, call_.sequence).payload; };
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

BoardOperation::Place BoardOperation::in_of(int r, std::size_t element_offset) {
  // Only ever read; one type for both keeps the tasks simple.
  auto* base = static_cast<std::byte*>(const_cast<void*>(board_->slot(r, call_.sequence).in));
  return {r, base + element_offset * call_.element()};
}
BoardOperation::Place BoardOperation::out_of(int r, std::size_t element_offset) {
  return {r, static_cast<std::byte*>(board_->slot(r, call_.sequence).out) + element_offset * call_.element()};
}

BoardOperation::Task& BoardOperation::new_task(std::size_t count) {
  if (task_count_ == tasks_.size()) tasks_.emplace_back();
  Task& task = tasks_[task_count_++];
  task.from.clear();
  task.to.clear();
  task.count = count;
  return task;
}

void BoardOperation::copy_task(Place from, Place to, std::size_t count) {
  if (count == 0 || from.data == to.data) return;
  Task& task = new_task(count);
  task.from.push_back(from);
  task.to.push_back(to);
}

std::pair<std::size_t, std::size_t> BoardOperation::my_share(std::size_t count, std::size_t line) const {
  const int me = board_->me();
  const auto ranks = static_cast<std::size_t>(board_->ranks());
  // Equal shares, but for a reduce between processes: the root reads every other rank's part of its share, the others
  // must write their result to it besides. Shares in the ratio ranks : ranks - 1 take all of them equally long.
  const bool uneven = call_.key.op == Op::kReduce && board_->remote() != nullptr && ranks > 1;
  const std::size_t root_weight = uneven ? ranks : 1, weight = uneven ? ranks - 1 : 1;
  const std::size_t total = root_weight + weight * (ranks - 1), lines = (count + line - 1) / line;
  const auto cut = [&](int r) {
    const bool behind_root = r > call_.key.root;
    const std::size_t before = weight * static_cast<std::size_t>(r) + (behind_root ? root_weight - weight : 0);
    return std::min(count, lines * before / total * line);
  };
  return {cut(me), cut(me + 1) - cut(me)};
}

void BoardOperation::make_tasks() {
  const int me = board_->me(), ranks = board_->ranks(), root = call_.key.root;
  const std::size_t element = call_.element(), count = call_.key.count;
  // A share of the whole, cut at cache lines so that no two ranks write to one.
  const auto [begin, share] = my_share(count, 64 / element);

  switch (call_.key.op) {
    case Op::kAllReduce:
    case Op::kReduce: {
      if (share == 0) break;
      Task& task = new_task(share);
      for (int r = 0; r < ranks; ++r) {
        task.from.push_back(in_of(r, begin));
        if (call_.key.op == Op::kAllReduce || r == root) task.to.push_back(out_of(r, begin));
      }
      break;
    }
    case Op::kReduceScatter: {
      if (call_.blocks.count(me) == 0) break;
      Task& task = new_task(call_.blocks.count(me));
      for (int r = 0; r < ranks; ++r) task.from.push_back(in_of(r, call_.blocks.begin(me)));
      task.to.push_back(out_of(me));
      break;
    }
    case Op::kBroadcast: {
      if (share == 0 || ranks == 1) break;
      Task& task = new_task(share);
      task.from.push_back(in_of(root, begin));
      for (int r = 0; r < ranks; ++r) {
        if (r != root) task.to.push_back(out_of(r, begin));
      }
      break;
    }
    case Op::kAllGather:
      for (int i = 0; i < ranks; ++i) {  // everyone starts elsewhere, so that they do not all read from one rank
        const int r = (me + i) % ranks;
        copy_task(in_of(r), out_of(me, call_.blocks.begin(r)), call_.blocks.count(r));
      }
      break;
    case Op::kGather:
      copy_task(in_of(me), out_of(root, call_.blocks.begin(me)), call_.blocks.count(me));
      break;
    case Op::kScatter:
      copy_task(in_of(root, call_.blocks.begin(me)), out_of(me), call_.blocks.count(me));
      break;
    case Op::kAllToAll:
      for (int i = 0; i < ranks; ++i) {
        const int r = (me + i) % ranks;
        // Where the block for this rank begins and ends in the memory of rank r.
        std::size_t bounds[2] = {call_.blocks.begin(me), call_.blocks.begin(me) + call_.blocks.count(me)};
        if (const std::size_t* offsets = board_->slot(r, call_.sequence).offsets) {
          if (r == me || board_->remote() == nullptr) {
            bounds[0] = offsets[me];
            bounds[1] = offsets[me + 1];
          } else {
            board_->remote()->read(r, bounds, offsets + me, sizeof bounds);
          }
        }
        const std::size_t block = bounds[1] - bounds[0];
        if (block != call_.recv_blocks.count(r)) {
          group_of(*this).raise_size_mismatch(*this, r, block * call_.element(),
                                              call_.recv_blocks.count(r) * call_.element());
        }
        copy_task(in_of(r, bounds[0]), out_of(me, call_.recv_blocks.begin(r)), block);
      }
      break;
    default:
      break;
  }
}

bool BoardOperation::run_piece() {
  const Task& task = tasks_[task_];
  const std::size_t element = call_.element();
  const bool far = board_->remote() != nullptr;
  // What is pulled from other processes should still be in the cache when it is combined.
  const std::size_t bytes =
      far && task.from.size() > 1 ? kPullBytes : kPieceBytes / (task.from.size() + task.to.size());
  const std::size_t piece = std::max<std::size_t>(64, bytes / element);
  const std::size_t count = std::min(piece, task.count - task_done_);
  if (far) {
    run_far(task, task_done_ * element, count);
  } else {
    run_near(task, task_done_ * element, count);
  }
  task_done_ += count;
  if (task_done_ == task.count) {
    ++task_;
    task_done_ = 0;
  }
  return task_ < task_count_;
}

void BoardOperation::fold(std::vector<void*>& to, std::vector<const void*>& from, std::size_t count,
                          bool stream) const {
  arithmetic(call_.key.type, call_.key.reduce)
      .fold(to.data(), to.size(), from.data(), from.size(), count,
            call_.key.reduce == Reduce::kAvg ? board_->ranks() : 1, stream);
}

void BoardOperation::run_near(const Task& task, std::size_t at, std::size_t count) {
  const std::size_t bytes = count * call_.element();
  const bool large = task.count * call_.element() >= kStreamBytes;
  if (task.from.size() == 1) {
    for (const Place& to : task.to) {
      if (to.data == task.from[0].data) continue;
      if (large) {
        stream_copy(to.data + at, task.from[0].data + at, bytes);
      } else {
        std::memcpy(to.data + at, task.from[0].data + at, bytes);
      }
    }
    return;
  }
  from_.clear();
  to_.clear();
  bool in_place = false;
  for (const Place& from : task.from) from_.push_back(from.data + at);
  for (const Place& to : task.to) {
    to_.push_back(to.data + at);
    in_place |= to.data == task.from[static_cast<std::size_t>(to.rank)].data;
  }
  // In place, the lines written were read just before and are in the cache already.
  fold(to_, from_, count, large && !in_place);
}

void BoardOperation::run_far(const Task& task, std::size_t at, std::size_t count) {
  const RemoteMemory& remote = *board_->remote();
  const int me = board_->me();
  const std::size_t bytes = count * call_.element();
  pulled_.resize(std::max(pulled_.size(), bytes * (task.from.size() + 1)));
  // The result is made in this rank's own memory where it needs one, else aside.
  std::byte* result = pulled_.data() + bytes * task.from.size();
  for (const Place& to : task.to) {
    if (to.rank == me) result = to.data + at;
  }
  if (task.from.size() == 1) {
    const Place& from = task.from[0];
    if (from.rank != me) {
      remote.read(from.rank, result, from.data + at, bytes);
    } else if (task.to.size() == 1 && task.to[0].rank == me) {
      if (task.count * call_.element() >= kStreamBytes) {
        stream_copy(result, from.data + at, bytes);
      } else {
        std::memcpy(result, from.data + at, bytes);
      }
    } else {
      result = from.data + at;
    }
  } else {
    from_.clear();
    to_.assign(1, result);
    for (std::size_t i = 0; i < task.from.size(); ++i) {
      const Place& from = task.from[i];
      std::byte* aside = pulled_.data() + bytes * i;
      if (from.rank != me) remote.read(from.rank, aside, from.data + at, bytes);
      from_.push_back(from.rank == me ? from.data + at : aside);
    }
    fold(to_, from_, count, false);
  }
  for (const Place& to : task.to) {
    if (to.rank != me) remote.write(to.rank, result, to.data + at, bytes);
  }
}

std::uint64_t BoardOperation::sent_bytes() const {
  // What crosses between ranks on this rank's account, as if by the best algorithm of sends.
  return group_of(*this).least_sent_bytes(call_);
}

}  // namespace trireme::comm
