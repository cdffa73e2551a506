// Opens our own shards and checks their blocks.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/data/token_parts.h"

namespace trireme::data {
namespace {

constexpr const char* kFetchAgain = "fetch or write the file again";

ShardHeader read_header(const MappedFile& file) {
  if (file.size() < sizeof(ShardHeader))
    fail_at(file, file.size(), fmt::format("is cut short: it ends within the header of {} bytes", sizeof(ShardHeader)),
            kFetchAgain);
  const auto header = load<ShardHeader>(file.bytes().data());
  if (header.version != kShardVersion)
    fail_at(file, offsetof(ShardHeader, version),
            fmt::format("is a shard of version {}, and only version {} is known", header.version, kShardVersion),
            "write it again, or take the release that wrote it; if it is of this release, its header is damaged");
  if (header.checksum != header_checksum(header))
    fail_at(file, 0, fmt::format("the header's {} bytes do not have their checksum", sizeof(ShardHeader)), kFetchAgain);
  return header;
}

/// A header with the right checksum can still be of a writer that is wrong.
void check_header(const MappedFile& file, const ShardHeader& header) {
  const auto fail = [&](std::size_t at, const std::string& what) { fail_at(file, at, what, kFetchAgain); };
  if (header.token_bytes != 2 && header.token_bytes != 4)
    fail(offsetof(ShardHeader, token_bytes), fmt::format("tokens of {} bytes are unknown", header.token_bytes));
  if ((header.flags & ~kShardKnownFlags) != 0)
    fail(offsetof(ShardHeader, flags), fmt::format("has parts that are unknown: flags {:#x}", header.flags));
  if (header.tokens > kShardMostTokens)
    fail(offsetof(ShardHeader, tokens), fmt::format("cannot have {} tokens", header.tokens));
  if (header.documents > kShardMostTokens)
    fail(offsetof(ShardHeader, documents), fmt::format("cannot have {} documents", header.documents));
  if (header.text_bytes > kShardMostTextBytes)
    fail(offsetof(ShardHeader, text_bytes), fmt::format("cannot have {} bytes of text", header.text_bytes));
  if (header.vocab_size < 1 || header.vocab_size > std::uint64_t{1} << 31)
    fail(offsetof(ShardHeader, vocab_size), fmt::format("cannot have a vocabulary of {}", header.vocab_size));
  if ((header.flags & kShardHasPairs) != 0 && header.documents % 2 != 0)
    fail(offsetof(ShardHeader, documents), fmt::format("has pairs, but {} documents", header.documents));
  const ShardLayout layout = shard_layout(header);
  if (header.file_bytes != layout.end)
    fail(offsetof(ShardHeader, file_bytes),
         fmt::format("should have {} bytes by its counts, not {}", layout.end, header.file_bytes));
  if (file.size() < layout.end)
    fail_at(file, file.size(), fmt::format("is cut short: it ends here, but should have {} bytes", layout.end),
            kFetchAgain);
  if (file.size() > layout.end)
    fail_at(file, layout.end, fmt::format("the shard ends here, but {} more bytes follow", file.size() - layout.end),
            kFetchAgain);
}

void check_documents(const TokenParts& parts) {
  const auto at = [&](std::int64_t document) {
    return parts.layout.documents + static_cast<std::uint64_t>(document) * 8;
  };
  if (parts.begins[0] != 0) fail_at(parts.file, at(0), "the first document does not begin at token 0", kFetchAgain);
  for (std::int64_t document = 1; document <= parts.documents; ++document) {
    if (parts.begins[document] < parts.begins[document - 1])
      fail_at(parts.file, at(document),
              fmt::format("document {} begins at token {}, before the one before it", document, parts.begins[document]),
              kFetchAgain);
  }
  if (parts.begins[parts.documents] != static_cast<std::uint64_t>(parts.tokens))
    fail_at(parts.file, at(parts.documents),
            fmt::format("the last document ends at token {} of {}", parts.begins[parts.documents], parts.tokens),
            kFetchAgain);
}

}  // namespace

bool is_shard(const MappedFile& file) {
  const std::string_view magic(kShardMagic.data(), kShardMagic.size());
  return file.text().substr(0, magic.size()) == magic;
}

void open_shard(TokenParts& parts, bool check_blocks) {
  const MappedFile& file = parts.file;
  const ShardHeader header = read_header(file);
  check_header(file, header);
  const std::byte* bytes = file.bytes().data();
  const ShardLayout layout = parts.layout = shard_layout(header);
  parts.format = TokenFormat::kShard;
  parts.type = header.token_bytes == 2 ? TokenType::kUint16 : TokenType::kUint32;
  parts.tokens_at = layout.tokens;
  parts.tokens = static_cast<std::int64_t>(header.tokens);
  parts.documents = static_cast<std::int64_t>(header.documents);
  parts.checksums = reinterpret_cast<const std::uint64_t*>(bytes + layout.checksums);
  if (shard_checksum(file.bytes().subspan(layout.checksums)) != header.checksums_checksum)
    fail_at(file, layout.checksums, "the table of checksums does not have its own", kFetchAgain);
  for (std::uint64_t block = (layout.documents - layout.tokens) / kShardBlockBytes; block < layout.blocks; ++block)
    parts.check_block(block);
  if (check_blocks) parts.checked = std::make_unique<std::atomic<bool>[]>(layout.blocks);
  parts.begins = reinterpret_cast<const std::uint64_t*>(bytes + layout.documents);
  check_documents(parts);
  if ((header.flags & kShardHasMask) != 0) parts.mask = reinterpret_cast<const std::uint8_t*>(bytes + layout.mask);
  const auto& special = header.special;
  parts.info = {.vocab_size = static_cast<std::int64_t>(header.vocab_size),
                .tokenizer_hash = header.tokenizer_hash,
                .tokenizer = std::string(file.text().substr(layout.text, header.text_bytes)),
                .special = {special[0], special[1], special[2], special[3], special[4], special[5]},
                .pairs = (header.flags & kShardHasPairs) != 0};
}

void TokenParts::check_block(std::uint64_t block) const {
  const ShardBlock range = shard_block(layout, block);
  const auto bytes = file.bytes().subspan(range.begin, range.end - range.begin);
  if (shard_checksum(bytes) == checksums[block]) return;
  const char* part = range.end <= layout.mask                                      ? "tokens"
                     : range.begin >= layout.documents                             ? "documents"
                     : range.begin >= layout.mask && range.end <= layout.documents ? "mask"
                                                                                   : "tokens or tables";
  fail_at(
      file, range.begin,
      fmt::format("{} are damaged between the bytes {} and {}: their checksum is wrong", part, range.begin, range.end),
      kFetchAgain);
}

void TokenParts::check_blocks(std::uint64_t begin, std::uint64_t end) const {
  if (!checked || begin >= end) return;
  const std::uint64_t last = (end - 1 - layout.tokens) / kShardBlockBytes;
  for (std::uint64_t block = (begin - layout.tokens) / kShardBlockBytes; block <= last; ++block) {
    // Two threads may both check a block: that costs less than keeping one of them waiting.
    if (checked[block].load(std::memory_order_relaxed)) continue;
    check_block(block);
    checked[block].store(true, std::memory_order_relaxed);
  }
}

}  // namespace trireme::data
