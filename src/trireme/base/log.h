// base/log.h -- messages to people: levels, and which rank speaks.
//
//   log_info("{} ranks on {}", ranks, host);     12:03:04 info  [rank 3] 4 ranks on alpha
//
// They go to stderr, as stdout is for results. "[rank 3]" is shown only when there is more than one rank. Ranks that
// are processes call set_process_rank once; ranks that are threads hold a ThreadRank. spdlog does the work behind
// log.cpp; nobody else includes it, which keeps compile times down. The level and the writer are the one piece of
// process-wide state in this room: a message must be possible from anywhere.
// Depends on: fmt, text.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "trireme/base/text.h"

namespace trireme {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError, kOff };
std::span<const Named<LogLevel>> enum_names(std::type_identity<LogLevel>);
/// ConfigError with the known names when `text` is none of them.
LogLevel parse_log_level(std::string_view text);

void set_log_level(LogLevel level);
LogLevel log_level();

/// Every thread of this process speaks as this rank, unless it holds a ThreadRank.
void set_process_rank(int rank, int ranks);

/// While it lives, this thread speaks as `rank` of `ranks`.
class ThreadRank {
 public:
  ThreadRank(int rank, int ranks);
  ~ThreadRank();
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

 private:
  int rank_before_, ranks_before_;
};

/// "[rank 3] " where there is more than one rank, empty otherwise: for messages that do not go through the log.
std::string rank_prefix();

/// Gives whole lines, without colours and time, to `take` instead of stderr; null goes back to stderr. For tests.
void divert_log(std::function<void(std::string_view line)> take);

/// While it lives, whole lines, with date and time and without colours, also go to the end of a file: a run's log.
/// IoError when it cannot be opened; a line that cannot be written later is lost, as the log is no reason to stop.
class LogCopy {
 public:
  explicit LogCopy(const std::string& path);
  ~LogCopy();
  LogCopy(const LogCopy&) = delete;
  LogCopy& operator=(const LogCopy&) = delete;

 private:
  int descriptor_;
};

/// Said once by a progress line that stands unfinished on stderr: the next message wipes it first.
void note_open_line(bool open);

namespace detail {
bool log_enabled(LogLevel level);
void log_text(LogLevel level, std::string_view text);
}  // namespace detail

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled(level)) detail::log_text(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_trace(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kTrace, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace trireme
