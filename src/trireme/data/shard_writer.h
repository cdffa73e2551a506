// data/shard_writer.h -- writes a token shard, document by document; the file appears whole or not at all.
//
//   ShardWriter writer("train-00.shard", {.vocab_size = 50257, .tokenizer_hash = tokenizer.hash()});
//   for (const auto& ids : documents) writer.add_document(ids);
//   writer.finish();
//
// Tokens go to the disk as they come; in memory stay 8 bytes a document and, with masks, a bit a token.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/new_file.h"

namespace trireme::data {

/// Token numbers that mean something to loaders; -1: there is none.
struct SpecialTokens {
  std::int32_t bos = -1, eos = -1, pad = -1, mask = -1, cls = -1, sep = -1;
  bool operator==(const SpecialTokens&) const = default;
};

/// What a shard says of itself beside its tokens.
struct ShardInfo {
  std::int64_t vocab_size = 0;       ///< tokens are below it; at most 65536: two bytes each
  std::uint64_t tokenizer_hash = 0;  ///< 0: unknown. Shards with different ones are not blended
  std::string tokenizer = {};        ///< its name, for people
  SpecialTokens special = {};
  bool pairs = false;  ///< documents 2i and 2i + 1 are a source and its target
  bool operator==(const ShardInfo&) const = default;
};

class ShardWriter {
 public:
  ShardWriter(std::filesystem::path path, ShardInfo info);

  /// `learnt` has one entry a token: 0 where it is read but not learnt, as a prompt is; empty: all are learnt. A
  /// ConfigError with the token and its place when one is outside the vocabulary; nothing is added then.
  void add_document(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> learnt = {});
  /// Writes the tables and publishes the file. Without it nothing is left.
  void finish();

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return begins_.size(); }

 private:
  void check(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> learnt) const;
  void add_mask(std::size_t tokens, std::span<const std::uint8_t> learnt);
  void append(std::span<const std::byte> bytes);
  void pad();
  void end_block();

  ShardInfo info_;
  NewFile file_;
  std::uint32_t token_bytes_;
  std::uint64_t position_, tokens_ = 0;  // position_: bytes in the file and in block_
  std::vector<std::byte> block_;         // what the next checksum covers, not yet in the file
  std::vector<std::uint64_t> checksums_, begins_;
  bool has_mask_ = false;
  std::vector<std::uint8_t> mask_;  // bits; kept from the first document with a mask on
  std::vector<std::uint16_t> narrow_;
};

}  // namespace trireme::data
