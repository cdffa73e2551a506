#include "trireme/data/tokenizer/charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "trireme/base/error.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

constexpr std::size_t kShortCluster = 6;  // bytes; longer ones are looked up character by character

int base64_value(char sign) {
  if (sign >= 'A' && sign <= 'Z') return sign - 'A';
  if (sign >= 'a' && sign <= 'z') return sign - 'a' + 26;
  if (sign >= '0' && sign <= '9') return sign - '0' + 52;
  return sign == '+' ? 62 : sign == '/' ? 63 : -1;
}

// A unit of a double array: offset to the children, whether a value is among them, and the byte it stands for.
bool has_value(std::uint32_t unit) { return (unit >> 8 & 1) == 1; }
std::uint32_t label(std::uint32_t unit) { return unit & (1U << 31 | 0xFF); }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const int padding = !last ? 0 : text[at + 3] != '=' ? 0 : text[at + 2] != '=' ? 1 : 2;
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const int value = i + static_cast<std::size_t>(padding) >= 4 ? 0 : base64_value(text[at + i]);
      if (value < 0) return std::nullopt;
      bits = bits << 6 | static_cast<std::uint32_t>(value);
    }
    for (int i = 0; i < 3 - padding; ++i) out += static_cast<char>(bits >> (16 - 8 * i) & 0xFF);
  }
  return out;
}

Charsmap::Charsmap(std::string_view base64) {
  const auto bytes = from_base64(base64);
  if (!bytes) throw ConfigError("precompiled_charsmap: is no base64");
  std::uint32_t trie_bytes = 0;
  if (bytes->size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, bytes->data(), sizeof(trie_bytes));
  if (trie_bytes < 4 || trie_bytes % 4 != 0 || trie_bytes > bytes->size() - sizeof(trie_bytes))
    throw ConfigError(fmt::format("precompiled_charsmap: a trie of {} bytes in {} bytes", trie_bytes, bytes->size()));
  trie_.resize(trie_bytes / 4);
  std::memcpy(trie_.data(), bytes->data() + sizeof(trie_bytes), trie_bytes);
  texts_ = bytes->substr(sizeof(trie_bytes) + trie_bytes);
  if (first_invalid_utf8(texts_) != texts_.npos) throw ConfigError("precompiled_charsmap: its texts are not UTF-8");
}

/// What the shortest text that `key` begins with becomes.
std::optional<std::string_view> Charsmap::find(std::string_view key) const {
  std::size_t node = offset(trie_[0]);
  for (const char sign : key) {
    const auto byte = static_cast<unsigned char>(sign);
    if (byte == 0) return std::nullopt;
    node ^= byte;
    if (node >= trie_.size() || label(trie_[node]) != byte) return std::nullopt;
    const std::uint32_t unit = trie_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    const std::size_t text = node < trie_.size() ? trie_[node] & ~(1U << 31) : texts_.size();
    // A damaged map may point into a character: then nothing is there.
    if (text >= texts_.size() || (static_cast<unsigned char>(texts_[text]) & 0xC0) == 0x80) return std::nullopt;
    return std::string_view(texts_).substr(text, texts_.find('\0', text) - text);
  }
  return std::nullopt;
}

void Charsmap::append(std::string_view cluster, std::string& out) const {
  if (cluster.size() < kShortCluster) {
    if (const auto text = find(cluster)) {
      out += *text;
      return;
    }
  }
  for (std::size_t at = 0; at < cluster.size();) {
    const std::string_view character = cluster.substr(at, code_point(cluster, at).bytes);
    out += find(character).value_or(character);
    at += character.size();
  }
}

std::string Charsmap::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0;  // of the cluster
  utf8proc_int32_t before = 0, state = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    if (at > 0 && utf8proc_grapheme_break_stateful(before, code, &state)) {
      append(text.substr(begin, at - begin), out);
      begin = at;
    }
    before = code;
    at += c.bytes;
  }
  append(text.substr(begin), out);
  return out;
}

}  // namespace trireme::data
