// data/token_file.h -- one reader over files of tokens: our shards, Megatron's .bin/.idx, llm.c's .bin, plain bytes.
//
//   const TokenFile file("train-00.shard");
//   std::vector<std::int32_t> row(1025);
//   file.read(first, row);                       // memory-mapped: only these pages are looked at
//   file.document_of(first)                      // which document the token belongs to
//
// What the first bytes say decides the format; a file ending in .txt is bytes. Opening checks the header and the
// table of documents. The tokens of our shards are checked by block, each the first time it is read, or all by
// verify(): a byte that changed is named by its position. The other formats have no checksums; what can be checked, is.
// Reading can be done by several threads at once.
// Depends on: base, formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/shard_writer.h"

namespace trireme::data {

enum class TokenFormat : std::uint8_t { kShard, kMegatron, kLlmC, kBytes };
enum class TokenType : std::uint8_t { kUint8, kInt8, kUint16, kInt16, kInt32, kUint32, kInt64 };

struct TokenFileOptions {
  /// llm.c: a document begins with this token where the file's first token is this one, and ends with it otherwise.
  /// Not given: the file is one document. The other formats say where documents are.
  std::optional<std::int32_t> end_of_text = std::nullopt;
  bool check_blocks = true;  ///< shards: a block's checksum is checked when it is first read
};

struct TokenParts;  // token_parts.h

class TokenFile {
 public:
  /// Megatron's pair is named by the .bin, the .idx or what is before the dot. FormatError with the file and the byte
  /// when it is cut short or damaged, or is of no known format.
  explicit TokenFile(const std::filesystem::path& path, const TokenFileOptions& options = {});
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;

  const std::filesystem::path& path() const;
  TokenFormat format() const;
  TokenType type() const;
  std::uint64_t bytes() const;  ///< of all files together

  std::int64_t tokens() const;
  std::int64_t documents() const;
  /// Its first token; of document `documents()` the end of the last.
  std::int64_t document_begin(std::int64_t document) const;
  std::int64_t document_of(std::int64_t token) const;

  /// out[i] is token first + i. FormatError with the byte when a block is damaged or a number is no token.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  /// Whether tokens are learnt (ShardWriter::add_document); 1 for all without a mask.
  bool has_mask() const;
  void read_mask(std::int64_t first, std::span<std::uint8_t> out) const;
  /// Where in the file a token lies.
  std::uint64_t byte_of(std::int64_t token) const;

  /// What a shard says of itself; the other formats know next to nothing: vocabulary 0, bytes 256.
  const ShardInfo& info() const;
  /// Reads everything. FormatError with the byte when a checksum, or without checksums a number, is wrong; IoError when
  /// the file has changed its size since it was opened.
  void verify() const;

 private:
  std::unique_ptr<TokenParts> parts_;
};

std::string to_string(TokenFormat format);
std::string to_string(TokenType type);
std::uint64_t bytes_of(TokenType type);

/// For people: "bos 1, eos 2", and a tokenizer's name and hash.
std::string special_text(const SpecialTokens& special);
std::string tokenizer_text(const ShardInfo& info);

/// Of the tokens' frequencies, in nats: what a model can reach that looks at nothing else. Reads the whole file.
double unigram_entropy(const TokenFile& file);

/// What a person wants to know of a file, a line each: format, counts, tokenizer, state of the checksums, first tokens.
/// `verified`: all of it was read by verify() and found right.
std::vector<std::string> describe(const TokenFile& file, bool verified);
/// The same of a folder's token files together: counts, tokenizer, what they were made of, and a line for each, the
/// first `most`. `verify`: reads every one.
std::vector<std::string> describe_folder(const std::filesystem::path& folder, bool verify, std::size_t most);

}  // namespace trireme::data
