// data/corpus/corpus.h -- the documents in files of text: .txt and .jsonl, as one list that can be cut into chunks.
//
//   const Corpus corpus(find_corpus_files({"books", "web.jsonl"}), {.field = "text"});
//   for (const Chunk& chunk : corpus.chunks(256 << 20)) corpus.read(chunk, [](std::string_view document) { ... });
//
// A chunk is a list of stretches of files that begin and end between documents, so chunks can be read by several
// threads; which documents a chunk has depends on the files and the options alone.
// Depends on: base, formats.
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

namespace trireme::data {

/// Where a .txt file holds more than one document.
enum class DocumentSplit : std::uint8_t {
  kFile,        ///< nowhere: a file is a document
  kLines,       ///< each line is one
  kBlankLines,  ///< one or more empty lines are between them
  kSeparator,   ///< a line that is the separator is between them
};
std::span<const Named<DocumentSplit>> enum_names(std::type_identity<DocumentSplit>);

struct CorpusOptions {
  std::string field = "text";  ///< of the object in each line of a .jsonl
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

/// Files as they are, folders with every .txt and .jsonl below them, in the order of their names. ConfigError for a
/// name that is neither, and when nothing is found.
std::vector<std::filesystem::path> find_corpus_files(std::span<const std::string> names);

class Corpus {
 public:
  Corpus(std::vector<std::filesystem::path> files, CorpusOptions options);

  const std::vector<std::filesystem::path>& files() const { return files_; }
  const CorpusOptions& options() const { return options_; }
  std::uint64_t bytes() const;
  std::uint64_t file_bytes(std::size_t file) const { return maps_[file].size(); }

  /// Chunks of about that many bytes; one with a document that is longer is longer.
  std::vector<Chunk> chunks(std::uint64_t bytes) const;

  /// Calls `take` with each document that is not empty, in order. FormatError naming file, line and byte for what is no
  /// text or no JSON. Several threads may read at once.
  void read(const Chunk& chunk, const std::function<void(std::string_view document)>& take) const;

 private:
  bool is_jsonl(std::size_t file) const { return files_[file].extension() == ".jsonl"; }
  std::uint64_t boundary_after(std::size_t file, std::uint64_t from) const;
  void read_jsonl(const TextRange& stretch, const std::function<void(std::string_view)>& take) const;
  void read_txt(const TextRange& stretch, const std::function<void(std::string_view)>& take) const;
  void check_text(const TextRange& stretch) const;

  std::vector<std::filesystem::path> files_;
  CorpusOptions options_;
  std::vector<MappedFile> maps_;
};

}  // namespace trireme::data
