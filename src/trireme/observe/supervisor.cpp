#include "trireme/observe/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "trireme/base/child_process.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/units.h"
#include "trireme/observe/heartbeat.h"
#include "trireme/observe/timeline.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::atomic<int> stop_signal = 0;  // by a signal, which is the process's
void on_stop(int signal) { stop_signal = signal; }

/// SIGINT and SIGTERM ask the supervisor to stop, while it lives.
class StopSignals {
 public:
  StopSignals() {
    stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = &on_stop;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_int_);
    sigaction(SIGTERM, &action, &before_term_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &before_int_, nullptr);
    sigaction(SIGTERM, &before_term_, nullptr);
  }

 private:
  struct sigaction before_int_ {
  }, before_term_{};
};

/// How `trireme train` ends when it was asked to stop.
constexpr int kInterrupted = 130;

/// The newest checkpoint that is there, by its name: what a life must move to count as progress.
std::int64_t newest_name(const fs::path& run) {
  std::int64_t newest = -1;
  std::error_code error;
  for (fs::directory_iterator entry(run / "checkpoints", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with("step-") || name.find('.') != std::string::npos) continue;
    newest = std::max<std::int64_t>(newest, std::atoll(name.c_str() + 5));
  }
  return newest;
}

class Supervisor {
 public:
  explicit Supervisor(const SuperviseOptions& options)
      : options_(options), timeline_(options.run / "timeline.jsonl", "supervisor") {}

  Supervised go();

 private:
  enum class End : std::uint8_t { kItself, kHung, kStopped };
  End watch(ChildProcess& child);
  bool pause(int without_progress) const;

  const SuperviseOptions& options_;
  StopSignals signals_;
  Timeline timeline_;
  Supervised result_;
  std::size_t place_ = 0;  // in options_.ranks
  double silent_s_ = 0;    // for how long the last that hung said nothing
};

/// Until the child has ended or must be.
Supervisor::End Supervisor::watch(ChildProcess& child) {
  const auto before = read_heartbeat(options_.run);
  std::optional<std::int64_t> beats;
  auto alive = Clock::now();
  while (!child.poll()) {
    if (stop_signal != 0) return End::kStopped;
    const auto now = read_heartbeat(options_.run);
    // One that an earlier life left does not count.
    if (now && (!before || now->pid != before->pid || now->beats != before->beats) && beats != now->beats) {
      beats = now->beats;
      alive = Clock::now();
    }
    if (Clock::now() - alive > (beats ? options_.hang : options_.start)) {
      silent_s_ = seconds_since(alive);
      return End::kHung;
    }
    std::this_thread::sleep_for(options_.look);
  }
  return End::kItself;
}

/// False: asked to stop meanwhile.
bool Supervisor::pause(int without_progress) const {
  const auto until = Clock::now() + wait_before(without_progress, options_);
  while (stop_signal == 0 && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return stop_signal == 0;
}

Supervised Supervisor::go() {
  int without_progress = 0, here = 0;
  std::int64_t saved = newest_name(options_.run);
  for (;;) {
    const int ranks = options_.ranks.empty() ? 0 : options_.ranks[place_];
    const auto words = ranks > 0 ? filled_in(options_.command, ranks) : options_.command;
    ++result_.lives;
    take_back_stop(options_.run);  // of another time
    timeline_.tell("start",
                   {{"life", result_.lives}, {"ranks", ranks}, {"command", fmt::format("{}", fmt::join(words, " "))}});
    if (result_.lives > 1)
      log_info("attempt {} starts{}", result_.lives, ranks > 0 ? fmt::format(" with {} ranks", ranks) : "");
    ChildProcess child(words);
    const End end = watch(child);
    for (const TimelineEvent& event : read_timeline(options_.run / "timeline.jsonl")) timeline_.hear(event.clock);
    if (end == End::kStopped) {
      ask_to_stop(options_.run);
      const auto until = Clock::now() + options_.grace;
      while (!child.poll() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      result_.status = child.end(options_.grace);
      take_back_stop(options_.run);
      result_.why = "interrupted";
      timeline_.tell("stop", {{"why", result_.why}, {"status", result_.status}});
      return result_;
    }
    if (end == End::kHung) {
      ++result_.hangs;
      // A hung run does not answer; it gets a moment all the same, for ranks that still can say what they wait for.
      timeline_.tell("hung", {{"life", result_.lives}, {"pid", child.pid()}});
      log_warn("no heartbeat for {}: the run hangs, and is ended", short_seconds(silent_s_));
      child.end(std::min<std::chrono::milliseconds>(options_.grace, std::chrono::milliseconds(2'000)));
    }
    result_.status = *child.poll();
    timeline_.tell("ended", {{"life", result_.lives}, {"status", result_.status}, {"hung", end == End::kHung}});
    if (result_.status == 0 && end == End::kItself) {
      result_.finished = true;
      return result_;
    }
    if (result_.status == kInterrupted && end == End::kItself) {  // somebody stopped it, and it has saved
      result_.why = "interrupted";
      return result_;
    }
    if (result_.status == 127 || (result_.status == 2 && end == End::kItself)) {  // it would be the same again
      result_.why = result_.status == 127 ? fmt::format("{} cannot be started", words[0])
                                          : "the command line, recipe or environment is wrong, as told above";
      return result_;
    }
    const std::int64_t now = newest_name(options_.run);
    const bool progress = now > saved;
    saved = std::max(saved, now);
    without_progress = progress ? 0 : without_progress + 1;
    here = progress ? 0 : here + 1;
    log_warn("the run {}{}; the newest checkpoint is of step {}", ended_how(result_.status),
             end == End::kHung ? " as it hung" : "", saved);
    if (without_progress > options_.restarts) {
      result_.why = fmt::format("{} attempts in a row brought no new checkpoint; the last {}", without_progress,
                                ended_how(result_.status));
      timeline_.tell("gave_up", {{"why", result_.why}});
      return result_;
    }
    if (here >= options_.lives_before_fewer && place_ + 1 < options_.ranks.size()) {
      ++place_;
      here = 0;
      timeline_.tell("fewer", {{"ranks", options_.ranks[place_]}});
      log_warn("going on with {} ranks", options_.ranks[place_]);
    }
    if (!pause(without_progress)) {
      result_.why = "interrupted";
      return result_;
    }
  }
}

}  // namespace

std::chrono::milliseconds wait_before(int lives_without_progress, const SuperviseOptions& options) {
  auto wait = options.first_wait;
  for (int i = 1; i < lives_without_progress && wait < options.longest_wait; ++i) wait *= 2;
  return std::min(wait, options.longest_wait);
}

std::vector<std::string> filled_in(const std::vector<std::string>& command, int ranks) {
  std::vector<std::string> words = command;
  constexpr std::string_view kPlace = "{ranks}";
  for (std::string& word : words) {
    for (std::size_t at; (at = word.find(kPlace)) != std::string::npos;) {
      word.replace(at, kPlace.size(), std::to_string(ranks));
    }
  }
  return words;
}

Supervised supervise(const SuperviseOptions& options) {
  TRIREME_CHECK(!options.command.empty(), "there is no command to supervise");
  fs::create_directories(options.run);
  return Supervisor(options).go();
}

}  // namespace trireme::observe
