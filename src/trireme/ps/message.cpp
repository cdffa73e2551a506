#include "trireme/ps/message.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace trireme::ps {
namespace {

constexpr std::size_t kAlign = 16;  // of values in a message: servers compute with them where they lie

class MessageWriter {
 public:
  explicit MessageWriter(std::size_t expected) { bytes_.reserve(expected); }
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<std::byte>(value | 0x80));
    bytes_.push_back(static_cast<std::byte>(value));
  }
  void numbers(const std::vector<int>& values) {
    number(values.size());
    for (const int value : values) number(static_cast<std::uint32_t>(value));
  }
  void segments(const std::vector<Segment>& segments) {
    number(segments.size());
    std::uint64_t at = 0;
    for (const Segment& segment : segments) {
      number(segment.begin - at);  // modulo 2^64 where they are not sorted
      number(segment.size());
      at = segment.end;
    }
  }
  /// What follows begins at a multiple of kAlign.
  void align() {
    const std::size_t padding = (kAlign - (bytes_.size() + 1) % kAlign) % kAlign;
    bytes_.push_back(static_cast<std::byte>(padding));
    bytes_.resize(bytes_.size() + padding);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) break;
      const auto byte = static_cast<std::uint64_t>(bytes_[at_++]);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;
    return 0;
  }
  /// A number of things that take at least a byte each.
  std::size_t count() {
    const std::uint64_t value = number();
    if (value > bytes_.size() - at_) good_ = false;
    return good_ ? static_cast<std::size_t>(value) : 0;
  }
  /// A stretch of bytes, aligned: where it begins, and how long it is.
  std::pair<std::size_t, std::size_t> stretch() {
    const std::size_t size = count(), padding = static_cast<std::size_t>(number());
    if (padding >= kAlign || padding + size > bytes_.size() - at_) good_ = false;
    if (!good_) return {0, 0};
    const std::size_t begin = at_ + padding;
    at_ = begin + size;
    return {begin, size};
  }
  std::vector<int> numbers() {
    std::vector<int> values(count());
    for (int& value : values) value = static_cast<int>(static_cast<std::uint32_t>(number()));
    return values;
  }
  std::vector<Segment> segments() {
    std::vector<Segment> segments(count());
    std::uint64_t at = 0;
    for (Segment& segment : segments) {
      segment.begin = at + number();
      segment.end = segment.begin + number();
      if (segment.end < segment.begin) good_ = false;
      at = segment.end;
    }
    return segments;
  }
  bool good() const { return good_; }
  bool at_end() const { return good_ && at_ == bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool good_ = true;
};

}  // namespace

std::uint64_t hash_keys(std::span<const Segment> segments) {
  return XXH64(segments.data(), segments.size_bytes(), segments.size());
}

std::vector<std::byte> encode_head(const Message& message) {
  MessageWriter writer(64 + 10 * message.segments.size());
  writer.number(static_cast<std::uint64_t>(message.kind));
  writer.number(static_cast<std::uint64_t>(message.op));
  writer.number(static_cast<std::uint64_t>(message.encoding));
  writer.number((message.has_keys ? 1 : 0) | (message.is_server ? 2 : 0));
  for (const std::uint64_t value :
       {message.epoch, message.task, static_cast<std::uint64_t>(message.node), message.part, message.sequence,
        message.lane, static_cast<std::uint64_t>(static_cast<std::uint32_t>(message.plane)),
        std::bit_cast<std::uint64_t>(message.rate), message.key_hash, message.raw_bytes}) {
    writer.number(value);
  }
  writer.segments(message.segments);
  writer.numbers(message.chain);
  writer.number(message.clocks.size());
  for (const RangeClock& range : message.clocks) {
    writer.number(range.keys.begin);
    writer.number(range.keys.size());
    writer.number(range.tasks.size());
    for (const auto& [worker, task] : range.tasks) {
      writer.number(static_cast<std::uint32_t>(worker));
      writer.number(task);
    }
  }
  writer.number(message.view.epoch);
  if (message.view.epoch > 0) {
    writer.numbers(message.view.servers);
    writer.numbers(message.view.next);
    writer.numbers(message.view.workers);
    writer.number(static_cast<std::uint64_t>(message.view.copies));
    writer.number(static_cast<std::uint64_t>(message.view.points));
  }
  writer.number(message.values.size());
  writer.align();
  return writer.take();
}

std::vector<std::byte> encode(const Message& message) {
  std::vector<std::byte> bytes = encode_head(message);
  bytes.insert(bytes.end(), message.values.begin(), message.values.end());
  return bytes;
}

std::optional<Message> decode_message(std::vector<std::byte> mail) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(std::move(mail));  // with the message's values
  MessageReader reader(*bytes);
  Message message;
  const std::uint64_t kind = reader.number(), op = reader.number(), encoding = reader.number();
  if (kind > static_cast<std::uint64_t>(Message::Kind::kStop) || op > 2 || encoding > 2) return std::nullopt;
  message.kind = static_cast<Message::Kind>(kind);
  message.op = static_cast<Message::Op>(op);
  message.encoding = static_cast<Encoding>(encoding);
  const std::uint64_t flags = reader.number();
  message.has_keys = (flags & 1) != 0;
  message.is_server = (flags & 2) != 0;
  message.epoch = reader.number();
  message.task = reader.number();
  message.node = static_cast<std::int64_t>(reader.number());
  message.part = reader.number();
  message.sequence = reader.number();
  message.lane = reader.number();
  message.plane = static_cast<int>(static_cast<std::uint32_t>(reader.number()));
  message.rate = std::bit_cast<double>(reader.number());
  message.key_hash = reader.number();
  message.raw_bytes = reader.number();
  message.segments = reader.segments();
  message.chain = reader.numbers();
  message.clocks.resize(reader.count());
  for (RangeClock& range : message.clocks) {
    range.keys.begin = reader.number();
    range.keys.end = range.keys.begin + reader.number();
    const std::size_t tasks = reader.count();
    for (std::size_t i = 0; i < tasks; ++i) {
      const auto worker = static_cast<int>(static_cast<std::uint32_t>(reader.number()));
      range.tasks[worker] = reader.number();
    }
  }
  message.view.epoch = reader.number();
  if (message.view.epoch > 0) {
    message.view.servers = reader.numbers();
    message.view.next = reader.numbers();
    message.view.workers = reader.numbers();
    message.view.copies = static_cast<int>(reader.number());
    message.view.points = static_cast<int>(reader.number());
  }
  const auto [begin, size] = reader.stretch();
  if (!reader.at_end()) return std::nullopt;
  message.values = SharedBytes(bytes, begin, size);
  return message;
}

}  // namespace trireme::ps
