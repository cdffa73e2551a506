#include "trireme/data/corpus/corpus.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "trireme/data/corpus/html_text.h"
#include "trireme/data/corpus/parquet.h"
#include "trireme/data/tokenizer/utf8_text.h"
#include "trireme/formats/json_reader.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<Named<DocumentSplit>, 4> kSplits{{{"file", DocumentSplit::kFile},
                                                       {"lines", DocumentSplit::kLines},
                                                       {"blank-lines", DocumentSplit::kBlankLines},
                                                       {"separator", DocumentSplit::kSeparator}}};
constexpr std::array<std::pair<std::string_view, CorpusKind>, 6> kExtensions{{{".txt", CorpusKind::kText},
                                                                              {".md", CorpusKind::kText},
                                                                              {".html", CorpusKind::kHtml},
                                                                              {".htm", CorpusKind::kHtml},
                                                                              {".jsonl", CorpusKind::kJsonLines},
                                                                              {".parquet", CorpusKind::kParquet}}};
constexpr std::string_view kKindsInWords = ".txt, .md, .html, .jsonl, any of these in .gz or .zst, or .parquet";
/// Bytes of text in a byte of a compressed file, where sizes are only compared.
constexpr std::uint64_t kUsualRatio = 4;

std::optional<CorpusKind> corpus_kind(fs::path path) {
  const bool compressed = compression_of(path) != Compression::kNone;
  if (compressed) path = path.stem();
  const auto found = std::ranges::find(kExtensions, path.extension().string(), [](const auto& e) { return e.first; });
  // Parquet compresses by itself, and is read from its end.
  if (found == kExtensions.end() || (compressed && found->second == CorpusKind::kParquet)) return std::nullopt;
  return found->second;
}

[[noreturn]] void refuse_file(const fs::path& path) {
  throw ConfigError(fmt::format("{} is not {}", path.string(), kKindsInWords),
                    "rename it: .txt is text, .jsonl has a JSON object in each line");
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> inside;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && corpus_kind(entry.path())) inside.push_back(entry.path());
  }
  if (inside.empty()) throw ConfigError(fmt::format("the folder {} holds no {}", folder.string(), kKindsInWords));
  std::ranges::sort(inside);
  return inside;
}

