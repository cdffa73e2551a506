// comm/mailbox_bodies.h -- the threads on which bodies with mailboxes run: what the kinds of mailboxes in one process
// share.
//
// Depends on: std.
#pragma once

#include <exception>
#include <thread>
#include <vector>

namespace trireme::comm {

/// Thrown into bodies that wait when another one has failed; never leaves run_bodies().
struct BodyStopped {};

/// Runs body(me) on so many threads. Each ends with ended(me, failure): what it threw; null where it threw nothing or
/// was stopped.
template <typename Body, typename Ended>
void run_bodies(int count, const Body& body, const Ended& ended) {
  std::vector<std::thread> threads;
  for (int me = 0; me < count; ++me) {
    threads.emplace_back([&, me] {
      std::exception_ptr failure;
      try {
        body(me);
      } catch (const BodyStopped&) {
      } catch (...) {
        failure = std::current_exception();
      }
      ended(me, failure);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace trireme::comm
