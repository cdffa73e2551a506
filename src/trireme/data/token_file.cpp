#include "trireme/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/data/token_parts.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

/// Copies tokens; false when one is no int32 from 0 on. The test is on the sum of all bits that may not be set, so that
/// the loop stays one of vector instructions.
template <typename T>
bool copy_tokens(const std::byte* from, std::span<std::int32_t> out) {
  using Bits = std::make_unsigned_t<T>;
  Bits seen = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const T token = load<T>(from + i * sizeof(T));
    seen |= static_cast<Bits>(token);
    out[i] = static_cast<std::int32_t>(token);
  }
  if constexpr (std::is_unsigned_v<T> && sizeof(T) < 4) return true;
  if constexpr (sizeof(T) < 4) return static_cast<T>(seen) >= 0;
  return static_cast<std::uint64_t>(seen) <= std::numeric_limits<std::int32_t>::max();
}

bool copy_tokens(TokenType type, const std::byte* from, std::span<std::int32_t> out) {
  switch (type) {
    case TokenType::kUint8:
      return copy_tokens<std::uint8_t>(from, out);
    case TokenType::kInt8:
      return copy_tokens<std::int8_t>(from, out);
    case TokenType::kUint16:
      return copy_tokens<std::uint16_t>(from, out);
    case TokenType::kInt16:
      return copy_tokens<std::int16_t>(from, out);
    case TokenType::kInt32:
      return copy_tokens<std::int32_t>(from, out);
    case TokenType::kUint32:
      return copy_tokens<std::uint32_t>(from, out);
    case TokenType::kInt64:
      return copy_tokens<std::int64_t>(from, out);
  }
  return false;
}

struct Pair {
  fs::path tokens, index;
};

/// Megatron's two files, when the path names one of them or what they have in common.
std::optional<Pair> megatron_pair(const fs::path& path) {
  const auto with = [&](const char* ending) { return fs::path(path).replace_extension(ending); };
  std::error_code ignored;
  if (path.extension() == ".idx") return Pair{with(".bin"), path};
  if (path.extension() == ".bin" && fs::exists(with(".idx"), ignored)) return Pair{path, with(".idx")};
  const fs::path tokens = path.string() + ".bin", index = path.string() + ".idx";
  if (!fs::exists(path, ignored) && fs::exists(tokens, ignored) && fs::exists(index, ignored))
    return Pair{tokens, index};
  return std::nullopt;
}

void open_bytes(TokenParts& parts) {
  parts.format = TokenFormat::kBytes;
  parts.type = TokenType::kUint8;
  parts.tokens = static_cast<std::int64_t>(parts.file.size());
  parts.documents = 1;
  parts.owned_begins = {0, parts.file.size()};
  parts.begins = parts.owned_begins.data();
  parts.info.vocab_size = 256;
  parts.info.tokenizer = "bytes";
}

}  // namespace

void fail_at(const MappedFile& file, std::uint64_t at, std::string_view what, std::string hint) {
  throw formats::FormatError(fmt::format("{}: {} (byte {})", file.path().string(), what, at), std::move(hint));
}

std::int64_t TokenParts::document_begin(std::int64_t document) const {
  if (begins != nullptr) return static_cast<std::int64_t>(begins[document]);
  const auto sequence = load<std::int64_t>(document_indices + document * 8);
  if (sequence == sequences) return tokens;
  return load<std::int64_t>(sequence_pointers + sequence * 8) / static_cast<std::int64_t>(bytes_of(type));
}

