// base/progress.h -- how far something is: one line rewritten in place on a terminal, now and then a line elsewhere.
//
//   Progress progress("train", 1000, "step");
//   for (int step = 0; step < 1000; ++step) progress.update(step + 1, fmt::format("loss {:.3f}", loss));
//
//   train   120/1000 steps  12%  3.41 steps/s  4m18s left  loss 2.317
// update() is cheap enough for every step of anything: most calls only look at the clock.
// Depends on: log, units.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace trireme {

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// Where and how often to show it. Tests give a stream and a clock of their own.
  struct Output {
    std::ostream* stream = nullptr;      // null: stderr
    bool terminal = false;               // rewrite one line instead of adding lines
    int columns = 80;                    // the terminal's width; a longer line is cut
    std::chrono::milliseconds every{0};  // at least so long between two shows; 0: 100 ms on terminals, else 10 s
    std::function<Clock::time_point()> now = &Clock::now;
  };
  /// stderr as it is; nothing is shown when the log level is above info (--quiet).
  static Output to_stderr();

  /// `total` 0: not known, then neither percentage nor time left is shown. `unit` in the singular.
  Progress(std::string what, std::int64_t total, std::string unit, Output output = to_stderr());
  /// Shows the last state, if it was not yet, and ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total`; the first call's value counts as where it began (a resumed run is not infinitely fast).
  void update(std::int64_t done, std::string_view note = {});

 private:
  std::string line(Clock::time_point now) const;
  void show(Clock::time_point now);

  std::string what_;
  std::int64_t total_;
  std::string unit_;
  Output output_;
  std::int64_t begin_ = 0, done_ = 0;
  std::string note_;
  Clock::time_point begin_time_, next_;
  bool begun_ = false, shown_ = false;
};

}  // namespace trireme
