// comm/control/wire.h -- what travels between the control plane's server and its clients, as bytes.
//
// Each side opens with a preface (magic and version), then sends frames: a length and one Message. Every message has
// the same fields and each type uses some of them (see MessageType), so there is one encoder, one decoder, and one
// place to be careful about bytes from strangers. Integers are little-endian.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/comm/control.h"

namespace trireme::comm::control {

inline constexpr std::uint32_t kWireVersion = 2;
/// Largest frame after the handshake: the largest value with room for its key and the fixed fields.
inline constexpr std::size_t kMaxFrameBytes = kMaxControlValueBytes + (64 << 10);
/// Largest frame from someone who has not said who they are: a stranger shall not make the server allocate.
inline constexpr std::size_t kMaxHelloBytes = 4 << 10;

enum class MessageType : std::uint8_t {
  kHello = 1,  ///< client: I am `rank` of `number` ranks; key = job id; flag = I have a token, value = my nonce
  kWelcome,    ///< server: you take part; earlier notices follow
  kRefused,    ///< server: why this connection ends now, in value
  kHeartbeat,  ///< either side: I am alive; the server returns each one
  kBye,        ///< client: I leave in good order; the server closes the connection
  kSet,        ///< client: key = value
  kGet,        ///< client: what is key?
  kWait,       ///< client: what is key, as soon as it exists within `number` ms?
  kAdd,        ///< client: add `number` to key
  kErase,      ///< client: forget key
  kReply,      ///< server: to request `id`: flag = there is a value; value, number
  kFailure,    ///< server: request `id` cannot be done; value says why
  kAnnounce,   ///< client: notice of kind `number` about myself; value = text
  kNotice,     ///< server: notice of kind `number` about `rank`; value = text
  kAsk,        ///< client: ask `rank` value, and give up after `number` ms; answered by kReply
  kQuestion,   ///< server: answer value with kAnswer and this `id`
  kAnswer,     ///< client: to question `id`: flag = there is an answer; value
  kChallenge,  ///< server: to a hello: key = my nonce, value = my proof; prove the same
  kProof,      ///< client: value = my proof
};
inline constexpr auto kLastMessageType = MessageType::kProof;

struct Message {
  MessageType type = MessageType::kHeartbeat;
  bool flag = false;
  std::int32_t rank = -1;
  std::uint64_t id = 0;  // pairs an answer with its request
  std::int64_t number = 0;
  std::string key = {}, value = {};
  bool operator==(const Message&) const = default;
};

/// The message as one frame.
std::string encode(const Message& message);
/// What each side sends first.
std::string preface();

/// The other side sent what this protocol does not know: the connection is of no more use.
class WireError : public CommError {
 public:
  using CommError::CommError;
};

/// Cuts a stream of bytes into messages.
class Decoder {
 public:
  /// Takes frames up to `max_bytes`; see allow().
  explicit Decoder(std::size_t max_bytes) : max_bytes_(max_bytes) {}
  /// Raises the limit, once the other side is known.
  void allow(std::size_t max_bytes) { max_bytes_ = max_bytes; }

  void feed(std::string_view bytes) { buffer_.append(bytes); }
  /// The next whole message; nothing when more bytes are needed. Throws WireError as soon as the bytes seen cannot
  /// become a message, however many may follow.
  std::optional<Message> next();
  /// Whether the other side's preface came and was right.
  bool greeted() const { return greeted_; }

 private:
  bool check_preface();

  std::size_t max_bytes_;
  std::string buffer_;
  std::size_t taken_ = 0;  // bytes at the front of buffer_ already turned into messages
  bool greeted_ = false;
};

/// The beginning of `bytes` for a log line: at most 16 of them, unprintable ones as \xNN.
std::string printable(std::string_view bytes);

}  // namespace trireme::comm::control
