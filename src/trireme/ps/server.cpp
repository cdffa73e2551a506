#include "trireme/ps/server.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "trireme/base/error.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kExactSegments = 64;   // beyond them a push's clocks are those of whole ranges
constexpr std::size_t kMostKeyLists = 256;   // of a worker; beyond them lists are sent anew
constexpr std::size_t kKnownVersions = 256;  // of pushes of a worker, which waits for fewer

template <typename T>
void add_values(std::vector<std::byte>& sum, const SharedBytes& values) {
  for (std::size_t at = 0; at + sizeof(T) <= sum.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, sum.data() + at, sizeof(T));
    std::memcpy(&b, values.data() + at, sizeof(T));
    a += b;
    std::memcpy(sum.data() + at, &a, sizeof(T));
  }
}

const std::vector<int>* chain_at(const std::vector<PlacedRange>& ranges, std::uint64_t key) {
  const auto at = std::ranges::upper_bound(ranges, key, {}, [](const PlacedRange& range) { return range.keys.end; });
  return at != ranges.end() && at->keys.begin <= key ? &at->chain : nullptr;
}

/// Whether everybody of the chain has what the first one has, as far as the former chain says.
bool follows(const std::vector<int>& before, const std::vector<int>& chain) {
  return before.front() == chain.front() &&
         std::ranges::all_of(chain, [&](int server) { return std::ranges::find(before, server) != before.end(); });
}

}  // namespace

Server::Server(const ServerOptions& options, std::unique_ptr<UpdateRule> rule)
    : options_(options), rule_(std::move(rule)) {
  planes_.type = options_.type;
  for (int plane = 0; plane <= rule_->state_planes(); ++plane) {
    auto* memory =
        static_cast<std::byte*>(std::calloc(std::max<std::size_t>(options_.keys, 1), value_bytes(options_.type)));
    if (memory == nullptr) throw std::bad_alloc();
    memory_.emplace_back(memory);
    planes_.data.push_back(memory);
  }
}

std::vector<double> Server::weights() const {
  std::vector<double> weights(options_.keys);
  for (const Segment& held : present_.segments()) {
    for (std::uint64_t key = held.begin; key < held.end; ++key) {
      weights[key] = options_.type == ValueType::kF32 ? static_cast<double>(*planes_.at<float>(0, key))
                                                      : *planes_.at<double>(0, key);
    }
  }
  return weights;
}

void Server::receive(int from, Message message) {
  switch (message.kind) {
    case Message::Kind::kView:
      return adopt(message.view);
    case Message::Kind::kStop:
      stopped_ = true;
      return;
    case Message::Kind::kPush:
    case Message::Kind::kPull:
    case Message::Kind::kCopy:
    case Message::Kind::kCopied:
      break;
    default:
      return;
  }
  if (message.epoch < view_.epoch) {
    ++counters_.stale;
    return;
  }
  if (message.epoch > view_.epoch) {
    early_.emplace_back(from, std::move(message));
    return;
  }
  if (message.kind == Message::Kind::kCopy) return take_copy(std::move(message));
  if (message.kind == Message::Kind::kCopied) return take_copied(message);
  take_request(from, std::move(message));
}

// ---- views

void Server::adopt(const View& view) {
  if (view.epoch <= view_.epoch) return;
  const auto is_in = [&](const View& of) {
    return std::ranges::find(of.servers, options_.address) != of.servers.end() ||
           std::ranges::find(of.next, options_.address) != of.next.end();
  };
  const std::vector<PlacedRange> before =
      view_.epoch > 0 && is_in(view_) ? place(view_, options_.keys) : std::vector<PlacedRange>{};
  retired_ = view_.epoch > 0 && is_in(view_) && !is_in(view);
  view_ = view;
  const std::vector<PlacedRange> now = place(view_, options_.keys);
  SegmentSet held;
  for (const PlacedRange& range : held_by(now, options_.address)) held.add(range.keys);
  present_ = view_.epoch == 1 ? held : present_.common(held);  // the job begins with zeros everywhere
  clocks_.keep(present_);
  owned_ = owned_by(now, options_.address);
  plan_copies(before);
  forget_waiting();  // whoever waits for an answer asks again
  Message lost{.kind = Message::Kind::kLost, .epoch = view_.epoch, .node = options_.address};
  for (const PlacedRange& range : owned_) {
    for (const Segment& part : present_.missing(range.keys)) lost.segments.push_back(part);
  }
  if (!lost.segments.empty()) outgoing_.push_back({options_.manager, std::move(lost)});
  told_whole_ = false;
  report_whole();
  for (auto& [from, message] : std::exchange(early_, {})) receive(from, std::move(message));
}

