#include "trireme/observe/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/wall_clock.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78U : 0U);
    table[byte] = remainder;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

void put_fixed(std::string& out, std::uint64_t bits, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(bits >> (8 * i));
}

/// The few wire types of protobuf that events use; a message inside another is its text.
class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& real(int field, double value) {
    key(field, 1);
    put_fixed(text_, std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& real32(int field, float value) {
    key(field, 5);
    put_fixed(text_, std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_ += value;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void key(int field, int wire_type) { varint(static_cast<std::uint64_t>(field << 3 | wire_type)); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

// The numbers of the fields in event.proto and summary.proto.
enum EventField : int { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum ValueField : int { kTag = 1, kSimpleValue = 2, kMetadata = 9 };
constexpr int kSessionStart = 1, kDataClassScalar = 1;

Message event_now() { return Message().real(kWallTime, wall_seconds()); }

std::string framed(std::string_view record) {
  std::string out;
  out.reserve(record.size() + 16);
  put_fixed(out, record.size(), 8);
  put_fixed(out, masked_crc32c(out), 4);
  out += record;
  put_fixed(out, masked_crc32c(record), 4);
  return out;
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

/// TensorBoard reads the files of a folder in the order of their names, in which the second stands first. Two files of
/// one second, or a clock that went back, would turn the order round: so always later than what is there.
std::int64_t next_second(const fs::path& folder) {
  auto second = static_cast<std::int64_t>(wall_seconds());
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t there = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), there);
    second = std::max(second, there + 1);
  }
  return second;
}

AppendFile new_file_in(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError(fmt::format("{}: cannot be created: {}", folder.string(), error.message()));
  const std::string name = fmt::format("{}{:010}.{}.{}.0", kPrefix, next_second(folder), host_name(), ::getpid());
  return AppendFile(folder / name, AppendFile::Start::kNew);
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

TensorBoardFile::TensorBoardFile(const fs::path& folder, std::optional<std::int64_t> resume_after_step)
    : file_(new_file_in(folder)) {
  file_.append(framed(event_now().bytes(kFileVersion, "brain.Event:2").text()));
  // Each session says from which step on it writes, the first one too: TensorBoard takes a second one for a restart.
  const std::int64_t first_step = resume_after_step ? *resume_after_step + 1 : 0;
  const Message start = Message().integer(1, kSessionStart);
  file_.append(framed(event_now().integer(kStep, first_step).bytes(kSessionLog, start.text()).text()));
}

void TensorBoardFile::scalars(std::int64_t step, std::span<const Scalar> values) {
  Message summary;
  for (const Scalar& scalar : values) {
    Message value;
    value.bytes(kTag, scalar.tag).real32(kSimpleValue, static_cast<float>(scalar.value));
    if (described_.emplace(scalar.tag).second) {
      const Message plugin = Message().bytes(1, "scalars");
      value.bytes(kMetadata, Message().bytes(1, plugin.text()).integer(4, kDataClassScalar).text());
    }
    summary.bytes(1, value.text());
  }
  file_.append_or_keep(framed(event_now().integer(kStep, step).bytes(kSummary, summary.text()).text()));
}

}  // namespace trireme::observe
