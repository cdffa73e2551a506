#include "trireme/data/corpus/corpus.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "trireme/data/tokenizer/utf8_text.h"
#include "trireme/formats/json_reader.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using Take = std::function<void(std::string_view)>;

constexpr std::array<Named<DocumentSplit>, 4> kSplits{{{"file", DocumentSplit::kFile},
                                                       {"lines", DocumentSplit::kLines},
                                                       {"blank-lines", DocumentSplit::kBlankLines},
                                                       {"separator", DocumentSplit::kSeparator}}};

bool is_corpus_file(const fs::path& path) { return path.extension() == ".txt" || path.extension() == ".jsonl"; }

/// The line at `begin`, without its end; `next` is where the one after it begins.
std::string_view line_at(std::string_view text, std::uint64_t begin, std::uint64_t& next) {
  const std::size_t newline = text.find('\n', begin);
  next = newline == text.npos ? text.size() : newline + 1;
  std::string_view line = text.substr(begin, (newline == text.npos ? text.size() : newline) - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::uint64_t line_number(std::string_view text, std::uint64_t at) {
  return 1 + static_cast<std::uint64_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

}  // namespace

std::span<const Named<DocumentSplit>> enum_names(std::type_identity<DocumentSplit>) { return kSplits; }

std::vector<fs::path> find_corpus_files(std::span<const std::string> names) {
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    if (fs::is_directory(name)) {
      std::vector<fs::path> inside;
      for (const auto& entry : fs::recursive_directory_iterator(name))
        if (entry.is_regular_file() && is_corpus_file(entry.path())) inside.push_back(entry.path());
      if (inside.empty()) throw ConfigError(fmt::format("the folder {} holds no .txt and no .jsonl", name));
      std::ranges::sort(inside);
      files.insert(files.end(), inside.begin(), inside.end());
    } else if (!fs::exists(name)) {
      throw ConfigError(fmt::format("there is no file or folder {}", name));
    } else if (!is_corpus_file(name)) {
      throw ConfigError(fmt::format("{} is neither .txt nor .jsonl", name),
                        "rename it: .txt is text, .jsonl has a JSON object in each line");
    } else {
      files.emplace_back(name);
    }
  }
  if (files.empty()) throw ConfigError("no text is named", "name .txt or .jsonl files, or folders that hold some");
  return files;
}

Corpus::Corpus(std::vector<fs::path> files, CorpusOptions options)
    : files_(std::move(files)), options_(std::move(options)) {
  if (options_.split == DocumentSplit::kSeparator && options_.separator.empty())
    throw ConfigError("documents are to be split at a separator, but it is empty", "say which line it is");
  for (const fs::path& file : files_) maps_.emplace_back(file);
}

std::uint64_t Corpus::bytes() const {
  return std::accumulate(maps_.begin(), maps_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const MappedFile& map) { return sum + map.size(); });
}

/// The first place at or after `from` where a document begins; the end of the file when there is none.
std::uint64_t Corpus::boundary_after(std::size_t file, std::uint64_t from) const {
  const std::string_view text = maps_[file].text();
  const bool lines = is_jsonl(file) || options_.split == DocumentSplit::kLines;
  if (from >= text.size() || (!lines && options_.split == DocumentSplit::kFile)) return text.size();
  std::uint64_t at = from;
  if (at > 0 && text[at - 1] != '\n') line_at(text, at, at);  // the rest of a line
  if (lines) return at;
  while (at < text.size()) {
    const std::string_view line = line_at(text, at, at);
    if (options_.split == DocumentSplit::kBlankLines ? line.empty() : line == options_.separator) return at;
  }
  return text.size();
}

std::vector<Chunk> Corpus::chunks(std::uint64_t bytes) const {
  bytes = std::max<std::uint64_t>(bytes, 1);
  std::vector<Chunk> chunks;
  std::uint64_t room = 0;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    for (std::uint64_t begin = 0; begin < maps_[file].size();) {
      if (room == 0) {
        chunks.emplace_back();
        room = bytes;
      }
      const std::uint64_t end = boundary_after(file, begin + room);
      chunks.back().push_back({file, begin, end});
      room -= std::min(room, end - begin);
      begin = end;
    }
  }
  return chunks;
}

void Corpus::read(const Chunk& chunk, const Take& take) const {
  for (const TextRange& stretch : chunk) {
    maps_[stretch.file].check_size();
    is_jsonl(stretch.file) ? read_jsonl(stretch, take) : read_txt(stretch, take);
  }
}

void Corpus::read_jsonl(const TextRange& stretch, const Take& take) const {
  const std::string_view text = maps_[stretch.file].text();
  std::string document;
  for (std::uint64_t begin = stretch.begin, next = 0; begin < stretch.end; begin = next) {
    const std::string_view line = line_at(text, begin, next);
    if (trimmed(line).empty()) continue;
    const auto read_line = [&](const std::string& source) {
      formats::JsonReader json(line, source, begin);
      bool found = false;
      json.object([&](const std::string& key) {
        if (key != options_.field) return json.skip();
        if (std::exchange(found, true))
          json.fail(json.key_position(), fmt::format("the field {} is there twice", formats::shown(key)));
        if (json.peek() != formats::JsonReader::Kind::kString)
          json.fail(json.value_position(), fmt::format("the field {} is no text", formats::shown(key)));
        document = json.string();
      });
      json.end();
      if (!found)
        json.fail(begin, fmt::format("the object has no field {}", formats::shown(options_.field)),
                  "name the field that holds the text with --field");
    };
    try {
      read_line(files_[stretch.file].string());
    } catch (const formats::FormatError&) {
      // Lines are counted only when one is wrong.
      read_line(fmt::format("{}: line {}", files_[stretch.file].string(), line_number(text, begin)));
    }
    if (!document.empty()) take(document);
  }
}

void Corpus::check_text(const TextRange& stretch) const {
  const std::string_view text = maps_[stretch.file].text();
  const std::size_t bad = first_invalid_utf8(text.substr(stretch.begin, stretch.end - stretch.begin));
  if (bad == text.npos) return;
  const std::uint64_t at = stretch.begin + bad;
  throw formats::FormatError(
      fmt::format("{}: line {}: the byte {:#04x} begins no UTF-8 character (byte {})", files_[stretch.file].string(),
                  line_number(text, at), static_cast<unsigned char>(text[at]), at),
      "convert the file to UTF-8, or use the tokenizer \"bytes\", which takes any bytes");
}

void Corpus::read_txt(const TextRange& stretch, const Take& take) const {
  const std::string_view text = maps_[stretch.file].text();
  if (!options_.any_bytes) check_text(stretch);
  const auto give = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) take(text.substr(begin, end - begin));
  };
  if (options_.split == DocumentSplit::kFile) return give(stretch.begin, stretch.end);
  std::uint64_t document = stretch.begin;  // where it begins
  for (std::uint64_t begin = stretch.begin, next = 0; begin < stretch.end; begin = next) {
    const std::string_view line = line_at(text, begin, next);
    if (options_.split == DocumentSplit::kLines) {
      give(begin, begin + line.size());
    } else if (options_.split == DocumentSplit::kBlankLines ? line.empty() : line == options_.separator) {
      give(document, begin);
      document = next;
    }
  }
  if (options_.split != DocumentSplit::kLines) give(document, stretch.end);
}

}  // namespace trireme::data