void Server::forget_waiting() {
  for (const Pending& pending : std::exchange(pending_, {})) meter_.depart(pending.since);
  for (const auto& [from, queue] : std::exchange(behind_, {})) {
    for (const Behind& each : queue) meter_.depart(each.since);
  }
  for (const auto& [task, contributions] : std::exchange(held_, {})) {
    for (const auto& [worker, contribution] : contributions) meter_.depart(contribution.since);
  }
}

QueueMeter::Nanoseconds Server::begin_wait() {
  const auto now = QueueMeter::now();
  meter_.arrive(now);
  return now;
}

/// Lanes of the new view, with what their chains lack.
void Server::plan_copies(const std::vector<PlacedRange>& before) {
  SegmentSet dirty, installing;  // what was not known to have arrived
  for (const Lane& lane : lanes_) {
    for (const Segment& segment : lane.dirty.segments()) dirty.add(segment);
    for (const Segment& segment : lane.install) installing.add(segment);
    for (const auto& [number, copy] : lane.unacked) {
      for (const Segment& segment : copy.segments) (copy.install ? installing : dirty).add(segment);
    }
  }
  lanes_.clear();
  owned_lanes_.clear();
  std::map<std::vector<int>, std::size_t> lanes;
  std::vector<SegmentSet> installs;
  for (const PlacedRange& range : owned_) {
    const auto [at, is_new] = lanes.try_emplace(range.chain, lanes_.size());
    if (is_new) {
      lanes_.emplace_back().chain = range.chain;
      installs.emplace_back();
    }
    owned_lanes_.push_back(at->second);
    if (range.chain.size() < 2 || view_.epoch == 1) continue;
    std::vector<Segment> parts;
    if (before.empty()) {
      parts.push_back(range.keys);
    } else {
      for (const PlacedRange& former : before) {
        if (const Segment part = intersect(former.keys, range.keys); part.size() > 0) parts.push_back(part);
      }
    }
    for (const Segment& part : parts) {
      const std::vector<int>* former = before.empty() ? nullptr : chain_at(before, part.begin);
      if (former == nullptr || !follows(*former, range.chain)) {
        installs[at->second].add(part);
      } else {
        for (const Segment& again : installing.common(part)) installs[at->second].add(again);
        for (const Segment& again : dirty.common(part)) lanes_[at->second].dirty.add(again);
      }
    }
  }
  const std::uint64_t chunk =
      std::max<std::uint64_t>(1, options_.chunk_bytes / (planes_.data.size() * value_bytes(options_.type)));
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    for (const Segment& segment : installs[lane].segments()) {
      for (std::uint64_t begin = segment.begin; begin < segment.end; begin += chunk)
        lanes_[lane].install.push_back({begin, std::min(segment.end, begin + chunk)});
    }
  }
}

void Server::report_whole() {
  if (told_whole_ || !std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.is_whole(); })) return;
  told_whole_ = true;
  outgoing_.push_back(
      {options_.manager, {.kind = Message::Kind::kWhole, .epoch = view_.epoch, .node = options_.address}});
}

// ---- requests of workers

bool Server::resolve_keys(int from, Message& message) {
  auto& lists = key_lists_[from];
  if (message.has_keys) {
    if (lists.size() >= kMostKeyLists) lists.clear();
    lists[hash_keys(message.segments)] = message.segments;
    return true;
  }
  const auto known = lists.find(message.key_hash);
  if (known == lists.end()) {
    ++counters_.key_misses;
    return false;
  }
  ++counters_.key_hits;
  message.segments = known->second;
  message.has_keys = true;
  return true;
}

void Server::take_request(int from, Message message) {
  if (const auto waiting = behind_.find(from); waiting != behind_.end()) {
    std::deque<Behind>& queue = waiting->second;
    const Message& first = queue.front().message;
    const bool awaited =
        message.has_keys && message.kind == first.kind && message.task == first.task && message.part == first.part;
    if (!awaited) {  // a worker's pushes stay in order, or a later one would pass for all before it
      queue.push_back({std::move(message), begin_wait()});
      return;
    }
    std::deque<Behind> rest = std::move(queue);
    behind_.erase(waiting);
    for (const Behind& each : rest) meter_.depart(each.since);
    rest.pop_front();
    resolve_keys(from, message);
    carry_out(from, std::move(message));
    for (Behind& next : rest) take_request(from, std::move(next.message));
    return;
  }
  if (!resolve_keys(from, message)) {
    outgoing_.push_back(
        {from, {.kind = Message::Kind::kNeedKeys, .epoch = view_.epoch, .task = message.task, .part = message.part}});
    behind_[from].push_back({std::move(message), begin_wait()});
    return;
  }
  carry_out(from, std::move(message));
}

