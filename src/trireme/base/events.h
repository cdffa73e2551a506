// base/events.h -- the one way metrics and trace spans leave the code that makes them.
//
// Whoever measures takes an EventSink& and does not know who listens: TensorBoard, a trace file, a test, or nobody
// (no_events()). A sink is called from any thread and must be quick.
// Depends on: std.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Something that took time on one rank. The texts are borrowed for the call only.
struct Span {
  using Clock = std::chrono::steady_clock;
  std::string_view name;      // "all_reduce"
  std::string_view category;  // "comm": what a viewer switches on and off
  std::string_view detail;    // "grads.3, 4 MiB, ring"
  int rank = 0;
  int lane = 0;  // of several things at once on one rank: stream, thread
  Clock::time_point begin, end;
};

/// The first lanes of a rank: what it computes, and what travels meanwhile. Calls under way at once take one each, from
/// kFirstCallLane on.
inline constexpr int kComputeLane = 0, kFirstCallLane = 1;

/// One number of one rank at one step. The name is borrowed for the call only.
struct Metric {
  std::string_view name;  // "step/seconds"
  double value = 0;
  std::int64_t step = 0;
  int rank = 0;
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  /// Whether anyone looks at spans: what is dear to describe need not be described for nobody.
  virtual bool wants_spans() const noexcept { return true; }
  virtual void span(const Span& span) noexcept = 0;
  virtual void metric(const Metric& metric) noexcept = 0;
};

/// Tells several; all borrowed.
class EventFanOut final : public EventSink {
 public:
  explicit EventFanOut(std::vector<EventSink*> sinks) : sinks_(std::move(sinks)) {}
  bool wants_spans() const noexcept override {
    return std::any_of(sinks_.begin(), sinks_.end(), [](const EventSink* sink) { return sink->wants_spans(); });
  }
  void span(const Span& span) noexcept override {
    for (EventSink* sink : sinks_) sink->span(span);
  }
  void metric(const Metric& metric) noexcept override {
    for (EventSink* sink : sinks_) sink->metric(metric);
  }

 private:
  std::vector<EventSink*> sinks_;
};

/// What runs while this lives, told to `sink` at its end; nothing where there is none. The texts are borrowed.
class TimedSpan {
 public:
  TimedSpan(EventSink* sink, std::string_view name, std::string_view category, int rank) noexcept : sink_(sink) {
    if (sink_ == nullptr) return;
    span_ = {
        .name = name, .category = category, .detail = {}, .rank = rank, .lane = kComputeLane, .begin = {}, .end = {}};
    span_.begin = Span::Clock::now();
  }
  ~TimedSpan() {
    if (sink_ == nullptr) return;
    span_.end = Span::Clock::now();
    sink_->span(span_);
  }
  TimedSpan(const TimedSpan&) = delete;
  TimedSpan& operator=(const TimedSpan&) = delete;

 private:
  EventSink* sink_;
  Span span_;
};

/// Takes everything, keeps nothing: the default wherever a sink can be given.
inline EventSink& no_events() {
  class Nobody final : public EventSink {
    bool wants_spans() const noexcept override { return false; }
    void span(const Span&) noexcept override {}
    void metric(const Metric&) noexcept override {}
  };
  static Nobody nobody;
  return nobody;
}

}  // namespace trireme