/// The line at `begin`, without its end; `next` is where the one after it begins.
std::string_view line_at(std::string_view text, std::uint64_t begin, std::uint64_t& next) {
  const std::size_t newline = text.find('\n', begin);
  next = newline == text.npos ? text.size() : newline + 1;
  std::string_view line = text.substr(begin, (newline == text.npos ? text.size() : newline) - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::uint64_t lines_in(std::string_view text) {
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

std::span<const Named<DocumentSplit>> enum_names(std::type_identity<DocumentSplit>) { return kSplits; }

std::vector<fs::path> find_corpus_files(std::span<const std::string> names) {
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    if (fs::is_directory(name)) {
      const std::vector<fs::path> inside = files_below(name);
      files.insert(files.end(), inside.begin(), inside.end());
    } else if (!fs::exists(name)) {
      throw ConfigError(fmt::format("there is no file or folder {}", name));
    } else if (!corpus_kind(name)) {
      refuse_file(name);
    } else {
      files.emplace_back(name);
    }
  }
  if (files.empty())
    throw ConfigError("no text is named", fmt::format("name files of {}, or folders that hold some", kKindsInWords));
  return files;
}

/// A stretch of text that begins and ends between documents, in the memory around it.
struct Corpus::Part {
  std::size_t file = 0;
  std::string_view memory;                       ///< of a file from its beginning, or of an unpacked piece
  std::uint64_t begin = 0, end = 0;              ///< of the stretch, in `memory`
  std::uint64_t first_byte = 0, first_line = 1;  ///< of `memory`, in the file's text

  std::string_view text() const { return memory.substr(begin, end - begin); }
  /// For messages: lines are counted only when one is wrong.
  std::uint64_t line(std::uint64_t at) const { return first_line + lines_in(memory.substr(0, at)); }
};

Corpus::Corpus(std::vector<fs::path> files, CorpusOptions options)
    : files_(std::move(files)), options_(std::move(options)) {
  if (options_.split == DocumentSplit::kSeparator && options_.separator.empty())
    throw ConfigError("documents are to be split at a separator, but it is empty", "say which line it is");
  for (const fs::path& file : files_) {
    const auto kind = corpus_kind(file);
    if (!kind) refuse_file(file);
    kinds_.push_back(*kind);
    maps_.emplace_back(file);
  }
}

std::uint64_t Corpus::bytes() const {
  return std::accumulate(maps_.begin(), maps_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const MappedFile& map) { return sum + map.size(); });
}

bool Corpus::is_lines(std::size_t file) const {
  return kinds_[file] == CorpusKind::kJsonLines ||
         (kinds_[file] == CorpusKind::kText && options_.split == DocumentSplit::kLines);
}
bool Corpus::is_whole(std::size_t file) const {
  return kinds_[file] == CorpusKind::kHtml || kinds_[file] == CorpusKind::kParquet ||
         (kinds_[file] == CorpusKind::kText && options_.split == DocumentSplit::kFile);
}
bool Corpus::ends_document(std::string_view line) const {
  return options_.split == DocumentSplit::kBlankLines ? line.empty() : line == options_.separator;
}

/// The first place at or after `from` where a document begins; the end of the text when there is none.
std::uint64_t Corpus::first_boundary(std::size_t file, std::string_view text, std::uint64_t from) const {
  if (from >= text.size() || is_whole(file)) return text.size();
  std::uint64_t at = from;
  if (at > 0 && text[at - 1] != '\n') line_at(text, at, at);  // the rest of a line
  if (is_lines(file)) return at;
  while (at < text.size())
    if (ends_document(line_at(text, at, at))) return at;
  return text.size();
}

/// The last place where a document surely begins, whatever follows; 0 when there is none.
std::uint64_t Corpus::last_boundary(std::size_t file, std::string_view text) const {
  if (is_whole(file)) return 0;
  for (std::size_t end = text.rfind('\n'); end != text.npos; end = end == 0 ? text.npos : text.rfind('\n', end - 1)) {
    if (is_lines(file)) return end + 1;
    const std::size_t before = end == 0 ? text.npos : text.rfind('\n', end - 1);
    std::uint64_t next = 0;
    if (ends_document(line_at(text, before == text.npos ? 0 : before + 1, next))) return end + 1;
  }
  return 0;
}

std::vector<Chunk> Corpus::chunks(std::uint64_t bytes) const {
  bytes = std::max<std::uint64_t>(bytes, 1);
  std::vector<Chunk> chunks;
  std::uint64_t room = 0;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const bool compressed = compression_of(files_[file]) != Compression::kNone;
    for (std::uint64_t begin = 0; begin < maps_[file].size();) {
      if (room == 0) {
        chunks.emplace_back();
        room = bytes;
      }
      const std::uint64_t end =
          compressed ? maps_[file].size() : first_boundary(file, maps_[file].text(), begin + room);
      chunks.back().push_back({file, begin, end});
      room -= std::min(room, (end - begin) * (compressed ? kUsualRatio : 1));
      begin = end;
    }
  }
  return chunks;
}

void Corpus::read_parts(const Chunk& chunk, const TakePart& take) const {
  for (const TextRange& stretch : chunk) {
    maps_[stretch.file].check_size();
    if (compression_of(files_[stretch.file]) != Compression::kNone) {
      read_compressed(stretch.file, take);
    } else {
      take({.file = stretch.file, .memory = maps_[stretch.file].text(), .begin = stretch.begin, .end = stretch.end});
    }
  }
}

void Corpus::read_compressed(std::size_t file, const TakePart& take) const {
  const std::string source = files_[file].string();
  Decompressor stream(compression_of(files_[file]), maps_[file].text(), source);
  std::string memory;
  Part part{.file = file};
  std::size_t wanted = 0;  // a piece that held no boundary is not looked through again before it has doubled
  for (bool more = true; more;) {
    more = stream.read(memory);
    if (more && memory.size() < wanted) continue;
    part.memory = memory;
    part.end = more ? last_boundary(file, memory) : memory.size();
    wanted = part.end == 0 ? 2 * memory.size() : 0;
    if (part.end == 0) continue;
    take(part);
    part.first_byte += part.end;
    part.first_line += lines_in(part.text());
    memory.erase(0, part.end);
  }
}

