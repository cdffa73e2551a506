// Opens llm.c's files: 256 int32 (magic, version, tokens, zeros), then tokens of 16 bits (GPT-2) or 32 bits (Llama 3).
// They do not say where documents are; their writers put the end-of-text token before each.
#include <fmt/format.h>

#include "trireme/data/token_parts.h"

namespace trireme::data {
namespace {

constexpr std::int32_t kMagic16 = 20240520, kMagic32 = 20240801;
constexpr std::int32_t kVersion16 = 1, kVersion32 = 7;
constexpr std::uint64_t kHeaderBytes = 1024;

std::int32_t word(const MappedFile& file, std::uint64_t number) {
  return load<std::int32_t>(file.bytes().data() + number * 4);
}

template <typename T>
std::vector<std::uint64_t> document_begins(const TokenParts& parts, T end_of_text) {
  const std::byte* tokens = parts.file.bytes().data() + parts.tokens_at;
  const auto count = static_cast<std::uint64_t>(parts.tokens);
  std::vector<std::uint64_t> begins = {0};
  if (count == 0) return {0};
  const bool leads = load<T>(tokens) == end_of_text;
  for (std::uint64_t i = leads ? 1 : 0; i < count; ++i) {
    if (load<T>(tokens + i * sizeof(T)) == end_of_text) begins.push_back(leads ? i : i + 1);
  }
  if (begins.back() != count) begins.push_back(count);
  return begins;
}

}  // namespace

bool is_llmc(const MappedFile& file) {
  return file.size() >= 4 && (word(file, 0) == kMagic16 || word(file, 0) == kMagic32);
}

void open_llmc(TokenParts& parts, std::optional<std::int32_t> end_of_text) {
  const MappedFile& file = parts.file;
  if (file.size() < kHeaderBytes)
    fail_at(file, file.size(), fmt::format("is cut short: it ends within the header of {} bytes", kHeaderBytes),
            "fetch or write it again");
  const bool narrow = word(file, 0) == kMagic16;
  const std::int32_t version = narrow ? kVersion16 : kVersion32;
  if (word(file, 1) != version)
    fail_at(file, 4, fmt::format("version {} is unknown; it should be {}", word(file, 1), version));
  parts.format = TokenFormat::kLlmC;
  parts.type = narrow ? TokenType::kUint16 : TokenType::kUint32;
  parts.tokens_at = kHeaderBytes;
  parts.tokens = word(file, 2);
  if (parts.tokens < 0) fail_at(file, 8, fmt::format("cannot have {} tokens", parts.tokens));
  const std::uint64_t end = kHeaderBytes + static_cast<std::uint64_t>(parts.tokens) * bytes_of(parts.type);
  if (file.size() < end)
    fail_at(file, file.size(),
            fmt::format("is cut short: it ends here, but {} tokens need {} bytes", parts.tokens, end),
            "fetch or write it again");
  if (file.size() > end)
    fail_at(file, end, fmt::format("{} tokens end here, but {} more bytes follow", parts.tokens, file.size() - end),
            "fetch or write it again");
  if (end_of_text && narrow && *end_of_text >= 0 && *end_of_text <= 0xFFFF) {
    parts.owned_begins = document_begins<std::uint16_t>(parts, static_cast<std::uint16_t>(*end_of_text));
  } else if (end_of_text && !narrow) {
    parts.owned_begins = document_begins<std::uint32_t>(parts, static_cast<std::uint32_t>(*end_of_text));
  } else {
    parts.owned_begins = {0, static_cast<std::uint64_t>(parts.tokens)};
  }
  parts.documents = static_cast<std::int64_t>(parts.owned_begins.size()) - 1;
  parts.begins = parts.owned_begins.data();
}

}  // namespace trireme::data
