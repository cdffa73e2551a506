// comm/mailbox_timed.h -- mailboxes in virtual time: how long an asynchronous algorithm takes, whatever the machine
// does.
//
// Where run_thread_mailboxes() measures on the machine's clock, this one counts on clocks of its own: mail takes a
// latency, a transfer time and a jitter drawn from the seed, a body says itself how long it computes, and who is
// earliest goes on. One thread runs at a time, so a run is a function of its options, and an hour takes as long as what
// is computed in it. Links have all the credit that is asked for.
// Depends on: mailbox.h.
#pragma once

#include <cstdint>
#include <functional>

#include "trireme/comm/mailbox.h"

namespace trireme::comm {

struct TimedMail {
  double latency_s = 0;
  double jitter_s = 0;          ///< added to the latency: exponential with this mean
  double bytes_per_second = 0;  ///< of each sender to each receiver; 0: no bound
  std::uint64_t seed = 0;
};

class TimedMailbox : public Mailbox {
 public:
  /// This mailbox's clock: seconds since all began.
  virtual double now() const = 0;
  /// Others go on meanwhile.
  virtual void advance(double seconds) = 0;
};

/// Runs `body` on so many threads, addresses 0, 1, ... They may block in their mailboxes only; when all wait for mail
/// that nobody will send, that is a CommError. Throws what a body threw first; the others are ended.
void run_timed_mailboxes(int count, const TimedMail& options, const std::function<void(TimedMailbox&)>& body);

}  // namespace trireme::comm
