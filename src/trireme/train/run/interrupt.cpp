#include "trireme/train/run/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>

namespace trireme::train {
namespace {

// Process-wide, as signals are.
std::atomic<int> stop_signals = 0, save_requests = 0;
std::atomic<unsigned> grace_s = 60;
std::mutex mutex;
int holders = 0;  // ranks that are threads
struct sigaction before_int, before_term, before_save, before_alarm, before_size;

void say(std::string_view text) {
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void on_signal(int) {
  if (stop_signals.fetch_add(1, std::memory_order_relaxed) > 0) _exit(130);
  say("\nstopping after this step, and saving; once more to quit at once\n");
  ::alarm(grace_s.load(std::memory_order_relaxed));
}

void on_deadline(int) {
  say("\nthe step and its checkpoint took longer than checkpoint.grace: ending; the newest whole checkpoint stays\n");
  _exit(130);
}

void on_save(int signal, siginfo_t* info, void* context) {
  save_requests.fetch_add(1, std::memory_order_relaxed);
  if ((before_save.sa_flags & SA_SIGINFO) != 0) {
    before_save.sa_sigaction(signal, info, context);
  } else if (before_save.sa_handler != SIG_DFL && before_save.sa_handler != SIG_IGN) {
    before_save.sa_handler(signal);
  }
}

struct sigaction action_of(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  return action;
}

}  // namespace

Interrupt::Interrupt(std::chrono::nanoseconds grace) {
  const std::lock_guard lock(mutex);
  if (holders++ > 0) return;
  stop_signals = save_requests = 0;
  grace_s = static_cast<unsigned>(
      std::clamp<std::int64_t>(std::chrono::duration_cast<std::chrono::seconds>(grace).count(), 1, 1 << 30));
  const struct sigaction stop = action_of(&on_signal), deadline = action_of(&on_deadline), ignore = action_of(SIG_IGN);
  struct sigaction save {};
  save.sa_sigaction = &on_save;
  sigemptyset(&save.sa_mask);
  save.sa_flags = SA_RESTART | SA_SIGINFO;
  sigaction(SIGINT, &stop, &before_int);
  sigaction(SIGTERM, &stop, &before_term);
  sigaction(SIGALRM, &deadline, &before_alarm);
  sigaction(SIGUSR1, &save, &before_save);
  sigaction(SIGXFSZ, &ignore, &before_size);  // a file that must not grow is an error of that file, not of the run
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(mutex);
  if (--holders > 0) return;
  if (stop_signals > 0) ::alarm(0);
  sigaction(SIGINT, &before_int, nullptr);
  sigaction(SIGTERM, &before_term, nullptr);
  sigaction(SIGALRM, &before_alarm, nullptr);
  sigaction(SIGUSR1, &before_save, nullptr);
  sigaction(SIGXFSZ, &before_size, nullptr);
}

bool Interrupt::requested() noexcept { return stop_signals.load(std::memory_order_relaxed) > 0; }
int Interrupt::saves_requested() noexcept { return save_requests.load(std::memory_order_relaxed); }

}  // namespace trireme::train