void Server::carry_out(int from, Message message) {
  for (const Segment& segment : message.segments) {
    if (segment.end > options_.keys)
      throw CommError(
          fmt::format("worker {} asked for keys up to {}, and there are {}", from, segment.end, options_.keys),
          "start servers and workers with the same model");
  }
  if (message.kind == Message::Kind::kPull) return take_pull(from, message);
  if (options_.aggregate && message.op == Message::Op::kUpdate) return hold_push(from, std::move(message));
  const SharedBytes values = decode_values(message, options_.type);
  apply_push(message, {static_cast<int>(message.node)}, {values.data(), values.size()});
  answer_push(from, message);
}

/// Until all workers' pushes of the task and keys are here.
void Server::hold_push(int from, Message message) {
  const bool applied = std::ranges::all_of(message.segments, [&](const Segment& segment) {
    return clocks_.lacking(segment, static_cast<int>(message.node), message.task).empty();
  });
  if (applied) {
    ++counters_.duplicates;
    mark_dirty(message.segments);
    return answer_push(from, message);
  }
  const auto key = std::pair(message.task, hash_keys(message.segments));
  auto& contributions = held_[key];
  const int worker = static_cast<int>(message.node);
  Contribution& contribution = contributions[worker];
  contribution = {from, std::move(message), contribution.since != 0 ? contribution.since : begin_wait()};
  if (!std::ranges::all_of(view_.workers, [&](int each) { return contributions.contains(each); })) return;
  std::vector<std::byte> sum;
  std::vector<int> workers;
  for (const auto& [each, one] : contributions) {
    const SharedBytes values = decode_values(one.message, options_.type);
    workers.push_back(each);
    if (sum.empty()) {
      sum.assign(values.begin(), values.end());
      continue;
    }
    TRIREME_CHECK(values.size() == sum.size(), "worker {} pushed {} bytes where others pushed {}", each, values.size(),
                  sum.size());
    options_.type == ValueType::kF32 ? add_values<float>(sum, values) : add_values<double>(sum, values);
  }
  const std::map<int, Contribution> complete = std::move(contributions);
  held_.erase(key);
  apply_push(complete.begin()->second.message, workers, sum);
  for (const auto& [each, taken] : complete) {
    meter_.depart(taken.since);
    answer_push(taken.from, taken.message);
  }
}

void Server::apply_push(const Message& message, const std::vector<int>& workers, std::span<const std::byte> values) {
  const std::size_t each = value_bytes(options_.type);
  const std::size_t pushed_planes =
      message.op == Message::Op::kAssign ? 1 : static_cast<std::size_t>(rule_->push_planes());
  const std::size_t keys = count_keys(message.segments);
  if (values.size() != keys * pushed_planes * each || message.plane < 0 ||
      static_cast<std::size_t>(message.plane) >= planes_.data.size()) {
    throw CommError(fmt::format("worker {} pushed {} bytes for {} keys of plane {}", message.node, values.size(), keys,
                                message.plane),
                    "start servers and workers with the same recipe");
  }
  bool changed = false;
  std::size_t offset = 0;  // in keys
  for (const Segment& segment : message.segments) {
    for (const Segment& part : clocks_.lacking(segment, workers.front(), message.task)) {
      const std::size_t first = offset + (part.begin - segment.begin);
      changed = true;
      if (message.op == Message::Op::kAssign) {
        std::memcpy(planes_.data[static_cast<std::size_t>(message.plane)] + part.begin * each,
                    values.data() + first * each, part.size() * each);
        continue;
      }
      std::vector<const std::byte*> pushed;
      for (std::size_t plane = 0; plane < pushed_planes; ++plane)
        pushed.push_back(values.data() + (plane * keys + first) * each);
      rule_->apply(planes_, part, pushed, message.rate);
    }
    offset += segment.size();
  }
  for (const Segment& covered : coverage(message.segments)) {
    for (const int worker : workers) clocks_.advance(covered, worker, message.task);
  }
  ++(changed ? counters_.pushes : counters_.duplicates);
  if (changed) {
    ++version_;
    for (const int worker : workers) {
      auto& became = became_[worker];
      became[{message.task, message.part}] = version_;
      if (became.size() > kKnownVersions) became.erase(became.begin());
    }
  }
  counters_.most_clocks = std::max(counters_.most_clocks, static_cast<std::int64_t>(clocks_.clocks()));
  counters_.most_ranges = std::max(counters_.most_ranges, static_cast<std::int64_t>(clocks_.ranges()));
  // Also what had been applied: this server may have got it from one that died before others had it.
  mark_dirty(message.segments);
}

