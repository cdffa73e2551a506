#include "trireme/ps/worker.h"

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::ps {
namespace {

constexpr std::uint64_t kPullOrders = std::uint64_t{1} << 62;

}  // namespace

Worker::Worker(const WorkerOptions& options) : options_(options) {}

Worker::TaskId Worker::push(Push push, std::vector<TaskId> after) {
  Task task;
  task.values = std::make_shared<const std::vector<std::byte>>(std::move(push.values));
  task.push = std::move(push);
  return add(std::move(task), std::move(after));
}

Worker::TaskId Worker::pull(Pull pull, std::vector<TaskId> after) {
  Task task;
  task.is_push = false;
  task.pull = std::move(pull);
  return add(std::move(task), std::move(after));
}

Worker::TaskId Worker::add(Task task, std::vector<TaskId> after) {
  const std::vector<Segment>& segments = task.segments();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    TRIREME_CHECK(segments[i].begin < segments[i].end && segments[i].end <= options_.keys &&
                      (i == 0 || segments[i - 1].end <= segments[i].begin),
                  "segment {} of a task, {} to {}, is empty, out of order or beyond {} keys", i, segments[i].begin,
                  segments[i].end, options_.keys);
  }
  const TaskId id = ++tasks_given_;
  for (const TaskId each : after) {
    if (!finished(each)) task.after.insert(each);
  }
  task.given = QueueMeter::now();
  meter_.arrive(task.given);
  Task& added = tasks_[id] = std::move(task);
  if (added.after.empty() && view_.epoch > 0) send(id, added);
  return id;
}

std::vector<std::byte> Worker::take(TaskId task) {
  const auto found = pulled_.find(task);
  TRIREME_CHECK(found != pulled_.end(), "task {} is no pull that is finished and not taken", task);
  std::vector<std::byte> values = std::move(found->second);
  pulled_.erase(found);
  return values;
}

std::map<int, std::uint64_t> Worker::take_versions(TaskId task) {
  const auto found = versions_.find(task);
  if (found == versions_.end()) return {};
  auto versions = std::move(found->second);
  versions_.erase(found);
  return versions;
}

/// The task's keys by the servers that own them, in messages of a bounded size.
void Worker::split(Task& task) const {
  std::map<int, Part> open;
  std::map<int, std::uint64_t> keys;
  task.parts.clear();
  const std::uint64_t most = std::max<std::uint64_t>(1, options_.part_bytes / value_bytes(options_.type));
  std::uint64_t offset = 0;
  for (const Segment& segment : task.segments()) {
    auto at =
        std::ranges::upper_bound(placed_, segment.begin, {}, [](const PlacedRange& range) { return range.keys.end; });
    for (; at != placed_.end() && at->keys.begin < segment.end; ++at) {
      Segment rest = intersect(at->keys, segment);
      const int server = at->chain.front();
      while (rest.size() > 0) {
        Part& part = open[server];
        std::uint64_t& filled = keys[server];
        const Segment taken{rest.begin, std::min(rest.end, rest.begin + (most - filled))};
        part.server = server;
        part.segments.push_back(taken);
        part.offsets.push_back(offset + (taken.begin - segment.begin));
        filled += taken.size();
        rest.begin = taken.end;
        if (filled < most) continue;
        task.parts.push_back(std::exchange(part, {}));
        filled = 0;
      }
    }
    offset += segment.size();
  }
  for (auto& [server, part] : open) {
    if (!part.segments.empty()) task.parts.push_back(std::move(part));
  }
  task.unanswered = task.parts.size();
}

void Worker::send(TaskId id, Task& task) {
  if (task.order == 0) {
    // Pushes have numbers of their own: the n-th of every worker is the same task to servers that sum over workers.
    task.order = task.is_push ? ++pushes_sent_ : kPullOrders + ++pulls_sent_;
    by_order_[task.order] = id;
  } else {
    counters_.again += static_cast<std::int64_t>(task.parts.size());
  }
  split(task);
  task.versions.clear();
  for (std::size_t part = 0; part < task.parts.size(); ++part)
    send_part(task, part, /*with_keys=*/!options_.filters.key_caching);
  if (task.parts.empty()) finish(id);
}

