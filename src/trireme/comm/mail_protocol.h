// comm/mail_protocol.h -- what a mailbox does, as a state machine: frames in, frames out, no clock, no thread, no wire.
//
// A message is known by (sender, incarnation of the sender, tag, index within the tag): it is handed out once, in the
// order of its tag, however often connections break and whatever was under way then. The receiver tells how far it has
// received and how far it has handed out; a sender keeps a message until it was handed out, and after a new connection
// sends again what the other side says it lacks. Bytes that were posted and not handed out are bounded for each pair of
// mailboxes (credit), and so is the part of them that is on the wire (window): what is beyond it can be overtaken by
// mail of higher priority, never within a tag.
// Mail to an incarnation that is gone is returned, since nobody can know how much of it that one still did.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/queue_meter.h"

namespace trireme::comm {

struct Mail {
  int from = 0;
  std::uint32_t tag = 0;
  int priority = 0;
  std::vector<std::byte> bytes = {};
  bool operator==(const Mail&) const = default;
};

/// How far a tag has come at the receiver: all messages below `received` are there, all below `taken` handed out.
struct TagProgress {
  std::uint32_t tag = 0;
  std::uint64_t received = 0, taken = 0;
  bool operator==(const TagProgress&) const = default;
};

struct MailFrame {
  enum class Kind : std::uint8_t {
    kHello,  ///< first on a connection: how far the sender of the frame has received from the other
    kData,
    kAck,  ///< progress of some tags
  };
  Kind kind = Kind::kData;
  std::uint64_t incarnation = 0;     // of who sends the frame
  std::uint64_t to_incarnation = 0;  // of whom it is for; 0 in a hello to somebody who was not heard yet
  std::uint32_t tag = 0;
  std::uint64_t index = 0;  // within the tag
  std::int32_t priority = 0;
  std::vector<TagProgress> progress = {};
  std::vector<std::byte> bytes = {};
  bool operator==(const MailFrame&) const = default;
};
/// Bytes and back; nothing when they are no frame, so that a stranger's noise does no harm.
std::string encode(const MailFrame& frame);
std::optional<MailFrame> decode_mail_frame(std::string_view bytes);

struct MailLimits {
  std::size_t credit_bytes = 64 << 20;  ///< posted to one mailbox and not handed out there; a larger message goes alone
  std::size_t window_bytes = 1 << 20;   ///< of these, sent and not known to have been received
};

class MailProtocol {
 public:
  struct Outgoing {
    int to;
    MailFrame frame;
  };

  /// `incarnation` is larger each time a mailbox of this address is made anew; never 0.
  MailProtocol(std::uint64_t incarnation, MailLimits limits);

  /// Whether the credit suffices for so many bytes more.
  bool may_post(int to, std::size_t bytes) const;
  void post(int to, std::uint32_t tag, int priority, std::vector<std::byte> bytes);
  /// The next message: of the highest priority, among those the one that came first; only of `tag` where given.
  std::optional<Mail> take(std::optional<std::uint32_t> tag = std::nullopt);
  /// Whether take() would find one.
  bool has_mail(std::optional<std::uint32_t> tag = std::nullopt) const;
  /// Mail that was on its way to incarnations that are gone; `from` is whom it was for.
  std::vector<Mail> take_returned() { return std::exchange(returned_, {}); }

  void connected(int peer);
  void disconnected(int peer);
  void receive(int from, const MailFrame& frame);
  /// What must be sent now, in order.
  std::vector<Outgoing> take_outgoing();

  /// Posted to `to` and not known to be handed out there.
  std::size_t outstanding_bytes(int to) const;
  /// Received from `from` and not handed out.
  std::size_t held_bytes(int from) const;
  /// Whether the peer owes an answer: a hello, or word of what was sent. A peer that does and is silent has not got it.
  bool awaits(int peer) const;
  /// Mail that has come and is not handed out, by Little's law. The meter looks at a clock; what is done never does.
  QueueReading queue() const { return meter_.read(); }
  /// Whether everything that was posted has been handed out, as far as those are heard of that it was for.
  bool settled() const;

 private:
  struct Posted {
    std::uint64_t index;
    std::uint64_t order;  // among all mail of this mailbox
    int priority;
    std::vector<std::byte> bytes;
    bool sent = false;  // on this connection
  };
  struct Held {
    std::uint64_t arrival;
    int priority;
    std::vector<std::byte> bytes;
    QueueMeter::Nanoseconds since;
  };
  struct OutTag {
    std::uint64_t next = 0;      // index of the next message
    std::uint64_t received = 0;  // as the receiver told
    std::deque<Posted> posted;   // not handed out yet
  };
  struct InTag {
    TagProgress told;  // what the sender knows
    std::uint64_t received = 0, taken = 0;
    std::map<std::uint64_t, Held> held;  // by index: not handed out; from `received` on with gaps
  };
  struct Peer {
    bool is_connected = false, greeted = false;  // greeted: its hello of this connection came
    bool hello_due = false;
    std::uint64_t incarnation = 0;  // 0: not heard yet
    std::map<std::uint32_t, OutTag> out;
    std::map<std::uint32_t, InTag> in;
    std::size_t outstanding = 0, on_wire = 0, held = 0;
  };

  bool meet(Peer& peer, int from, std::uint64_t incarnation);
  void hear_progress(Peer& peer, const TagProgress& progress);
  void take_data(Peer& peer, const MailFrame& frame);
  void send_hello(Peer& peer, int to);
  void send_acks(Peer& peer, int to);
  void send_data(Peer& peer, int to);
  void send_again(Peer& peer);

  const std::uint64_t incarnation_;
  const MailLimits limits_;
  std::map<int, Peer> peers_;
  std::uint64_t orders_ = 0, arrivals_ = 0;
  std::vector<Mail> returned_;
  std::vector<Outgoing> outgoing_;
  QueueMeter meter_;
};

}  // namespace trireme::comm
