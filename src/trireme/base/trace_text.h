// base/trace_text.h -- the text of a Chrome trace, which Perfetto and chrome://tracing open: one event a line.
//
// Shared by whoever writes one: drawings of schedules at once, running programs piece by piece with take(). The format:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
// Depends on: fmt.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace trireme {

class TraceText {
 public:
  enum class Form : std::uint8_t {
    kWhole,   ///< an object: written at once
    kStream,  ///< an array, whose end viewers do not miss when the program was killed
  };
  explicit TraceText(Form form) : form_(form) {
    out_ = form == Form::kWhole ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" : "[\n";
  }

  /// The fields of one event: event(R"("ph":"i","ts":{},"name":{})", 12.5, quoted(name)).
  template <typename... Values>
  void event(fmt::format_string<Values...> format, Values&&... values) {
    out_ += first_ ? "{" : ",\n{";
    first_ = false;
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
    out_ += '}';
  }

  std::size_t pending() const { return out_.size(); }
  /// What was added since the last take().
  std::string take() { return std::exchange(out_, {}); }
  /// take() with the end of the text.
  std::string finish() {
    out_ += form_ == Form::kWhole ? "\n]}\n" : "\n]\n";
    return take();
  }

  /// As a JSON text, with its quotes; bytes that are no UTF-8 become U+FFFD.
  static std::string quoted(std::string_view text);

 private:
  Form form_;
  bool first_ = true;
  std::string out_;
};

}  // namespace trireme