void Server::take_pull(int from, const Message& message) {
  ++counters_.pulls;
  const std::size_t each = value_bytes(options_.type);
  const std::byte* plane = planes_.data.at(static_cast<std::size_t>(message.plane));
  Message reply{.kind = Message::Kind::kPulled, .task = message.task, .part = message.part};
  std::vector<std::byte> values;
  values.reserve(count_keys(message.segments) * each);
  for (const Segment& segment : message.segments)
    values.insert(values.end(), plane + segment.begin * each, plane + segment.end * each);
  encode_values(reply, std::move(values), options_.type, message.encoding);
  for (const Segment& segment : message.segments) {
    for_lanes(segment, [&](std::size_t lane, const Segment& part) {
      if (!lanes_[lane].is_whole()) lanes_[lane].dirty.add(part);
    });
  }
  answer(from, std::move(reply), message.segments);
}

// ---- chains

template <typename Body>
void Server::for_lanes(const Segment& segment, const Body& body) const {
  auto at =
      std::ranges::upper_bound(owned_, segment.begin, {}, [](const PlacedRange& range) { return range.keys.end; });
  std::uint64_t reached = segment.begin;
  for (; at != owned_.end() && at->keys.begin < segment.end; ++at) {
    const Segment part = intersect(at->keys, segment);
    TRIREME_CHECK(part.begin == reached, "key {} is not of server {} in epoch {}", reached, options_.address,
                  view_.epoch);
    body(owned_lanes_[static_cast<std::size_t>(at - owned_.begin())], part);
    reached = part.end;
  }
  TRIREME_CHECK(reached == segment.end, "key {} is not of server {} in epoch {}", reached, options_.address,
                view_.epoch);
}

/// A worker's pushes come in the order of its tasks, each once for a key, so a clock may also stand for keys between
/// those that were pushed: it says that nothing older is still to come. So sparse pushes do not shatter the clocks.
std::vector<Segment> Server::coverage(const std::vector<Segment>& segments) const {
  if (segments.size() <= kExactSegments) return segments;
  const Segment hull{segments.front().begin, segments.back().end};
  std::vector<Segment> covered;
  for (const PlacedRange& range : owned_) {
    if (const Segment part = intersect(range.keys, hull); part.size() > 0) covered.push_back(part);
  }
  return covered;
}

void Server::mark_dirty(const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) {
    for_lanes(segment, [&](std::size_t lane, const Segment& part) {
      if (lanes_[lane].chain.size() > 1) lanes_[lane].dirty.add(part);
    });
  }
  for (const Segment& segment : coverage(segments)) {
    for_lanes(segment, [&](std::size_t lane, const Segment& part) {
      if (lanes_[lane].chain.size() > 1) lanes_[lane].clocked.add(part);
    });
  }
}

void Server::answer_push(int to, const Message& push) {
  const auto& became = became_[static_cast<int>(push.node)];
  const auto version = became.find({push.task, push.part});
  answer(to,
         {.kind = Message::Kind::kPushed,
          .task = push.task,
          .part = push.part,
          .sequence = version == became.end() ? version_ : version->second},
         push.segments);
}

void Server::answer(int to, Message answer, const std::vector<Segment>& touched) {
  answer.epoch = view_.epoch;
  if (answer.kind != Message::Kind::kPushed) answer.sequence = version_;
  std::set<std::size_t> lanes;
  for (const Segment& segment : touched) {
    for_lanes(segment, [&](std::size_t lane, const Segment&) { lanes.insert(lane); });
  }
  Pending pending{.to = to, .answer = std::move(answer), .needs = {}, .since = 0};
  for (const std::size_t lane : lanes) {
    const std::uint64_t needed = lanes_[lane].issued + (lanes_[lane].dirty.empty() ? 0 : 1);
    if (lanes_[lane].chain.size() > 1 && needed > lanes_[lane].acked) pending.needs.emplace_back(lane, needed);
  }
  if (pending.needs.empty()) {
    outgoing_.push_back({to, std::move(pending.answer)});
    return;
  }
  pending.since = begin_wait();
  pending_.push_back(std::move(pending));
  counters_.most_pending = std::max(counters_.most_pending, static_cast<std::int64_t>(pending_.size()));
}

