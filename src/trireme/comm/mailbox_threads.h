// comm/mailbox_threads.h -- mailboxes of threads that really run beside each other, with links of a given delay.
//
// Where run_mailboxes() makes every interleaving repeatable, this one measures: mail is ready after a latency, a
// transfer time and a jitter drawn from the seed, in order for each sender and tag. Credit bounds what a receiver has
// not taken, as in any mailbox.
// Depends on: mailbox.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "trireme/comm/mailbox.h"

namespace trireme::comm {

struct ThreadMail {
  std::chrono::microseconds latency{0};
  std::chrono::microseconds jitter{0};  ///< added to the latency: exponential with this mean
  double bytes_per_second = 0;          ///< of each sender to each receiver; 0: as fast as memory
  std::uint64_t seed = 0;
  std::size_t credit_bytes = 64 << 20;
  std::chrono::milliseconds deadline{600'000};
};

/// Mailboxes of such threads, for who has the threads already.
class ThreadMailRoom {
 public:
  virtual ~ThreadMailRoom() = default;
  /// The room outlives it.
  virtual std::unique_ptr<Mailbox> open(int address) = 0;
};
std::shared_ptr<ThreadMailRoom> make_thread_mail_room(int count, const ThreadMail& options);

/// Runs `body` on so many threads, addresses 0, 1, ... Throws what a body threw first; the others are ended when they
/// next wait.
void run_thread_mailboxes(int count, const ThreadMail& options, const std::function<void(Mailbox&)>& body);

}  // namespace trireme::comm