void Worker::send_part(const Task& task, std::size_t index, bool with_keys) {
  const Part& part = task.parts[index];
  const std::size_t each = value_bytes(options_.type);
  Message message{.kind = task.is_push ? Message::Kind::kPush : Message::Kind::kPull,
                  .op = task.push.op,
                  .epoch = view_.epoch,
                  .task = task.order,
                  .node = options_.address,
                  .part = index,
                  .plane = task.is_push ? task.push.plane : task.pull.plane,
                  .rate = task.push.rate,
                  .encoding = options_.filters.encoding};
  // Weights are not rounded: they would stay so, where what a rounded gradient lacks is small beside the step.
  if (!task.is_push && message.encoding == Encoding::kFixed16) message.encoding = Encoding::kRaw;
  message.key_hash = hash_keys(part.segments);
  // Lists that go out once are remembered at both ends; a server that has forgotten asks.
  std::set<std::uint64_t>& known = known_keys_[part.server];
  message.has_keys = with_keys || !known.contains(message.key_hash);
  known.insert(message.key_hash);
  if (message.has_keys) message.segments = part.segments;
  if (task.is_push) {
    const std::uint64_t keys = count_keys(task.push.segments);
    const std::size_t planes = keys > 0 ? task.values->size() / (keys * each) : 0;
    SharedBytes values;
    if (planes == 1 && part.segments.size() == 1) {
      values = SharedBytes(task.values, part.offsets[0] * each, part.segments[0].size() * each);
    } else {
      std::vector<std::byte> gathered;
      gathered.reserve(count_keys(part.segments) * planes * each);
      for (std::size_t plane = 0; plane < planes; ++plane) {
        for (std::size_t i = 0; i < part.segments.size(); ++i) {
          const std::byte* from = task.values->data() + (plane * keys + part.offsets[i]) * each;
          gathered.insert(gathered.end(), from, from + part.segments[i].size() * each);
        }
      }
      values = std::move(gathered);
    }
    encode_values(message, std::move(values), options_.type,
                  task.push.op == Message::Op::kAssign ? Encoding::kRaw : options_.filters.encoding);
  }
  ++counters_.sent_messages;
  counters_.sent_bytes += static_cast<std::int64_t>(message.values.size() + sizeof(Segment) * message.segments.size());
  counters_.raw_bytes += static_cast<std::int64_t>(message.raw_bytes + sizeof(Segment) * part.segments.size());
  outgoing_.push_back({part.server, std::move(message)});
}

void Worker::finish(TaskId id) {
  Task& task = tasks_.at(id);
  ++(task.is_push ? counters_.pushes : counters_.pulls);
  meter_.depart(task.given);
  by_order_.erase(task.order);
  if (!task.is_push) pulled_[id] = std::move(task.pulled);
  versions_[id] = std::move(task.versions);
  if (versions_.size() > 4096) versions_.erase(versions_.begin());  // nobody asked
  tasks_.erase(id);
  std::vector<TaskId> ready;
  for (auto& [other, waiting] : tasks_) {
    if (waiting.after.erase(id) > 0 && waiting.after.empty()) ready.push_back(other);
  }
  for (const TaskId other : ready) {
    if (view_.epoch > 0) send(other, tasks_.at(other));
  }
}

void Worker::receive(int from, Message message) {
  if (message.kind == Message::Kind::kStop) stopped_ = true;
  if (message.kind == Message::Kind::kView) {
    if (message.view.epoch <= view_.epoch) return;
    view_ = message.view;
    placed_ = place(view_, options_.keys);
    known_keys_.clear();
    for (const auto& [order, id] : std::map(by_order_)) send(id, tasks_.at(id));
    std::vector<TaskId> first;  // given before there was a view
    for (const auto& [id, task] : tasks_) {
      if (task.order == 0 && task.after.empty()) first.push_back(id);
    }
    for (const TaskId id : first) send(id, tasks_.at(id));
    return;
  }
  if (message.epoch != view_.epoch) return;
  const auto sent = by_order_.find(message.task);
  if (sent == by_order_.end()) return;
  Task& task = tasks_.at(sent->second);
  if (message.part >= task.parts.size() || task.parts[message.part].server != from) return;
  Part& part = task.parts[message.part];
  if (message.kind == Message::Kind::kNeedKeys) return send_part(task, message.part, /*with_keys=*/true);
  const bool expected =
      message.kind == (task.is_push ? Message::Kind::kPushed : Message::Kind::kPulled) && !part.answered;
  if (!expected) return;
  if (!task.is_push) {
    const std::size_t each = value_bytes(options_.type);
    const SharedBytes values = decode_values(message, options_.type);
    TRIREME_CHECK(values.size() == count_keys(part.segments) * each, "server {} answered a pull with {} bytes", from,
                  values.size());
    // Not before: the first touch of so much memory takes as long as a message, and servers are at work meanwhile.
    task.pulled.resize(count_keys(task.pull.segments) * each);
    const std::byte* at = values.data();
    for (std::size_t i = 0; i < part.segments.size(); ++i) {
      std::memcpy(task.pulled.data() + part.offsets[i] * each, at, part.segments[i].size() * each);
      at += part.segments[i].size() * each;
    }
  }
  part.answered = true;
  task.versions[from] = message.sequence;
  if (--task.unanswered == 0) finish(sent->second);
}

}  // namespace trireme::ps
