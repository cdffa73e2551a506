#include "trireme/comm/algorithms/builder.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::comm {

namespace {

// Beyond this many segments a transfer is cut into longer ones: filling the pipeline costs one segment in kMaxSegments,
// which is lost in the noise, while every step costs time to build and to walk.
constexpr std::size_t kMaxSegments = 128;

std::size_t before(std::span<const std::size_t> counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
}

std::size_t total(const Shape& shape) { return shape.counts.empty() ? shape.count : before(shape.counts, shape.ranks); }

}  // namespace

Subgroup whole_group(const Shape& shape, int rank) {
  Subgroup group{std::vector<int>(static_cast<std::size_t>(shape.ranks)), rank};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

BlockBounds BlockBounds::even(ElementRange whole, int parts) {
  BlockBounds blocks;
  const auto divisor = static_cast<std::size_t>(parts);
  const std::size_t length = whole.count / divisor, longer = whole.count % divisor;
  for (std::size_t block = 0; block <= divisor; ++block)
    blocks.bounds_.push_back(whole.begin + block * length + std::min(block, longer));
  return blocks;
}

BlockBounds BlockBounds::of(std::span<const std::size_t> counts) {
  BlockBounds blocks;
  blocks.bounds_.push_back(0);
  for (const std::size_t count : counts) blocks.bounds_.push_back(blocks.bounds_.back() + count);
  return blocks;
}

ElementRange BlockBounds::range(int first, int last) const {
  const std::size_t begin = bounds_[static_cast<std::size_t>(first)];
  return {begin, bounds_[static_cast<std::size_t>(last)] - begin};
}

std::size_t BlockBounds::longest() const {
  std::size_t longest = 0;
  for (int block = 0; block < size(); ++block) longest = std::max(longest, (*this)[block].count);
  return longest;
}

BlockBounds BlockBounds::united(std::span<const int> bounds) const {
  BlockBounds blocks;
  for (const int bound : bounds) blocks.bounds_.push_back(bounds_[static_cast<std::size_t>(bound)]);
  return blocks;
}

std::vector<Bundle> bundles(const BlockBounds& blocks, const View& view) {
  std::vector<Bundle> result;
  for (int block = 0; block < blocks.size(); ++block) result.push_back({view.at(blocks[block])});
  return result;
}

RoutineBuilder::RoutineBuilder(const Shape& shape, int rank, Cut cut) : segment_(0) {
  if (cut == Cut::kSegments) segment_ = std::max<std::size_t>(1, shape.segment_bytes / shape.element_bytes);
  switch (shape.op) {
    case Collective::kReduceScatter:
    case Collective::kScatter:
      out_shift_ = before(shape.counts, rank);
      break;
    case Collective::kAllGather:
    case Collective::kGather:
      in_shift_ = before(shape.counts, rank);
      break;
    case Collective::kAllToAll:  // never in place: the output lies behind the input
      out_shift_ = total(shape);
      break;
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
      break;
  }
}

Slice RoutineBuilder::scratch(std::size_t count) {
  const Slice slice{Space::kScratch, routine_.scratch, count};
  routine_.scratch += count;
  return slice;
}

std::size_t RoutineBuilder::segment_of(std::size_t count) const {
  if (segment_ == 0) return count;
  return std::max(segment_, (count + kMaxSegments - 1) / kMaxSegments);
}

void RoutineBuilder::send(int peer, Slice from) {
  for (const Slice& segment : segments({from})) post({.act = Act::kSend, .peer = peer, .from = segment});
}

void RoutineBuilder::recv(int peer, Slice to) {
  for (const Slice& segment : segments({to})) post({.act = Act::kRecv, .peer = peer, .to = segment});
}

void RoutineBuilder::recv_reduce(int peer, Slice from, Slice to) {
  TRIREME_CHECK(from.count == to.count, "{} elements are combined into {}", from.count, to.count);
  const std::size_t segment = segment_of(to.count);
  for (std::size_t done = 0; done < to.count; done += segment) {
    const std::size_t count = std::min(segment, to.count - done);
    post({.act = Act::kRecvReduce,
          .peer = peer,
          .from = {from.space, from.begin + done, count},
          .to = {to.space, to.begin + done, count}});
  }
}

void RoutineBuilder::send(int peer, const Bundle& from) {
  for (const Slice& piece : from) send(peer, piece);
}

void RoutineBuilder::recv(int peer, const Bundle& to) {
  for (const Slice& piece : to) recv(peer, piece);
}

void RoutineBuilder::recv_reduce(int peer, const Bundle& from, const Bundle& to) {
  for (std::size_t piece = 0; piece < to.size(); ++piece) recv_reduce(peer, from[piece], to[piece]);
}

std::vector<Slice> RoutineBuilder::segments(const Bundle& bundle) const {
  std::vector<Slice> result;
  for (const Slice& piece : bundle) {
    const std::size_t segment = segment_of(piece.count);
    for (std::size_t done = 0; done < piece.count; done += segment)
      result.push_back({piece.space, piece.begin + done, std::min(segment, piece.count - done)});
  }
  return result;
}

void RoutineBuilder::exchange(int from_peer, const Bundle& to, int to_peer, const Bundle& from) {
  const std::vector<Slice> in = segments(to), out = segments(from);
  for (std::size_t index = 0; index < std::max(in.size(), out.size()); ++index) {
    if (index < in.size()) post({.act = Act::kRecv, .peer = from_peer, .to = in[index]});
    if (index < out.size()) post({.act = Act::kSend, .peer = to_peer, .from = out[index]});
  }
}

void RoutineBuilder::copy(Slice from, Slice to) {
  if (from.count > 0 && from != to) run({.act = Act::kCopy, .from = from, .to = to});
}

void RoutineBuilder::finish(Slice to) {
  for (const Slice& segment : segments({to})) unfinished_.push_back(segment);
}

void RoutineBuilder::finish_first(const Access& used) {
  for (std::size_t index = 0; index < unfinished_.size();) {
    const Slice slice = unfinished_[index];
    const Access writes = access(slice, true);
    if (std::max(used.begin, writes.begin) >= std::min(used.end, writes.end)) {
      ++index;
      continue;
    }
    unfinished_.erase(unfinished_.begin() + static_cast<std::ptrdiff_t>(index));
    settle(writes);
    routine_.steps.push_back({.act = Act::kFinish, .to = slice});
  }
}

void RoutineBuilder::signal(int peer) { post({.act = Act::kSend, .peer = peer}); }

void RoutineBuilder::await(int peer) {
  post({.act = Act::kRecv, .peer = peer});
  wait_for(pending_.size() - 1);
}

/// Forgets the step that this entry belongs to; returns where the next one's entry is then.
std::size_t RoutineBuilder::wait_for(std::size_t pending) {
  const int step = pending_[pending].step;
  std::size_t first = pending, last = pending + 1;
  if (first > 0 && pending_[first - 1].step == step) --first;
  if (last < pending_.size() && pending_[last].step == step) ++last;
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(first),
                 pending_.begin() + static_cast<std::ptrdiff_t>(last));
  routine_.steps.push_back({.act = Act::kWait, .on = step});
  return first;
}