TokenFile::TokenFile(const fs::path& path, const TokenFileOptions& options) {
  const auto pair = megatron_pair(path);
  parts_ = std::make_unique<TokenParts>(MappedFile(pair ? pair->tokens : path));
  TokenParts& parts = *parts_;
  if (path.extension() == ".txt") {
    open_bytes(parts);
  } else if (is_shard(parts.file)) {
    open_shard(parts, options.check_blocks);
  } else if (is_llmc(parts.file)) {
    open_llmc(parts, options.end_of_text);
  } else if (pair) {
    parts.index.emplace(pair->index);
    open_megatron(parts);
  } else {
    fail_at(parts.file, 0, "is no token shard, llm.c file or half of a Megatron pair: the first bytes are of none",
            path.extension() == ".bin" ? fmt::format("put {} beside it if it is Megatron's",
                                                     fs::path(path).replace_extension(".idx").filename().string())
                                       : "text is to be tokenized first; for bytes as tokens name it .txt");
  }
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;

const fs::path& TokenFile::path() const { return parts_->file.path(); }
TokenFormat TokenFile::format() const { return parts_->format; }
TokenType TokenFile::type() const { return parts_->type; }
std::uint64_t TokenFile::bytes() const { return parts_->file.size() + (parts_->index ? parts_->index->size() : 0); }
std::int64_t TokenFile::tokens() const { return parts_->tokens; }
std::int64_t TokenFile::documents() const { return parts_->documents; }
bool TokenFile::has_mask() const { return parts_->mask != nullptr; }
const ShardInfo& TokenFile::info() const { return parts_->info; }

std::int64_t TokenFile::document_begin(std::int64_t document) const {
  TRIREME_CHECK(document >= 0 && document <= documents(), "document {} of {} in {}", document, documents(),
                path().string());
  return parts_->document_begin(document);
}

std::int64_t TokenFile::document_of(std::int64_t token) const {
  TRIREME_CHECK(token >= 0 && token < tokens(), "token {} of {} in {}", token, tokens(), path().string());
  std::int64_t low = 0, high = documents() - 1;  // the last document that begins at or before the token
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (parts_->document_begin(middle) <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::uint64_t TokenFile::byte_of(std::int64_t token) const {
  return parts_->tokens_at + static_cast<std::uint64_t>(token) * bytes_of(parts_->type);
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TRIREME_CHECK(first >= 0 && count <= tokens() - first, "{} tokens from {} on of {} in {}", count, first, tokens(),
                path().string());
  parts_->check_blocks(byte_of(first), byte_of(first + count));
  const std::byte* from = parts_->file.bytes().data() + byte_of(first);
  if (copy_tokens(parts_->type, from, out)) return;
  std::int32_t alone = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!copy_tokens(parts_->type, from + static_cast<std::uint64_t>(i) * bytes_of(parts_->type), {&alone, 1}))
      fail_at(parts_->file, byte_of(first + i),
              fmt::format("token {} is negative or beyond 31 bits, so no token at all", first + i));
  }
}

void TokenFile::read_mask(std::int64_t first, std::span<std::uint8_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TRIREME_CHECK(first >= 0 && count <= tokens() - first, "the mask of {} tokens from {} on of {} in {}", count, first,
                tokens(), path().string());
  if (parts_->mask == nullptr) {
    std::ranges::fill(out, std::uint8_t{1});
    return;
  }
  const auto begin = static_cast<std::uint64_t>(first);
  parts_->check_blocks(parts_->layout.mask + begin / 8, parts_->layout.mask + (begin + out.size() + 7) / 8);
  for (std::uint64_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::uint8_t>(parts_->mask[(begin + i) / 8] >> ((begin + i) % 8) & 1);
}

void TokenFile::verify() const {
  parts_->file.check_size();
  if (parts_->index) parts_->index->check_size();
  for (std::uint64_t block = 0; block < parts_->layout.blocks; ++block) {
    parts_->check_block(block);
    if (parts_->checked) parts_->checked[block].store(true, std::memory_order_relaxed);
  }
  // What checksums cannot say: that the numbers are tokens, below the vocabulary where there is one.
  std::vector<std::int32_t> chunk(1 << 16);
  for (std::int64_t first = 0; first < tokens();) {
    const auto count = std::min<std::int64_t>(tokens() - first, static_cast<std::int64_t>(chunk.size()));
    const std::span<std::int32_t> part(chunk.data(), static_cast<std::size_t>(count));
    read(first, part);
    std::int32_t most = 0;
    for (const std::int32_t token : part) most = std::max(most, token);
    if (info().vocab_size > 0 && most >= info().vocab_size) {
      const std::int64_t token = first + (std::ranges::find(part, most) - part.begin());
      fail_at(parts_->file, byte_of(token),
              fmt::format("token {} is {}, but the vocabulary has {}", token, most, info().vocab_size));
    }
    first += count;
  }
}

std::string to_string(TokenFormat format) {
  switch (format) {
    case TokenFormat::kShard:
      return "token shard";
    case TokenFormat::kMegatron:
      return "Megatron .bin and .idx";
    case TokenFormat::kLlmC:
      return "llm.c .bin";
    case TokenFormat::kBytes:
      return "bytes";
  }
  return "?";
}

std::string to_string(TokenType type) {
  static constexpr const char* kNames[] = {"uint8", "int8", "uint16", "int16", "int32", "uint32", "int64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::uint64_t bytes_of(TokenType type) {
  static constexpr std::uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 8};
  return kBytes[static_cast<std::size_t>(type)];
}

}  // namespace trireme::data
