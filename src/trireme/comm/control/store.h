// comm/control/store.h -- the key-value map behind every control plane; not locked: whoever owns it does that.
//
// Also what the planes must say alike: limits, deadlines, and the error of a key that does not come. Counters are
// values like any other, written as decimal numbers, so that get() shows them. Depends on: base.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "trireme/base/error.h"

namespace trireme::comm::control {

class Store {
 public:
  /// Throws CommError when key or value is larger than the limits in control.h.
  void set(const std::string& key, std::string value);
  std::optional<std::string> get(const std::string& key) const;
  /// Throws CommError when the key holds something that is not a number, or the sum does not fit.
  std::int64_t add(const std::string& key, std::int64_t delta);
  void erase(const std::string& key) { values_.erase(key); }

 private:
  std::map<std::string, std::string> values_;
};

/// What set() and the others refuse; a client calls it too, so that nothing oversized leaves its process.
void check_control_sizes(const std::string& key, const std::string& value);

/// What wait_for() throws when the key does not come.
CommError key_timeout(int rank, const std::string& key, std::chrono::milliseconds timeout);

/// Now plus `timeout`; a timeout of "for ever" does not overflow.
std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout);

/// Of ControlPlane::wait_unless(): until when to sleep before `stop` is asked again.
std::chrono::steady_clock::time_point next_look(std::chrono::steady_clock::time_point deadline,
                                                const std::function<bool()>& stop);
/// Asks it, if there is one, without the lock: it may use the plane.
bool asked_to_stop(std::unique_lock<std::mutex>& lock, const std::function<bool()>& stop);

}  // namespace trireme::comm::control