void Corpus::read(const Chunk& chunk, const Take& take) const {
  read_parts(chunk, [&](const Part& part) {
    if (kinds_[part.file] == CorpusKind::kParquet) {
      return ParquetColumn(part.memory, files_[part.file].string(), options_.field)
          .read([&](std::string_view document) {
            if (!document.empty()) take(document);
          });
    }
    if (kinds_[part.file] != CorpusKind::kJsonLines) return read_documents(part, take);
    std::string document;
    read_json_lines(part, [&](formats::JsonReader& json) -> std::function<void()> {
      if (json.peek() != formats::JsonReader::Kind::kString)
        json.fail(json.value_position(), fmt::format("the field {} is no text", formats::shown(options_.field)));
      document = json.string();
      return [&] {
        if (!document.empty()) take(document);
      };
    });
  });
}

void Corpus::read_chats(const Chunk& chunk, const TakeChat& take) const {
  read_parts(chunk, [&](const Part& part) {
    if (kinds_[part.file] != CorpusKind::kJsonLines)
      throw ConfigError(
          fmt::format("{} holds no conversations", files_[part.file].string()),
          "conversations are in .jsonl: {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}");
    Conversation conversation;
    read_json_lines(part, [&](formats::JsonReader& json) -> std::function<void()> {
      if (json.peek() != formats::JsonReader::Kind::kArray)
        json.fail(json.value_position(),
                  fmt::format("the field {} is no list of messages", formats::shown(options_.field)));
      conversation = read_conversation(json);
      return [&] { take(conversation); };
    });
  });
}

/// `read_field` reads the field's value and returns what is to be done with it once the line is known to be right.
template <typename ReadField>
void Corpus::read_json_lines(const Part& part, ReadField&& read_field) const {
  const std::string_view text = part.memory;
  for (std::uint64_t begin = part.begin, next = 0; begin < part.end; begin = next) {
    const std::string_view line = line_at(text, begin, next);
    if (trimmed(line).empty()) continue;
    std::function<void()> use;
    const auto read_line = [&](const std::string& source) {
      formats::JsonReader json(line, source, part.first_byte + begin);
      bool found = false;
      json.object([&](const std::string& key) {
        if (key != options_.field) return json.skip();
        if (std::exchange(found, true))
          json.fail(json.key_position(), fmt::format("the field {} is there twice", formats::shown(key)));
        use = read_field(json);
      });
      json.end();
      if (!found)
        json.fail(part.first_byte + begin, fmt::format("the object has no field {}", formats::shown(options_.field)),
                  "name the field that holds the text with --field");
    };
    try {
      read_line(files_[part.file].string());
    } catch (const formats::FormatError&) {
      read_line(fmt::format("{}: line {}", files_[part.file].string(), part.line(begin)));
    }
    use();
  }
}

void Corpus::check_text(const Part& part) const {
  const std::size_t bad = first_invalid_utf8(part.text());
  if (bad == std::string_view::npos) return;
  const std::uint64_t at = part.begin + bad;
  throw formats::FormatError(
      fmt::format("{}: line {}: the byte {:#04x} begins no UTF-8 character (byte {})", files_[part.file].string(),
                  part.line(at), static_cast<unsigned char>(part.memory[at]), part.first_byte + at),
      "convert the file to UTF-8, or use the tokenizer \"bytes\", which takes any bytes");
}

void Corpus::read_documents(const Part& part, const Take& take) const {
  if (!options_.any_bytes) check_text(part);
  const auto give = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) take(part.memory.substr(begin, end - begin));
  };
  if (kinds_[part.file] == CorpusKind::kHtml) {
    const std::string text = html_text(part.text());
    if (!text.empty()) take(text);
    return;
  }
  if (options_.split == DocumentSplit::kFile) return give(part.begin, part.end);
  std::uint64_t document = part.begin;  // where it begins
  for (std::uint64_t begin = part.begin, next = 0; begin < part.end; begin = next) {
    const std::string_view line = line_at(part.memory, begin, next);
    if (options_.split == DocumentSplit::kLines) {
      give(begin, begin + line.size());
    } else if (ends_document(line)) {
      give(document, begin);
      document = next;
    }
  }
  if (options_.split != DocumentSplit::kLines) give(document, part.end);
}

}  // namespace trireme::data
