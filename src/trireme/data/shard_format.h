// data/shard_format.h -- the bytes of a token shard, for its writer and its reader.
//
//   header      256 bytes: magic, version, counts, what made the tokens, and a checksum of itself
//   tokens      16 bits each where the vocabulary allows, otherwise 32
//   mask        one bit a token, when there is one: 1 where the token is learnt
//   documents   64 bits each: where it begins, counted in tokens; one more for the end
//   text        the tokenizer's name
//   checksums   64 bits (XXH3) for each 64 KiB from the tokens' first byte to the text's last
//
// Everything is little-endian; every part begins at a multiple of 8. Where parts lie follows from the counts, so there
// are no offsets that could disagree with them. The header holds the checksum of the checksums: every byte is covered,
// and one that changed is found to within a block.
// Depends on: base.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace trireme::data {

inline constexpr std::array<char, 8> kShardMagic = {'T', 'R', 'I', 'S', 'H', 'A', 'R', 'D'};
inline constexpr std::uint32_t kShardVersion = 1;
inline constexpr std::uint64_t kShardBlockBytes = 64 << 10;
inline constexpr std::uint64_t kShardMostTokens = std::uint64_t{1} << 48;  // positions stay far from overflow
inline constexpr std::uint64_t kShardMostTextBytes = 64 << 10;

enum ShardFlags : std::uint32_t { kShardHasMask = 1, kShardHasPairs = 2, kShardKnownFlags = 3 };

struct ShardHeader {
  std::array<char, 8> magic = kShardMagic;
  std::uint32_t version = kShardVersion;
  std::uint32_t token_bytes = 2;
  std::uint32_t flags = 0;
  std::uint32_t text_bytes = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t tokens = 0, documents = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t tokenizer_hash = 0;
  std::array<std::int32_t, 6> special = {-1, -1, -1, -1, -1, -1};  ///< bos, eos, pad, mask, cls, sep; -1: there is none
  std::uint64_t checksums_checksum = 0;
  std::array<std::uint8_t, 152> reserved = {};
  std::uint64_t checksum = 0;  ///< of the bytes before it
};
static_assert(sizeof(ShardHeader) == 256 && std::is_trivially_copyable_v<ShardHeader>);
static_assert(std::has_unique_object_representations_v<ShardHeader>, "padding would be written unset");

/// Bytes at which the parts begin, and the end of the file.
struct ShardLayout {
  std::uint64_t tokens = sizeof(ShardHeader), mask = 0, documents = 0, text = 0, checksums = 0, end = 0;
  std::uint64_t blocks = 0;
};
/// Counts must be below their limits.
ShardLayout shard_layout(const ShardHeader& header);
/// The bytes of block `block`: [first, second).
struct ShardBlock {
  std::uint64_t begin = 0, end = 0;
};
ShardBlock shard_block(const ShardLayout& layout, std::uint64_t block);

std::uint64_t shard_checksum(std::span<const std::byte> bytes);
std::uint64_t header_checksum(const ShardHeader& header);

}  // namespace trireme::data
