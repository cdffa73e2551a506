#include "trireme/comm/control/store.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/control.h"

namespace trireme::comm::control {

void check_control_sizes(const std::string& key, const std::string& value) {
  if (key.size() > kMaxControlKeyBytes) {
    throw CommError(fmt::format("a control-plane key has {} bytes (\"{}...\"); at most {} are allowed", key.size(),
                                key.substr(0, 40), kMaxControlKeyBytes),
                    "put the text into the value");
  }
  if (value.size() > kMaxControlValueBytes) {
    throw CommError(fmt::format("the value of control-plane key \"{}\" has {} bytes; at most {} are allowed", key,
                                value.size(), kMaxControlValueBytes),
                    "send it over a Group: the control plane is for small things");
  }
}

void Store::set(const std::string& key, std::string value) {
  check_control_sizes(key, value);
  values_[key] = std::move(value);
}

std::optional<std::string> Store::get(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::int64_t Store::add(const std::string& key, std::int64_t delta) {
  check_control_sizes(key, {});
  std::int64_t value = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
      throw CommError(
          fmt::format("control-plane key \"{}\" holds \"{}\", which is no counter", key, text.substr(0, 40)),
          "use another key for the counter");
    }
  }
  if (__builtin_add_overflow(value, delta, &value)) {
    throw CommError(fmt::format("adding {} to the counter of control-plane key \"{}\" overflows", delta, key));
  }
  values_[key] = fmt::format("{}", value);
  return value;
}

CommError key_timeout(int rank, const std::string& key, std::chrono::milliseconds timeout) {
  return CommError(fmt::format("rank {} waited {:.1f} s for control-plane key \"{}\", and no rank has set it", rank,
                               std::chrono::duration<double>(timeout).count(), key),
                   "see in the other ranks' output whether one of them is stuck or ended before it got there");
}

std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::years(1));
}

std::chrono::steady_clock::time_point next_look(std::chrono::steady_clock::time_point deadline,
                                                const std::function<bool()>& stop) {
  constexpr std::chrono::milliseconds kLook{5};
  return stop ? std::min(deadline, std::chrono::steady_clock::now() + kLook) : deadline;
}

bool asked_to_stop(std::unique_lock<std::mutex>& lock, const std::function<bool()>& stop) {
  if (!stop) return false;
  lock.unlock();
  const bool stopped = stop();
  lock.lock();
  return stopped;
}

}  // namespace trireme::comm::control
