#include "trireme/comm/board_operation.h"

#include <cstring>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/gpu_memory.h"
#include "trireme/comm/group.h"

namespace trireme::comm {
namespace {

// Work done before the engine may look at other operations again.
constexpr std::size_t kPieceBytes = 1 << 20;
// Pulled from each other process at a time, for combining.
constexpr std::size_t kPullBytes = 128 << 10;
// Below this every rank of a broadcast takes the whole from the root: fewer, though longer, copies.
constexpr std::size_t kSharedBroadcastBytes = 512 << 10;
// Below this the root of a reduce between processes does it all: fewer calls of the kernel.
constexpr std::size_t kSharedReduceBytes = 192 << 10;
// Results larger than this do not stay in the caches until they are read: write past them.
constexpr std::size_t kStreamBytes = 4 << 20;

/// Around every access to other ranks' memory, whichever way it ends. `allowed` is false when some rank gave up.
struct Touch {
  explicit Touch(Board& board_) : board(board_), allowed(board_.begin_access()) {}
  ~Touch() {
    if (allowed) board.end_access();
  }
  Touch(const Touch&) = delete;
  Touch& operator=(const Touch&) = delete;

  Board& board;
  const bool allowed;
};

}  // namespace

void BoardOperation::prepare(Board& board, const Call& call) {
  board_ = &board;
  call_ = call;
  small_ = !on_gpu() && inline_payload_bytes(call, board.ranks()) <= board.slot_bytes();
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
    board_->post(sequence, call_.key, call_.in, call_.out, call_.blocks.offsets);
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
    if (accesses_mine(next_rank_) && !board_->is_done(next_rank_, sequence)) {
      return moved ? Progress::kMoved : Progress::kStuck;
    }
  }
  board_->complete(sequence);
  return Progress::kDone;
}

bool BoardOperation::pulls_broadcast() const {
  return board_->ranks() > 2 && call_.key.count * call_.element() < kSharedBroadcastBytes;
}

bool BoardOperation::root_reduces() const {
  return call_.key.op == Op::kReduce && board_->remote() != nullptr && board_->ranks() > 2 &&
         call_.key.count * call_.element() < kSharedReduceBytes;
}

bool BoardOperation::accesses_mine(int other) const {
  const Op op = call_.key.op;
  const int root = call_.key.root;
  if (root_reduces()) return other == root;
  // With these only the root's memory is read or written by others.
  if (op == Op::kGather || op == Op::kScatter || (op == Op::kBroadcast && pulls_broadcast()))
    return board_->me() == root;
  return true;
}

void BoardOperation::abandon() noexcept {
  if (phase_ != Phase::kEnter) board_->break_off();
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
  if (root_reduces()) return {0, me == call_.key.root ? count : 0};
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
      if (pulls_broadcast()) {
        if (me != root) copy_task(in_of(root), out_of(me), count);
        break;
      }
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

/// All of a task at once: it is only started here.
bool BoardOperation::run_on_gpu() {
  const Task& task = tasks_[task_];
  const GpuMemory& gpu = *gpu_memory();
  if (task.from.size() == 1) {
    for (const Place& to : task.to) {
      if (to.data != task.from[0].data) gpu.copy(to.data, task.from[0].data, task.count * call_.element());
    }
  } else {
    from_.clear();
    to_.clear();
    for (const Place& from : task.from) from_.push_back(from.data);
    for (const Place& to : task.to) to_.push_back(to.data);
    gpu.fold(to_.data(), to_.size(), from_.data(), from_.size(), task.count, call_.key.type, call_.key.reduce,
             call_.key.reduce == Reduce::kAvg ? board_->ranks() : 1);
  }
  return ++task_ < task_count_;
}

bool BoardOperation::run_piece() {
  if (on_gpu()) return run_on_gpu();
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
