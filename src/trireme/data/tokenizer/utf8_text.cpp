#include "trireme/data/tokenizer/utf8_text.h"

#include <algorithm>
#include <cstring>

#include "trireme/formats/utf8.h"

namespace trireme::data {
namespace {

/// Bytes at the start of `text`, which is not whole there, that some well-formed character begins with: 0 to 3.
std::size_t begun(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned low, unsigned high) { return byte(i) >= low && byte(i) <= high; };
  const unsigned lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4) return 0;
  if (lead < 0xE0) return 1;
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (!within(1, low, high)) return 1;
  if (lead < 0xF0 || !within(2, 0x80, 0xBF)) return 2;
  return 3;
}

}  // namespace

void append_utf8(std::string& out, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
    }
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080'8080'8080'8080U) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t length = formats::utf8_length(text.substr(at, 4));
    if (length == 0) return at;
    at += length;
  }
  return text.npos;
}

std::string with_replacement_characters(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t good = std::min(first_invalid_utf8(bytes), bytes.size());
    out.append(bytes, 0, good);
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    out += "\xEF\xBF\xBD";
    bytes.remove_prefix(std::max<std::size_t>(begun(bytes), 1));
  }
  return out;
}

std::size_t unfinished_utf8(std::string_view bytes) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, bytes.size()); ++back) {
    const std::string_view tail = bytes.substr(bytes.size() - back);
    if ((static_cast<unsigned char>(tail[0]) & 0xC0) == 0x80) continue;
    const bool more_to_come = formats::utf8_length(tail) == 0 && begun(tail) == back;
    return more_to_come ? back : 0;
  }
  return 0;
}

}  // namespace trireme::data
