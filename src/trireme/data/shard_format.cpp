#include "trireme/data/shard_format.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>

namespace trireme::data {

static_assert(std::endian::native == std::endian::little, "tokens and tables are read as they lie in the file");

namespace {
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }
}  // namespace

ShardLayout shard_layout(const ShardHeader& header) {
  ShardLayout layout;
  layout.mask = layout.tokens + aligned(header.tokens * header.token_bytes);
  layout.documents = layout.mask + ((header.flags & kShardHasMask) != 0 ? aligned((header.tokens + 7) / 8) : 0);
  layout.text = layout.documents + (header.documents + 1) * 8;
  layout.checksums = layout.text + aligned(header.text_bytes);
  layout.blocks = (layout.checksums - layout.tokens + kShardBlockBytes - 1) / kShardBlockBytes;
  layout.end = layout.checksums + layout.blocks * 8;
  return layout;
}

ShardBlock shard_block(const ShardLayout& layout, std::uint64_t block) {
  const std::uint64_t begin = layout.tokens + block * kShardBlockBytes;
  return {begin, std::min(begin + kShardBlockBytes, layout.checksums)};
}

std::uint64_t shard_checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::uint64_t header_checksum(const ShardHeader& header) {
  return XXH3_64bits(&header, offsetof(ShardHeader, checksum));
}

}  // namespace trireme::data
