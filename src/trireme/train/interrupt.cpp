#include "trireme/train/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string_view>

namespace trireme::train {
namespace {

// Process-wide, as signals are.
std::atomic<int> signals = 0;
std::mutex mutex;
int holders = 0;  // ranks that are threads
struct sigaction before_int, before_term;

void on_signal(int) {
  if (signals.fetch_add(1, std::memory_order_relaxed) > 0) _exit(130);
  constexpr std::string_view kText = "\nstopping after this step, and saving; once more to quit at once\n";
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, kText.data(), kText.size());
}

}  // namespace

Interrupt::Interrupt() {
  const std::lock_guard lock(mutex);
  if (holders++ > 0) return;
  signals = 0;
  struct sigaction action {};
  action.sa_handler = &on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_int);
  sigaction(SIGTERM, &action, &before_term);
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(mutex);
  if (--holders > 0) return;
  sigaction(SIGINT, &before_int, nullptr);
  sigaction(SIGTERM, &before_term, nullptr);
}

bool Interrupt::requested() noexcept { return signals.load(std::memory_order_relaxed) > 0; }

}  // namespace trireme::train
