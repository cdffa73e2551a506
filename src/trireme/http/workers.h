// http/workers.h -- threads that requests run on: as many as run at once, made when they are needed.
//
// Depends on: std.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme::http {

class Workers {
 public:
  Workers() = default;
  /// Waits for all jobs.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Begins at once, on a new thread where none is free. False when the system gives no more threads. A job must not
  /// throw.
  bool start(std::function<void()> job);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> jobs_;
  std::size_t free_ = 0;  // threads that wait
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace trireme::http
