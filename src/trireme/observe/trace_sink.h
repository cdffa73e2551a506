// observe/trace_sink.h -- spans of a running program as a trace that Perfetto (ui.perfetto.dev) opens.
//
//   TraceSink trace(run / "trace.json");
//   ... run_ranks(4, body, {.events = &trace}) ...
//
// A rank is a process of the trace and a lane one of its threads; metrics are counters of their rank. Times count from
// when the sink was made. The file can be opened at any time, also after the program was killed.
// Depends on: base, append_file.
#pragma once

#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "trireme/base/events.h"
#include "trireme/base/trace_text.h"
#include "trireme/observe/append_file.h"

namespace trireme::observe {

class TraceSink final : public EventSink {
 public:
  /// IoError when the file cannot be made; an old one of that name is replaced.
  explicit TraceSink(const std::filesystem::path& path);
  ~TraceSink() override;

  /// A trace is never worth a failure: when it cannot be written any more, one warning says so and the rest is dropped.
  void span(const Span& span) noexcept override;
  void metric(const Metric& metric) noexcept override;

 private:
  double microseconds(Span::Clock::time_point time) const;
  void name_rank(int rank);
  void name_lane(int rank, int lane);
  void write(const std::string& text);
  template <typename Body>
  void guarded(Body&& body) noexcept;

  std::mutex mutex_;
  AppendFile file_;
  TraceText text_{TraceText::Form::kStream};
  std::set<std::pair<int, int>> lanes_;  // named already
  std::set<int> ranks_;
  bool failed_ = false;
  Span::Clock::time_point start_ = Span::Clock::now();
};

}  // namespace trireme::observe
