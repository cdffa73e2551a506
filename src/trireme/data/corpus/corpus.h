// data/corpus/corpus.h -- the documents in files of text, as one list that can be cut into chunks.
//
//   const Corpus corpus(find_corpus_files({"books", "web.jsonl.zst"}), {.field = "text"});
//   for (const Chunk& chunk : corpus.chunks(256 << 20)) corpus.read(chunk, [](std::string_view document) { ... });
//
// Files are .txt and .md, .html (its text) and .jsonl, each of them also as .gz or .zst, and .parquet. A chunk is a
// list of stretches of files that begin and end between documents, so chunks can be read by several threads; which
// documents a chunk has depends on the files and the options alone. A compressed file is one stretch, as it can be read
// from its beginning only: it goes through memory piece by piece.
// Depends on: base, formats, decompress, html_text, parquet, chat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/data/corpus/chat.h"
#include "trireme/data/corpus/decompress.h"

namespace trireme::data {

/// What a file is, by its name without .gz or .zst.
enum class CorpusKind : std::uint8_t { kText, kHtml, kJsonLines, kParquet };

/// Where a .txt or .md file holds more than one document.
enum class DocumentSplit : std::uint8_t {
  kFile,        ///< nowhere: a file is a document
  kLines,       ///< each line is one
  kBlankLines,  ///< one or more empty lines are between them
  kSeparator,   ///< a line that is the separator is between them
};
std::span<const Named<DocumentSplit>> enum_names(std::type_identity<DocumentSplit>);

struct CorpusOptions {
  std::string field = "text";  ///< of the object in each line of a .jsonl, or the column of a .parquet
  DocumentSplit split = DocumentSplit::kFile;
  std::string separator = {};  ///< for kSeparator, without the end of the line
  bool any_bytes = false;      ///< .txt need not be UTF-8
};

struct TextRange {
  std::size_t file = 0;
  std::uint64_t begin = 0, end = 0;  ///< bytes
  bool operator==(const TextRange&) const = default;
};
using Chunk = std::vector<TextRange>;

/// Files as they are, folders with every file of these kinds below them, in the order of their names. ConfigError for a
/// name that is neither, and when nothing is found.
std::vector<std::filesystem::path> find_corpus_files(std::span<const std::string> names);

class Corpus {
 public:
  using Take = std::function<void(std::string_view document)>;
  using TakeChat = std::function<void(const Conversation& conversation)>;

  Corpus(std::vector<std::filesystem::path> files, CorpusOptions options);

  const std::vector<std::filesystem::path>& files() const { return files_; }
  const CorpusOptions& options() const { return options_; }
  /// As they lie on the disk, compressed ones too.
  std::uint64_t bytes() const;
  std::uint64_t file_bytes(std::size_t file) const { return maps_[file].size(); }

  /// Chunks of about that many bytes; one with a document or a compressed file that is longer is longer.
  std::vector<Chunk> chunks(std::uint64_t bytes) const;

  /// Calls `take` with each document that is not empty, in order. FormatError naming file, line and byte for what is no
  /// text or no JSON. Several threads may read at once.
  void read(const Chunk& chunk, const Take& take) const;
  /// The same for conversations, which the field of each line holds. ConfigError for a file that is no .jsonl.
  void read_chats(const Chunk& chunk, const TakeChat& take) const;

 private:
  struct Part;
  using TakePart = std::function<void(const Part& part)>;

  /// Whether a line is a document by itself.
  bool is_lines(std::size_t file) const;
  bool is_whole(std::size_t file) const;
  bool ends_document(std::string_view line) const;
  std::uint64_t first_boundary(std::size_t file, std::string_view text, std::uint64_t from) const;
  std::uint64_t last_boundary(std::size_t file, std::string_view text) const;
  void read_parts(const Chunk& chunk, const TakePart& take) const;
  void read_compressed(std::size_t file, const TakePart& take) const;
  template <typename ReadField>
  void read_json_lines(const Part& part, ReadField&& read_field) const;
  void read_documents(const Part& part, const Take& take) const;
  void check_text(const Part& part) const;

  std::vector<std::filesystem::path> files_;
  std::vector<CorpusKind> kinds_;
  CorpusOptions options_;
  std::vector<MappedFile> maps_;
};

}  // namespace trireme::data