void RoutineBuilder::wait_for_posts(int mark) {
  while (!pending_.empty() && pending_.front().step < mark) wait_for(0);
}

Routine RoutineBuilder::take() {
  while (!unfinished_.empty()) finish_first(access(unfinished_.front(), true));
  wait_for_all();
  return std::move(routine_);
}

RoutineBuilder::Access RoutineBuilder::access(Slice slice, bool writes) const {
  constexpr std::size_t kScratch = std::numeric_limits<std::size_t>::max() / 2;
  std::size_t begin = slice.begin;
  if (slice.space == Space::kInput) begin += in_shift_;
  if (slice.space == Space::kOutput) begin += out_shift_;
  if (slice.space == Space::kScratch) begin += kScratch;
  return {begin, begin + slice.count, writes};
}

void RoutineBuilder::settle(const Access& access) {
  if (access.begin == access.end) return;
  for (std::size_t index = 0; index < pending_.size();) {
    const Access& other = pending_[index].access;
    const bool overlap = std::max(access.begin, other.begin) < std::min(access.end, other.end);
    index = overlap && (access.writes || other.writes) ? wait_for(index) : index + 1;
  }
}

int RoutineBuilder::post(Step step) {
  const Access reads = access(step.from, false), writes = access(step.to, true);
  for (const Access& used : {reads, writes}) {
    finish_first(used);
    settle(used);
  }
  const int index = mark();
  routine_.steps.push_back(step);
  const bool signal = step.from.count == 0 && step.to.count == 0;  // uses no memory, yet is waited for
  if (step.from.count > 0 || signal) pending_.push_back({index, reads});
  if (step.to.count > 0) pending_.push_back({index, writes});
  return index;
}

void RoutineBuilder::run(Step step) {
  for (const Access& used : {access(step.from, false), access(step.to, true)}) {
    finish_first(used);
    settle(used);
  }
  routine_.steps.push_back(step);
}

View whole_input(const Shape& shape) { return {{Space::kInput, 0, total(shape)}, 0}; }
View whole_output(const Shape& shape) { return {{Space::kOutput, 0, total(shape)}, 0}; }

View own_input(const Shape& shape, int rank) {
  return {{Space::kInput, 0, shape.counts[static_cast<std::size_t>(rank)]}, before(shape.counts, rank)};
}

View own_output(const Shape& shape, int rank) {
  return {{Space::kOutput, 0, shape.counts[static_cast<std::size_t>(rank)]}, before(shape.counts, rank)};
}

}  // namespace trireme::comm
