#include "trireme/comm/control/wire.h"

#include <algorithm>
#include <type_traits>

namespace trireme::comm::control {
namespace {

// A line end inside, so that a text protocol that happens to talk to us fails at once instead of waiting for more.
constexpr std::string_view kMagic{"TRIREME\n", 8};
constexpr std::size_t kPrefaceBytes = 12, kLengthBytes = 4, kFixedBytes = 1 + 1 + 4 + 8 + 8 + 4 + 4;

template <typename Integer>
void put(std::string& out, Integer value) {
  const auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (std::size_t i = 0; i < sizeof(bits); ++i) out += static_cast<char>((bits >> (8 * i)) & 0xff);
}

// Takes an integer off the front of `bytes`; whoever calls has checked that it is there.
template <typename Integer>
Integer take(std::string_view& bytes) {
  std::make_unsigned_t<Integer> bits = 0;
  for (std::size_t i = 0; i < sizeof(bits); ++i) {
    bits |= static_cast<std::make_unsigned_t<Integer>>(static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i]))
                                                       << (8 * i));
  }
  bytes.remove_prefix(sizeof(bits));
  return static_cast<Integer>(bits);
}

Message decode(std::string_view body) {
  Message message;
  const auto type = take<std::uint8_t>(body);
  if (type < static_cast<std::uint8_t>(MessageType::kHello) || type > static_cast<std::uint8_t>(kLastMessageType)) {
    throw WireError(fmt::format("it sent a message of the unknown type {}", type));
  }
  message.type = static_cast<MessageType>(type);
  message.flag = take<std::uint8_t>(body) != 0;
  message.rank = take<std::int32_t>(body);
  message.id = take<std::uint64_t>(body);
  message.number = take<std::int64_t>(body);
  const std::size_t key_bytes = take<std::uint32_t>(body), value_bytes = take<std::uint32_t>(body);
  if (key_bytes > body.size() || value_bytes != body.size() - key_bytes) {
    throw WireError(fmt::format("it sent a frame with {} bytes of text that announces a key of {} and a value of {}",
                                body.size(), key_bytes, value_bytes));
  }
  message.key = body.substr(0, key_bytes);
  message.value = body.substr(key_bytes);
  return message;
}

}  // namespace

std::string encode(const Message& message) {
  const std::size_t bytes = kFixedBytes + message.key.size() + message.value.size();
  TRIREME_CHECK(bytes <= kMaxFrameBytes, "a control frame of {} bytes exceeds the limit of {}", bytes, kMaxFrameBytes);
  std::string out;
  out.reserve(kLengthBytes + bytes);
  put(out, static_cast<std::uint32_t>(bytes));
  put(out, static_cast<std::uint8_t>(message.type));
  put(out, static_cast<std::uint8_t>(message.flag));
  put(out, message.rank);
  put(out, message.id);
  put(out, message.number);
  put(out, static_cast<std::uint32_t>(message.key.size()));
  put(out, static_cast<std::uint32_t>(message.value.size()));
  out += message.key;
  out += message.value;
  return out;
}

std::string preface() {
  std::string out(kMagic);
  put(out, kWireVersion);
  return out;
}

bool Decoder::check_preface() {
  const auto seen = std::min(buffer_.size(), kMagic.size());
  if (std::string_view(buffer_).substr(0, seen) != kMagic.substr(0, seen)) {
    throw WireError(fmt::format("it does not speak Trireme's protocol (began with \"{}\")", printable(buffer_)));
  }
  if (buffer_.size() < kPrefaceBytes) return false;
  std::string_view rest = std::string_view(buffer_).substr(kMagic.size());
  if (const auto version = take<std::uint32_t>(rest); version != kWireVersion) {
    throw WireError(
        fmt::format("it speaks version {} of the control protocol, this side version {}", version, kWireVersion),
        "run the same build of Trireme on all ranks");
  }
  taken_ = kPrefaceBytes;
  greeted_ = true;
  return true;
}

std::optional<Message> Decoder::next() {
  if (!greeted_ && !check_preface()) return std::nullopt;
  std::string_view rest = std::string_view(buffer_).substr(taken_);
  std::optional<Message> message;
  if (rest.size() >= kLengthBytes) {
    const std::size_t bytes = take<std::uint32_t>(rest);
    if (bytes < kFixedBytes || bytes > max_bytes_) {
      throw WireError(
          fmt::format("it sent a frame of {} bytes, where {} to {} are allowed", bytes, kFixedBytes, max_bytes_));
    }
    if (rest.size() >= bytes) {
      message = decode(rest.substr(0, bytes));
      taken_ += kLengthBytes + bytes;
    }
  }
  // Moving the rest to the front once per read, not once per message, keeps many small messages linear.
  if (!message && taken_ > 0) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  return message;
}

std::string printable(std::string_view bytes) {
  std::string out;
  for (const char c : bytes.substr(0, 16)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace trireme::comm::control
