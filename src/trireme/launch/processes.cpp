#include "trireme/launch/processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <optional>

#include "trireme/base/child_process.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kInterruptedStatus = 130;  // a run that was asked to stop, and has saved

std::atomic<int> interrupts = 0;  // by signals, which are the process's
void on_interrupt(int) { interrupts.fetch_add(1, std::memory_order_relaxed); }

/// SIGINT and SIGTERM count, and SIGPIPE is an error of a write, while it lives.
class Signals {
 public:
  Signals() {
    interrupts = 0;
    struct sigaction action {};
    action.sa_handler = &on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_int_);
    sigaction(SIGTERM, &action, &before_term_);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &before_pipe_);
  }
  ~Signals() {
    sigaction(SIGINT, &before_int_, nullptr);
    sigaction(SIGTERM, &before_term_, nullptr);
    sigaction(SIGPIPE, &before_pipe_, nullptr);
  }

 private:
  struct sigaction before_int_ {
  }, before_term_{}, before_pipe_{};
};

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;  // nobody reads any more
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

/// Bytes of one stream, given out by whole lines.
class Lines {
 public:
  Lines(int from, int to, std::string prefix) : from_(from), to_(to), prefix_(std::move(prefix)) {
    ::fcntl(from, F_SETFL, ::fcntl(from, F_GETFL) | O_NONBLOCK);
  }
  bool open() const { return from_ >= 0; }
  int descriptor() const { return from_; }

  void read() {
    char bytes[16384];
    for (;;) {
      const ssize_t got = ::read(from_, bytes, sizeof bytes);
      if (got > 0) {
        rest_.append(bytes, static_cast<std::size_t>(got));
        give(/*all=*/rest_.size() > kLongest);
        continue;
      }
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
      give(/*all=*/true);
      from_ = -1;
      return;
    }
  }

 private:
  static constexpr std::size_t kLongest = 1 << 20;  // of a line that is waited for

  void give(bool all) {
    std::string out;
    std::size_t at = 0;
    for (std::size_t end; (end = rest_.find('\n', at)) != std::string::npos; at = end + 1)
      out += fmt::format("{}{}\n", prefix_, std::string_view(rest_).substr(at, end - at));
    rest_.erase(0, at);
    if (all && !rest_.empty()) {
      out += fmt::format("{}{}\n", prefix_, rest_);
      rest_.clear();
    }
    write_all(to_, out);  // in one piece, so that lines of others do not cut it
  }

  int from_, to_;
  std::string prefix_, rest_;
};

struct Running {
  const Process& process;
  ChildProcess child;
  Lines output, errors;
  Running(const Process& what, const ProcessOptions& options)
      : process(what),
        child(what.words, ChildProcess::Streams::kPiped),
        output(child.output(), options.output, what.prefix),
        errors(child.errors(), options.errors, what.prefix) {}
};

class Runner {
 public:
  Runner(const std::vector<Process>& processes, const ProcessOptions& options) : options_(options) {
    for (const Process& process : processes) running_.push_back(std::make_unique<Running>(process, options));
  }

  int go() {
    while (look()) {
      pass_on_signals();
      press();
      wait_for_output();
    }
    for (auto& one : running_) one->output.read(), one->errors.read();
    if (failed_ != nullptr) {
      log_error("{} {}{}", failed_->name, ended_how(failed_status_),
                running_.size() > 1 ? "; the other ranks were ended" : "");
      return failed_status_ == 2 ? 2 : 1;
    }
    return interrupted_ ? kInterruptedStatus : 0;
  }

 private:
  enum class Pressure : std::uint8_t { kNone, kTold, kClosed, kKilled };

  /// False when all have ended.
  bool look() {
    bool some = false;
    for (auto& one : running_) {
      const std::optional<int> status = one->child.poll();
      if (!status) {
        some = true;
      } else if (*status == kInterruptedStatus) {
        interrupted_ = true;
      } else if (*status != 0 && failed_ == nullptr && pressure_ == Pressure::kNone) {
        failed_ = &one->process;
        failed_status_ = *status;
        tell_all();
      }
    }
    return some;
  }

  void tell_all() {
    for (auto& one : running_) {
      if (!one->child.poll()) write_all(one->child.input(), "TERM\n");
    }
    pressure_ = Pressure::kTold;
    since_ = Clock::now();
  }

  void pass_on_signals() {
    const int now = interrupts.load(std::memory_order_relaxed);
    if (now > passed_ && passed_ == 0 && pressure_ == Pressure::kNone) {
      interrupted_ = true;
      for (auto& one : running_) {
        if (!one->child.poll()) write_all(one->child.input(), "TERM\n");
      }
    } else if (now > passed_) {
      close_all();
    }
    passed_ = now;
  }

  void close_all() {
    for (auto& one : running_) one->child.close_input();
    pressure_ = Pressure::kClosed;
    since_ = Clock::now();
  }

  /// Whoever was told to end and has not is told more strongly.
  void press() {
    const auto waited = Clock::now() - since_;
    if (pressure_ == Pressure::kTold && waited > options_.grace) close_all();
    if (pressure_ == Pressure::kClosed && waited > options_.last) {
      for (auto& one : running_) {
        if (!one->child.poll()) one->child.tell(SIGKILL);
      }
      pressure_ = Pressure::kKilled;
    }
  }

  void wait_for_output() {
    std::vector<pollfd> waiting;
    std::vector<Lines*> lines;
    for (auto& one : running_) {
      for (Lines* stream : {&one->output, &one->errors}) {
        if (!stream->open()) continue;
        waiting.push_back({.fd = stream->descriptor(), .events = POLLIN, .revents = 0});
        lines.push_back(stream);
      }
    }
    constexpr int kLookMs = 50;  // that somebody has ended is not told by a descriptor
    if (::poll(waiting.data(), waiting.size(), kLookMs) <= 0) return;
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) lines[i]->read();
    }
  }

  const ProcessOptions& options_;
  Signals signals_;
  std::vector<std::unique_ptr<Running>> running_;
  const Process* failed_ = nullptr;
  int failed_status_ = 0, passed_ = 0;
  bool interrupted_ = false;
  Pressure pressure_ = Pressure::kNone;
  Clock::time_point since_;
};

}  // namespace

int run_processes(const std::vector<Process>& processes, const ProcessOptions& options) {
  TRIREME_CHECK(!processes.empty(), "there is no process to start");
  return Runner(processes, options).go();
}

}  // namespace trireme::launch
