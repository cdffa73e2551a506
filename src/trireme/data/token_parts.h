// data/token_parts.h -- what a token file is made of once it is open, whatever its format: for token_file.cpp and the
// token_FORMAT.cpp that open one each.
//
// Depends on: base, formats.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "trireme/base/mapped_file.h"
#include "trireme/data/shard_format.h"
#include "trireme/data/token_file.h"

namespace trireme::data {

struct TokenParts {
  explicit TokenParts(MappedFile tokens_file) : file(std::move(tokens_file)) {}

  MappedFile file;                  // of the tokens
  std::optional<MappedFile> index;  // Megatron's other file
  TokenFormat format = TokenFormat::kBytes;
  TokenType type = TokenType::kUint8;
  std::uint64_t tokens_at = 0;
  std::int64_t tokens = 0, documents = 0;
  ShardInfo info;

  // Where documents begin, in one of three forms. Tables stay in the mapped file: they can be larger than memory.
  const std::uint64_t* begins = nullptr;         // shards: [documents + 1]
  std::vector<std::uint64_t> owned_begins;       // found in the tokens; the table above then points into it
  const std::byte* sequence_pointers = nullptr;  // Megatron: int64 [sequences], bytes, not aligned
  const std::byte* document_indices = nullptr;   // Megatron: int64 [documents + 1], sequences, not aligned
  std::int64_t sequences = 0;

  // Shards only.
  ShardLayout layout;
  const std::uint8_t* mask = nullptr;
  const std::uint64_t* checksums = nullptr;
  std::unique_ptr<std::atomic<bool>[]> checked;  // [blocks]; null: blocks are not checked as they are read

  std::int64_t document_begin(std::int64_t document) const;
  /// FormatError when block `block` of a shard is not what was written.
  void check_block(std::uint64_t block) const;
  /// The blocks of bytes [begin, end), unless they have been.
  void check_blocks(std::uint64_t begin, std::uint64_t end) const;
};

/// Throws a FormatError "PATH: WHAT (byte AT)".
[[noreturn]] void fail_at(const MappedFile& file, std::uint64_t at, std::string_view what, std::string hint = {});

/// A number that lies anywhere.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Each fills in the parts of its format and checks header and tables.
bool is_shard(const MappedFile& file);
void open_shard(TokenParts& parts, bool check_blocks);
bool is_megatron_index(const MappedFile& file);
void open_megatron(TokenParts& parts);
bool is_llmc(const MappedFile& file);
void open_llmc(TokenParts& parts, std::optional<std::int32_t> end_of_text);

}  // namespace trireme::data
