#include "trireme/base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"

namespace trireme {
namespace {

// By code points, so that no sign is cut in half.
std::string cut_to(std::string text, std::size_t columns) {
  while (columns_of(text) > columns) {
    while ((static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
    text.pop_back();
  }
  return text;
}

}  // namespace

Progress::Output Progress::to_stderr() {
  Output output;
  if (log_level() > LogLevel::kInfo) {
    output.every = std::chrono::milliseconds::max();
    return output;
  }
  output.terminal = isatty(STDERR_FILENO) == 1;
  winsize size{};
  if (output.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) output.columns = size.ws_col;
  return output;
}

Progress::Progress(std::string what, std::int64_t total, std::string unit, Output output)
    : what_(std::move(what)), total_(total), unit_(std::move(unit)), output_(std::move(output)) {
  if (output_.every.count() == 0) output_.every = std::chrono::milliseconds(output_.terminal ? 100 : 10'000);
}

Progress::~Progress() {
  const bool silent = output_.every == std::chrono::milliseconds::max();
  if (!begun_ || silent) return;
  try {
    if (!shown_) show(output_.now());
    if (output_.terminal) {
      (output_.stream != nullptr ? *output_.stream : std::cerr) << '\n' << std::flush;
      note_open_line(false);
    }
  } catch (...) {  // a progress line is never worth a failure
  }
}

void Progress::update(std::int64_t done, std::string_view note) {
  const Clock::time_point now = output_.now();
  if (!begun_) {
    begun_ = true;
    begin_ = done;
    begin_time_ = now;
    // On a terminal at once; elsewhere only what lasts is worth a line.
    next_ = output_.terminal ? now : now + std::min(output_.every, std::chrono::milliseconds(1LL << 40));
  }
  done_ = done;
  note_ = note;
  shown_ = false;
  if (now >= next_ && output_.every != std::chrono::milliseconds::max()) show(now);
}

void Progress::show(Clock::time_point now) {
  next_ = now + output_.every;
  shown_ = true;
  std::ostream& out = output_.stream != nullptr ? *output_.stream : std::cerr;
  if (!output_.terminal) {
    out << rank_prefix() << line(now) << '\n' << std::flush;
    return;
  }
  // One column is left free: in the last one some terminals begin a new line.
  out << '\r' << cut_to(line(now), static_cast<std::size_t>(std::max(output_.columns - 1, 1))) << "\x1b[K"
      << std::flush;
  if (output_.stream == nullptr) note_open_line(true);
}

std::string Progress::line(Clock::time_point now) const {
  std::string out = fmt::format("{}  ", what_);
  const auto units = static_cast<std::size_t>(total_ > 0 ? total_ : done_);
  if (total_ > 0) {
    out += fmt::format("{}/{}  {}%", done_, counted(units, unit_),
                       static_cast<int>(100.0 * static_cast<double>(done_) / static_cast<double>(total_)));
  } else {
    out += counted(units, unit_);
  }
  const double seconds = std::chrono::duration<double>(now - begin_time_).count();
  if (done_ > begin_ && seconds > 0) {
    const double rate = static_cast<double>(done_ - begin_) / seconds;
    out += fmt::format("  {} {}s/s", short_count(rate), unit_);
    if (total_ > done_) out += fmt::format("  {} left", short_seconds(static_cast<double>(total_ - done_) / rate));
  }
  if (total_ > 0 && done_ >= total_) out += fmt::format("  in {}", short_seconds(seconds));
  if (!note_.empty()) out += fmt::format("  {}", note_);
  return out;
}

}  // namespace trireme
