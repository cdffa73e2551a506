// What the tests of the control plane share: planes of either kind, and an ear that remembers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/control.h"

namespace trireme::comm {

using namespace std::chrono_literals;

/// Long enough for any machine; nothing waits for so long unless it has failed.
inline constexpr auto kLong = std::chrono::milliseconds(60'000);

struct Planes {
  std::unique_ptr<TcpControlServer> server;  // before the planes, so that it goes after them
  std::vector<std::unique_ptr<ControlPlane>> planes;

  ControlPlane& operator[](int rank) { return *planes[static_cast<std::size_t>(rank)]; }
};

inline Planes tcp_planes(int ranks, TcpControlOptions options = {}) {
  Planes out;
  options.ranks = ranks;
  out.server = make_tcp_control_server(options);
  options.port = out.server->port();
  for (options.rank = 0; options.rank < ranks; ++options.rank) out.planes.push_back(connect_tcp_control(options));
  return out;
}

inline Planes local_planes(int ranks) { return {.server = nullptr, .planes = make_local_control(ranks)}; }

/// Runs `body` on a thread of its own for each of 0..count-1 and waits for all.
inline void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (auto& thread : threads) thread.join();
}

/// Notices as "failed 2: reason", in the order heard.
class Ear {
 public:
  std::function<void(const Notice&)> on_notice() {
    return [this](const Notice& notice) { hear(notice); };
  }
  void hear(const Notice& notice) {
    constexpr const char* kKinds[] = {"failed", "lost", "left", "refused"};
    const std::lock_guard lock(mutex_);
    heard_.push_back(kKinds[static_cast<int>(notice.kind)] + (" " + std::to_string(notice.rank)) + ": " + notice.text);
    changed_.notify_all();
  }
  std::vector<std::string> heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
  }
  /// Waits until so many were heard, and returns them all.
  std::vector<std::string> wait_for(std::size_t count) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLong, [&] { return heard_.size() >= count; });
    return heard_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::string> heard_;
};

}  // namespace trireme::comm
