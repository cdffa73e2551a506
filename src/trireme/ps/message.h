// ps/message.h -- what servers, workers and their manager say to each other, as a value and as bytes.
//
// Integers are written with as few bytes as they need, segments by the distance to the one before: a push of a dense
// range costs some bytes more than its values. Values may be compressed (filters.h), and keys be left out where the
// server has seen the same list (key caching).
// Depends on: ring.h, range_clocks.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trireme/ps/range_clocks.h"
#include "trireme/ps/ring.h"

namespace trireme::ps {

/// Values of a message without copies: bytes that nobody changes any more, and a stretch of them. A push of a large
/// model is cut into messages, waits for credit, is sent again when a view changes, and on the other side lies behind
/// the keys of the mail it came in: all of these are stretches of one memory.
class SharedBytes {
 public:
  SharedBytes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a message takes bytes as they are made
  SharedBytes(std::vector<std::byte> bytes)
      : owner_(std::make_shared<const std::vector<std::byte>>(std::move(bytes))), view_(*owner_) {}
  /// The stretch, of bytes that were shared before.
  SharedBytes(std::shared_ptr<const std::vector<std::byte>> owner, std::size_t begin, std::size_t size)
      : owner_(std::move(owner)), view_(std::span(*owner_).subspan(begin, size)) {}

  const std::byte* data() const { return view_.data(); }
  std::size_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  const std::byte* begin() const { return view_.data(); }
  const std::byte* end() const { return view_.data() + view_.size(); }
  bool operator==(const SharedBytes& other) const { return std::ranges::equal(view_, other.view_); }

 private:
  std::shared_ptr<const std::vector<std::byte>> owner_;  // by all messages that are stretches of it
  std::span<const std::byte> view_;
};

/// The tag of all mail between nodes: a sender's messages to one receiver stay in order.
inline constexpr std::uint32_t kMailTag = 0x7073;

enum class Encoding : std::uint8_t { kRaw, kZstd, kFixed16 };

struct Message {
  enum class Kind : std::uint8_t {
    kPush,      ///< worker to server: values for keys
    kPushed,    ///< back: applied, and all copies have it
    kPull,      ///< worker to server: which keys
    kPulled,    ///< back: their values, of which all copies have everything
    kNeedKeys,  ///< server to worker: the list of this hash is not known here, send it
    kCopy,      ///< along a chain: the state of keys
    kCopied,    ///< last to first of a chain
    kJoin,      ///< server to manager: wants to own keys; worker to manager: is there
    kLeave,     ///< to manager: wants to go
    kDied,      ///< to manager, by whoever watches: this node is gone
    kWhole,     ///< server to manager: all copies of what it owns are complete in this epoch
    kLost,      ///< server to manager: it is to answer for keys that it does not have
    kView,      ///< manager to all
    kStop,      ///< manager to all: the job is over
  };
  enum class Op : std::uint8_t {
    kUpdate,   ///< by the server's rule
    kAssign,   ///< the values are the plane's from now on
    kInstall,  ///< of a copy: it is the whole range, not a change
  };
  Kind kind = Kind::kPush;
  Op op = Op::kUpdate;
  std::uint64_t epoch = 0;
  std::uint64_t task = 0;      ///< of the worker
  std::int64_t node = 0;       ///< whom kJoin, kLeave, kDied are about; the worker of a push
  std::uint64_t part = 0;      ///< of a task to one server
  std::uint64_t sequence = 0;  ///< of a lane's copies; in answers the server's version: pushes it has applied
  std::uint64_t lane = 0;      ///< of the sender's chains
  int plane = 0;               ///< 0: weights; others are the rule's
  double rate = 0;             ///< learning rate of an update
  bool is_server = false;      ///< kJoin
  bool has_keys = true;        ///< false: only key_hash
  std::uint64_t key_hash = 0;
  Encoding encoding = Encoding::kRaw;
  std::uint64_t raw_bytes = 0;  ///< of the values before they were encoded
  std::vector<Segment> segments = {};
  std::vector<int> chain = {};
  std::vector<RangeClock> clocks = {};
  View view = {};
  SharedBytes values = {};
  bool operator==(const Message&) const = default;
};

struct Outgoing {
  int to;
  Message message;
};

/// All but the values, which follow.
std::vector<std::byte> encode_head(const Message& message);
std::vector<std::byte> encode(const Message& message);
/// Nothing when the bytes are no message. Its values are a stretch of them.
std::optional<Message> decode_message(std::vector<std::byte> bytes);
std::uint64_t hash_keys(std::span<const Segment> segments);

}  // namespace trireme::ps