void Server::flush() {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    while (lane.issued - lane.acked < static_cast<std::uint64_t>(options_.copies_in_flight)) {
      if (!lane.dirty.empty()) {
        const std::vector<Segment> segments = lane.dirty.segments();
        lane.dirty.clear();
        send_copy(i, segments, /*install=*/false);
      } else if (!lane.install.empty()) {
        const Segment chunk = lane.install.front();
        lane.install.pop_front();
        send_copy(i, {chunk}, /*install=*/true);
        lane.whole_at = lane.issued;
      } else {
        break;
      }
    }
  }
}

std::vector<std::byte> Server::read_planes(const std::vector<Segment>& segments) const {
  const std::size_t each = value_bytes(options_.type);
  std::vector<std::byte> values;
  values.reserve(count_keys(segments) * each * planes_.data.size());
  for (const std::byte* plane : planes_.data) {
    for (const Segment& segment : segments)
      values.insert(values.end(), plane + segment.begin * each, plane + segment.end * each);
  }
  return values;
}

void Server::send_copy(std::size_t lane, const std::vector<Segment>& segments, bool install) {
  Lane& at = lanes_[lane];
  Message copy{.kind = Message::Kind::kCopy,
               .op = install ? Message::Op::kInstall : Message::Op::kUpdate,
               .epoch = view_.epoch,
               .sequence = ++at.issued,
               .lane = lane,
               .segments = segments,
               .chain = at.chain};
  copy.values = read_planes(segments);
  copy.raw_bytes = copy.values.size();
  SegmentSet clocked(segments);
  for (const Segment& segment : at.clocked.segments()) clocked.add(segment);
  at.clocked.clear();
  for (const Segment& segment : clocked.segments()) {
    for (RangeClock& clock : clocks_.read(segment)) copy.clocks.push_back(std::move(clock));
  }
  at.unacked[at.issued] = {segments, install};
  ++counters_.copies;
  counters_.copy_bytes += static_cast<std::int64_t>(copy.values.size());
  outgoing_.push_back({at.chain[1], std::move(copy)});
}

void Server::take_copy(Message message) {
  const std::size_t each = value_bytes(options_.type);
  const auto me = std::ranges::find(message.chain, options_.address);
  TRIREME_CHECK(
      me != message.chain.end() && message.values.size() == count_keys(message.segments) * each * planes_.data.size(),
      "server {} got a copy of a chain without it, or of {} bytes", options_.address, message.values.size());
  const std::byte* from = message.values.data();
  for (std::byte* plane : planes_.data) {
    for (const Segment& segment : message.segments) {
      std::memcpy(plane + segment.begin * each, from, segment.size() * each);
      from += segment.size() * each;
    }
  }
  for (const RangeClock& clock : message.clocks) clocks_.replace(clock.keys, {clock});
  for (const Segment& segment : message.segments) {
    if (message.op == Message::Op::kInstall) present_.add(segment);
  }
  if (me + 1 != message.chain.end()) {
    ++counters_.copies;
    counters_.copy_bytes += static_cast<std::int64_t>(message.values.size());
    const int next = *(me + 1);
    outgoing_.push_back({next, std::move(message)});
  } else {
    outgoing_.push_back(
        {message.chain.front(),
         {.kind = Message::Kind::kCopied, .epoch = view_.epoch, .sequence = message.sequence, .lane = message.lane}});
  }
}

void Server::take_copied(const Message& message) {
  Lane& lane = lanes_.at(message.lane);
  lane.acked = std::max(lane.acked, message.sequence);
  lane.unacked.erase(lane.unacked.begin(), lane.unacked.upper_bound(lane.acked));
  answer_settled();
  report_whole();
}

void Server::answer_settled() {
  std::deque<Pending> waiting;
  for (Pending& pending : std::exchange(pending_, {})) {
    std::erase_if(pending.needs, [&](const auto& need) { return lanes_[need.first].acked >= need.second; });
    if (pending.needs.empty()) {
      meter_.depart(pending.since);
      outgoing_.push_back({pending.to, std::move(pending.answer)});
    } else {
      waiting.push_back(std::move(pending));
    }
  }
  pending_ = std::move(waiting);
}

}  // namespace trireme::ps
