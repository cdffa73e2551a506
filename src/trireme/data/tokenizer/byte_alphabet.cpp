#include "trireme/data/tokenizer/byte_alphabet.h"

#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

constexpr std::uint32_t kFirstStandIn = 0x100, kStandIns = 68;

constexpr bool prints(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<std::uint32_t, 256> make_letters() {
  std::array<std::uint32_t, 256> letters{};
  std::uint32_t next = kFirstStandIn;
  for (unsigned byte = 0; byte < 256; ++byte) letters[byte] = prints(byte) ? byte : next++;
  return letters;
}
constexpr std::array<std::uint32_t, 256> kLetters = make_letters();

constexpr std::array<std::uint8_t, kStandIns> make_stood_for() {
  std::array<std::uint8_t, kStandIns> bytes{};
  for (unsigned byte = 0; byte < 256; ++byte)
    if (!prints(byte)) bytes[kLetters[byte] - kFirstStandIn] = static_cast<std::uint8_t>(byte);
  return bytes;
}
constexpr std::array<std::uint8_t, kStandIns> kStoodFor = make_stood_for();

}  // namespace

const std::array<std::uint32_t, 256>& byte_letters() { return kLetters; }

std::optional<std::uint8_t> byte_of_letter(std::uint32_t code) {
  if (code < 256 && prints(code)) return static_cast<std::uint8_t>(code);
  if (code >= kFirstStandIn && code < kFirstStandIn + kStandIns) return kStoodFor[code - kFirstStandIn];
  return std::nullopt;
}

std::string bytes_to_letters(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_utf8(out, kLetters[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> letters_to_bytes(std::string_view letters) {
  std::string out;
  for (std::size_t at = 0; at < letters.size();) {
    const CodePoint letter = code_point(letters, at);
    const auto byte = byte_of_letter(letter.code);
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
    at += letter.bytes;
  }
  return out;
}

}  // namespace trireme::data
