// comm/mailbox.h -- messages between processes that come and go, beside groups: for algorithms without a common step.
//
// A Group is a protocol that all its ranks follow in one order. A mailbox is for what has no such order: gradients to a
// parameter server, weights to whichever peer is there. Anybody posts to anybody, whoever receives takes what is there;
// mail_protocol.h says what is guaranteed (once, in the order of its tag, bounded bytes, across reconnections).
//
// run_mailboxes() runs threads whose every delivery follows from a seed, one thread at a time: an asynchronous
// algorithm then gives the same bits each time, and another seed is another interleaving to be right under.
// make_ucx_mailbox() is one between processes; what a test found under a seed runs there unchanged.
// Depends on: mail_protocol.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/comm/mail_protocol.h"

namespace trireme::comm {

/// Both, one behind the other.
inline std::vector<std::byte> joined_bytes(std::span<const std::byte> head, std::span<const std::byte> rest) {
  std::vector<std::byte> bytes;
  bytes.reserve(head.size() + rest.size());
  bytes.insert(bytes.end(), head.begin(), head.end());
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

class Mailbox {
 public:
  using Milliseconds = std::chrono::milliseconds;
  virtual ~Mailbox() = default;
  virtual int address() const = 0;

  /// Copies the bytes. Waits for credit while `to` has too much of ours to take; CommError when that lasts longer than
  /// the deadline. Mail is delivered by priority where several wait, never out of order within a tag.
  virtual void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) = 0;
  /// False, and nothing posted, where post() would wait.
  bool try_post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) {
    return try_post_parts(to, tag, priority, bytes, {});
  }
  /// The same of a message in two parts, which go one behind the other.
  virtual bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                              std::span<const std::byte> rest) = 0;

  /// The next message from anybody, only of `tag` where given. CommError when none comes before the deadline.
  virtual Mail receive(std::optional<std::uint32_t> tag = std::nullopt) = 0;
  /// Nothing when none comes within this time: for who looks at something else meanwhile.
  virtual std::optional<Mail> receive_for(Milliseconds time, std::optional<std::uint32_t> tag = std::nullopt) = 0;
  /// Nothing when there is none now.
  virtual std::optional<Mail> try_receive(std::optional<std::uint32_t> tag = std::nullopt) = 0;
  /// Mail that came back, because whom it was for is gone; `from` is who that was.
  virtual std::vector<Mail> take_returned() = 0;
  /// Mail that has come and was not taken yet, by Little's law; credit bounds it.
  virtual QueueReading queue() const = 0;
};

struct SeededMail {
  std::uint64_t seed = 0;
  MailLimits limits = {};
  /// How often, in a thousand steps, a connection breaks with everything that is under way on it.
  int breaks_per_mille = 0;
};

/// Runs `body` on so many threads, addresses 0, 1, ...; who goes on and which frame arrives next is drawn from the
/// seed. They may block in their mailboxes only; when all wait for mail that nobody will send, that is a CommError.
/// Throws what a body threw first; the others are ended.
void run_mailboxes(int count, const SeededMail& options, const std::function<void(Mailbox&)>& body);

class ControlPlane;
struct UcxMailOptions;  // ucx_plugin/ucx_plugin.h
/// Over UCX, with others that share the control plane. ConfigError when UCX was not built in.
std::unique_ptr<Mailbox> make_ucx_mailbox(ControlPlane& control, const UcxMailOptions& options);
/// Between the processes that a launcher started, over what carries their collectives: MPI, or UCX (break_every and
/// interface are UCX's).
std::unique_ptr<Mailbox> make_process_mailbox(ControlPlane& control, const UcxMailOptions& options);

}  // namespace trireme::comm
