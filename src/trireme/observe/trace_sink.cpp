#include "trireme/observe/trace_sink.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::observe {
namespace {

constexpr std::size_t kBlock = 1 << 16;  // written at once

AppendFile replaced(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);  // what cannot be removed fails to open, with a better message
  return AppendFile(path, AppendFile::Start::kNew);
}

}  // namespace

TraceSink::TraceSink(const std::filesystem::path& path) : file_(replaced(path)) {}

TraceSink::~TraceSink() {
  guarded([&] { write(text_.finish()); });
}

template <typename Body>
void TraceSink::guarded(Body&& body) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    try {
      body();
    } catch (const Error& error) {
      failed_ = true;
      log_warn("the trace ends here: {}", error.message());
    }
  } catch (...) {  // no memory for the message: there is nobody left to tell
  }
}

double TraceSink::microseconds(Span::Clock::time_point time) const {
  return std::chrono::duration<double, std::micro>(time - start_).count();
}

void TraceSink::name_rank(int rank) {
  if (!ranks_.insert(rank).second) return;
  text_.event(R"("ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}})", rank);
  text_.event(R"("ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}})", rank);
}

void TraceSink::name_lane(int rank, int lane) {
  if (!lanes_.emplace(rank, lane).second) return;
  name_rank(rank);
  text_.event(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}})", rank, lane,
              lane == kComputeLane ? std::string("computing") : fmt::format("calls {}", lane));
}

void TraceSink::write(const std::string& text) { file_.append(text); }

void TraceSink::span(const Span& span) noexcept {
  guarded([&] {
    name_lane(span.rank, span.lane);
    const double begin = microseconds(span.begin), end = microseconds(span.end);
    const std::string detail = span.detail.empty() ? "" : fmt::format(R"("detail":{})", TraceText::quoted(span.detail));
    text_.event(R"("ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"cat":{},"args":{{{}}})", span.rank,
                span.lane, begin, std::max(end - begin, 0.0), TraceText::quoted(span.name),
                TraceText::quoted(span.category), detail);
    if (text_.pending() > kBlock) write(text_.take());
  });
}

void TraceSink::metric(const Metric& metric) noexcept {
  guarded([&] {
    if (!std::isfinite(metric.value)) return;  // a counter has no place for it, and JSON no word
    name_rank(metric.rank);
    text_.event(R"("ph":"C","pid":{},"ts":{:.3f},"name":{},"args":{{"value":{}}})", metric.rank,
                microseconds(Span::Clock::now()), TraceText::quoted(metric.name), metric.value);
    if (text_.pending() > kBlock) write(text_.take());
  });
}

}  // namespace trireme::observe
