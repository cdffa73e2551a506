// base/events.h -- the one way metrics and trace spans leave the code that makes them.
//
// Whoever measures takes an EventSink& and does not know who listens: TensorBoard, a trace file, a test, or nobody
// (no_events()). A sink is called from any thread and must be quick.
// Depends on: std.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

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

/// One number at one step.
struct Metric {
  std::string_view name;  // "train/loss"
  double value = 0;
  std::int64_t step = 0;
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  /// Whether anyone looks at spans: what is dear to describe need not be described for nobody.
  virtual bool wants_spans() const noexcept { return true; }
  virtual void span(const Span& span) noexcept = 0;
  virtual void metric(const Metric& metric) noexcept = 0;
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
