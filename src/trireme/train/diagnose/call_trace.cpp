#include "trireme/train/diagnose/call_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/log.h"

namespace trireme::train {
namespace {

Span::Clock::time_point at(std::int64_t ns) {
  return Span::Clock::time_point(std::chrono::duration_cast<Span::Clock::duration>(std::chrono::nanoseconds(ns)));
}

}  // namespace

CallTrace::CallTrace(const comm::Recorder& recorder, EventSink& sink, int rank)
    : recorder_(recorder), sink_(sink), rank_(rank) {
  for (const comm::Recorder::Entry& entry : recorder_.entries()) next_ = std::max(next_, entry.id + 1);
}

int CallTrace::lane_for(std::int64_t begin_ns, std::int64_t end_ns) {
  auto lane = std::ranges::find_if(lane_ends_, [&](std::int64_t end) { return end <= begin_ns; });
  if (lane == lane_ends_.end()) lane = lane_ends_.insert(lane, 0);
  *lane = end_ns;
  return kFirstCallLane + static_cast<int>(lane - lane_ends_.begin());
}

void CallTrace::tell() {
  std::vector<comm::Recorder::Entry> entries = recorder_.entries();
  if (entries.empty()) return;
  std::uint64_t oldest = entries.front().id;
  for (const comm::Recorder::Entry& entry : entries) oldest = std::min(oldest, entry.id);
  if (next_ > 0 && oldest > next_ && !warned_) {
    warned_ = true;
    log_warn("the trace lacks calls: a step makes more than the {} that are recorded; raise comm.flight_recorder_calls",
             entries.size());
  }
  std::ranges::sort(entries, {}, &comm::Recorder::Entry::started_ns);
  std::set<std::uint64_t> running;
  std::uint64_t next = next_;
  for (const comm::Recorder::Entry& entry : entries) {
    if (entry.id < next_ && !running_.contains(entry.id)) continue;
    next = std::max(next, entry.id + 1);
    if (entry.state == comm::Recorder::State::kPending) {
      running.insert(entry.id);
      continue;
    }
    const std::string detail = fmt::format("{} in {}", comm::describe(entry.key), entry.group);
    sink_.span({.name = comm::name(entry.key.op),
                .category = "comm",
                .detail = detail,
                .rank = rank_,
                .lane = lane_for(entry.started_ns, entry.ended_ns),
                .begin = at(entry.started_ns),
                .end = at(entry.ended_ns)});
  }
  running_ = std::move(running);
  next_ = next;
}

}  // namespace trireme::train
