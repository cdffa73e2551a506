#include "trireme/data/corpus/snappy.h"

namespace trireme::data {
namespace {

/// Little-endian, of so many bytes at the beginning, which it takes away.
std::optional<std::uint64_t> take_little(std::string_view& bytes, std::size_t count) {
  if (bytes.size() < count) return std::nullopt;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  bytes.remove_prefix(count);
  return value;
}

std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 35; shift += 7) {
    const auto next = take_little(bytes, 1);
    if (!next) return std::nullopt;
    value |= (*next & 0x7F) << shift;
    if (*next < 0x80) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> unpack_snappy(std::string_view bytes, std::uint64_t size) {
  if (take_varint(bytes) != size) return std::nullopt;
  std::string out;
  out.reserve(size);
  while (!bytes.empty()) {
    const std::uint64_t tag = *take_little(bytes, 1);
    std::uint64_t length = 0;
    std::optional<std::uint64_t> back;
    switch (tag & 3) {
      case 0: {  // bytes as they are
        length = (tag >> 2) + 1;
        if (length > 60) {
          const auto more = take_little(bytes, length - 60);
          if (!more) return std::nullopt;
          length = *more + 1;
        }
        if (length > bytes.size() || length > size - out.size()) return std::nullopt;
        out += bytes.substr(0, length);
        bytes.remove_prefix(length);
        continue;
      }
      case 1:
        length = (tag >> 2 & 7) + 4;
        back = take_little(bytes, 1);
        if (back) *back |= tag >> 5 << 8;
        break;
      case 2:
        length = (tag >> 2) + 1;
        back = take_little(bytes, 2);
        break;
      default:
        length = (tag >> 2) + 1;
        back = take_little(bytes, 4);
        break;
    }
    if (!back || *back == 0 || *back > out.size() || length > size - out.size()) return std::nullopt;
    for (std::size_t from = out.size() - *back; length > 0; --length) out += out[from++];  // may overlap itself
  }
  return out.size() == size ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace trireme::data
