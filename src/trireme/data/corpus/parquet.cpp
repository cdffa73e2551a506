#include "trireme/data/corpus/parquet.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "trireme/base/text.h"
#include "trireme/data/corpus/decompress.h"
#include "trireme/data/corpus/snappy.h"
#include "trireme/data/corpus/thrift_reader.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

// Numbers of the format (parquet.thrift).
constexpr std::int64_t kByteArray = 6, kOptional = 1, kRepeated = 2;
constexpr std::int64_t kPlain = 0, kPlainDictionary = 2, kRleDictionary = 8;
constexpr std::int64_t kUncompressed = 0, kSnappy = 1, kGzip = 2, kZstd = 6;
constexpr std::int64_t kDataPage = 0, kDictionaryPage = 2, kDataPageV2 = 3;
constexpr std::array<std::string_view, 8> kCodecs{"none", "Snappy", "gzip", "LZO", "Brotli", "LZ4", "zstd", "LZ4_RAW"};
constexpr std::string_view kMagic = "PAR1";

std::uint32_t little_32(std::string_view bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

/// Numbers of a few bits: runs of one value, or packed.
class RunReader {
 public:
  RunReader(std::string_view bytes, unsigned bits) : bytes_(bytes), bits_(bits) {}

  /// Nothing when they end.
  std::optional<std::uint32_t> next() {
    if (left_ == 0 && !begin_run()) return std::nullopt;
    --left_;
    if (!packed_) return value_;
    std::uint32_t value = 0;
    for (unsigned i = 0; i < bits_; ++i, ++bit_) {
      if (bit_ / 8 >= bytes_.size()) return std::nullopt;
      value |= (static_cast<unsigned char>(bytes_[bit_ / 8]) >> bit_ % 8 & 1U) << i;
    }
    if (left_ == 0) drop((bit_ + 7) / 8);
    return value;
  }

 private:
  void drop(std::size_t bytes) { bytes_.remove_prefix(std::min(bytes, bytes_.size())); }
  bool begin_run() {
    std::uint64_t head = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (bytes_.empty() || shift > 28) return false;
      const auto byte = static_cast<unsigned char>(bytes_[0]);
      drop(1);
      head |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    packed_ = (head & 1) == 1;
    left_ = packed_ ? (head >> 1) * 8 : head >> 1;
    bit_ = 0;
    if (packed_) return left_ > 0;
    value_ = 0;
    const std::size_t width = (bits_ + 7) / 8;
    if (bytes_.size() < width) return false;
    for (std::size_t i = 0; i < width; ++i)
      value_ |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes_[i])) << 8 * i;
    drop(width);
    return left_ > 0;
  }

  std::string_view bytes_;
  unsigned bits_;
  bool packed_ = false;
  std::uint64_t left_ = 0;  // of this run
  std::uint32_t value_ = 0;
  std::size_t bit_ = 0;
};

/// The next text of the plain encoding; nothing when it does not fit.
std::optional<std::string_view> take_plain(std::string_view& bytes) {
  if (bytes.size() < 4) return std::nullopt;
  const std::uint32_t size = little_32(bytes);
  if (size > bytes.size() - 4) return std::nullopt;
  const std::string_view text = bytes.substr(4, size);
  bytes.remove_prefix(4 + std::size_t{size});
  return text;
}

struct SchemaColumn {
  std::string name;
  std::int64_t type = -1, repetition = 0, children = 0;
};

}  // namespace

struct ParquetColumn::Page {
  std::uint64_t byte = 0;  ///< where it begins
  std::int64_t type = -1, values = 0, encoding = -1;
  std::string levels, body;  ///< which values are null, and those that are not
};

void ParquetColumn::fail(std::uint64_t byte, std::string_view what) const {
  throw formats::FormatError(fmt::format("{}: {} (byte {})", source_, what, byte),
                             "make a .jsonl of it with pandas or pyarrow");
}

ParquetColumn::ParquetColumn(std::string_view file, std::string_view source, const std::string& name)
    : file_(file), source_(source) {
  if (file.size() < 12 || !file.starts_with(kMagic) || !file.ends_with(kMagic))
    fail(0, file.ends_with("PARE") ? "is encrypted" : "is no Parquet file, or cut short");
  read_footer(name);
}

void ParquetColumn::read_footer(const std::string& name) {
  using Type = ThriftReader::Type;
  const std::uint64_t size = little_32(file_.substr(file_.size() - 8)), end = file_.size() - 8;
  if (size > end - kMagic.size()) fail(end, fmt::format("its metadata would have {} bytes", size));
  ThriftReader in(file_.substr(end - size, size), source_, end - size);
  std::vector<SchemaColumn> schema;
  const auto read_schema = [&](Type) {
    SchemaColumn& column = schema.emplace_back();
    in.structure([&](int field, Type type) {
      if (field == 1)
        column.type = in.integer();
      else if (field == 3)
        column.repetition = in.integer();
      else if (field == 4)
        column.name = in.binary();
      else if (field == 5)
        column.children = in.integer();
      else
        in.skip(type);
    });
  };
  const auto read_column = [&](Type) {
    Chunk chunk;
    std::int64_t data = -1, dictionary = -1, bytes = -1;
    std::vector<std::string> path;
    bool elsewhere = false;
    const auto read_meta = [&](int field, Type type) {
      if (field == 3)
        in.list([&](Type) { path.emplace_back(in.binary()); });
      else if (field == 4)
        chunk.codec = in.integer();
      else if (field == 5)
        chunk.values = in.integer();
      else if (field == 7)
        bytes = in.integer();
      else if (field == 9)
        data = in.integer();
      else if (field == 11)
        dictionary = in.integer();
      else
        in.skip(type);
    };
    in.structure([&](int field, Type type) {
      if (field == 3)
        in.structure(read_meta);
      else if (field == 1)
        elsewhere = !in.binary().empty();
      else
        in.skip(type);
    });
    if (path != std::vector{name}) return;
    if (elsewhere) in.fail("its columns lie in another file");
    const std::int64_t begin = dictionary > 0 && dictionary < data ? dictionary : data;
    if (begin < 0 || bytes < 0 || static_cast<std::uint64_t>(begin) > file_.size() ||
        static_cast<std::uint64_t>(bytes) > file_.size() - static_cast<std::uint64_t>(begin))
      in.fail(fmt::format("a column of {} bytes at byte {} is not in the file", bytes, begin));
    chunk.begin = static_cast<std::uint64_t>(begin);
    chunk.bytes = static_cast<std::uint64_t>(bytes);
    chunks_.push_back(chunk);
  };
  in.structure([&](int field, Type type) {
    if (field == 2) return in.list(read_schema);
    if (field != 4) return in.skip(type);
    in.list([&](Type) { in.structure([&](int inner, Type of) { inner == 1 ? in.list(read_column) : in.skip(of); }); });
  });
  // The first element is the root; children follow their parents. Only columns at the top can be texts.
  std::vector<std::string> texts;
  std::int64_t below = 0;  // elements that belong to a nested column
  for (std::size_t i = 1; i < schema.size(); ++i) {
    const SchemaColumn& column = schema[i];
    const bool top = below == 0;
    below = std::max<std::int64_t>(below - (top ? 0 : 1), 0) + std::clamp<std::int64_t>(column.children, 0, 1 << 20);
    if (!top || column.children > 0 || column.type != kByteArray || column.repetition == kRepeated) continue;
    texts.push_back(column.name);
    if (column.name == name) optional_ = column.repetition == kOptional;
  }
  if (std::ranges::find(texts, name) == texts.end())
    throw formats::FormatError(fmt::format("{}: has no column {} of texts; {} (byte {})", source_, formats::shown(name),
                                           texts.empty() ? "it has none" : "there are " + listed(texts), end - size),
                               "name the column that holds the text with --field");
}

/// Runs and dictionaries can say in a few bytes what takes for ever to read: what no text needs is refused.
void ParquetColumn::read(const std::function<void(std::string_view)>& take) const {
  constexpr std::int64_t kValuesAllowed = 1 << 24;
  const auto bytes = static_cast<std::int64_t>(file_.size());
  std::int64_t values = 0;
  for (const Chunk& chunk : chunks_) {
    values += std::clamp<std::int64_t>(chunk.values, 0, std::int64_t{1} << 40);
    if (values > kValuesAllowed && values / static_cast<std::int64_t>(Decompressor::kMostRatio) > bytes)
      fail(chunk.begin, fmt::format("{} values in {} bytes are no texts", values, bytes));
  }
  std::uint64_t made = 0;
  for (const Chunk& chunk : chunks_) {
    read_chunk(chunk, [&](std::string_view text) {
      made += text.size();
      if (made > Decompressor::kAlwaysAllowed && made / Decompressor::kMostRatio > file_.size())
        fail(chunk.begin, fmt::format("unpacks to more than {} times its {} bytes, which text does not",
                                      Decompressor::kMostRatio, bytes));
      take(text);
    });
  }
}

std::string ParquetColumn::unpacked(const Chunk& chunk, std::string_view bytes, std::uint64_t size,
                                    std::uint64_t at) const {
  if (chunk.codec == kUncompressed) return std::string(bytes);
  if (size > Decompressor::kAlwaysAllowed && size / Decompressor::kMostRatio > bytes.size())
    fail(at, fmt::format("a page unpacks from {} to {} bytes, which text does not", bytes.size(), size));
  if (chunk.codec == kSnappy) {
    auto text = unpack_snappy(bytes, size);
    if (!text) fail(at, "a page is damaged: it is not what Snappy packs");
    return std::move(*text);
  }
  if (chunk.codec != kGzip && chunk.codec != kZstd)
    fail(at, fmt::format("is compressed with {}, which is not read",
                         chunk.codec >= 0 && chunk.codec < static_cast<std::int64_t>(kCodecs.size())
                             ? kCodecs[static_cast<std::size_t>(chunk.codec)]
                             : "an unknown method"));
  Decompressor stream(chunk.codec == kGzip ? Compression::kGzip : Compression::kZstd, bytes, source_);
  std::string text;
  while (text.size() <= size && stream.read(text)) {
  }
  if (text.size() != size) fail(at, fmt::format("a page unpacks to other than {} bytes", size));
  return text;
}

ParquetColumn::Page ParquetColumn::read_page(const Chunk& chunk, std::uint64_t& at) const {
  using Type = ThriftReader::Type;
  Page page{.byte = at};
  std::int64_t size = -1, packed = -1, definition_bytes = 0, repetition_bytes = 0;
  bool compressed = true;
  ThriftReader in(file_.substr(at, chunk.begin + chunk.bytes - at), source_, at);
  in.structure([&](int field, Type type) {
    if (field == 1) return void(page.type = in.integer());
    if (field == 2) return void(size = in.integer());
    if (field == 3) return void(packed = in.integer());
    if (field != 5 && field != 7 && field != 8) return in.skip(type);
    in.structure([&](int inner, Type of) {
      if (inner == 1)
        page.values = in.integer();
      else if (inner == (field == 8 ? 4 : 2))
        page.encoding = in.integer();
      else if (field == 8 && inner == 5)
        definition_bytes = in.integer();
      else if (field == 8 && inner == 6)
        repetition_bytes = in.integer();
      else if (field == 8 && inner == 7)
        compressed = of == Type::kTrue;
      else
        in.skip(of);
    });
  });
  at += in.position();
  const std::uint64_t room = chunk.begin + chunk.bytes - at;
  if (size < 0 || packed < 0 || static_cast<std::uint64_t>(packed) > room || page.values < 0)
    fail(page.byte, fmt::format("a page of {} bytes has {} bytes left", packed, room));
  std::string_view bytes = file_.substr(at, static_cast<std::uint64_t>(packed));
  at += bytes.size();
  std::uint64_t unpacked_size = static_cast<std::uint64_t>(size);
  if (page.type == kDataPageV2) {  // its levels are never compressed
    if (definition_bytes < 0 || repetition_bytes != 0 || definition_bytes > packed || definition_bytes > size)
      fail(page.byte, "a page's levels do not fit");
    page.levels = bytes.substr(0, static_cast<std::size_t>(definition_bytes));
    bytes.remove_prefix(page.levels.size());
    unpacked_size -= page.levels.size();
    page.body = compressed ? unpacked(chunk, bytes, unpacked_size, page.byte) : std::string(bytes);
    return page;
  }
  if (page.type != kDataPage && page.type != kDictionaryPage) return page;  // an index: nothing to read
  page.body = unpacked(chunk, bytes, unpacked_size, page.byte);
  if (page.type == kDataPage && optional_) {
    const auto levels = [&]() -> std::optional<std::string_view> {
      std::string_view rest = page.body;
      return take_plain(rest);  // the same form: a size, then so many bytes
    }();
    if (!levels) fail(page.byte, "a page's levels do not fit");
    page.levels = *levels;
    page.body.erase(0, 4 + page.levels.size());
  }
  return page;
}

void ParquetColumn::read_chunk(const Chunk& chunk, const std::function<void(std::string_view)>& take) const {
  std::string dictionary_bytes;
  std::vector<std::string_view> dictionary;
  std::int64_t seen = 0;
  for (std::uint64_t at = chunk.begin; seen < chunk.values;) {
    if (at >= chunk.begin + chunk.bytes)
      fail(at, fmt::format("a column ends after {} of {} values", seen, chunk.values));
    Page page = read_page(chunk, at);
    const auto check = [&](std::string_view text) {
      if (first_invalid_utf8(text) != text.npos) fail(page.byte, "a page holds a text that is not UTF-8");
      return text;
    };
    if (page.type == kDictionaryPage) {
      dictionary_bytes = std::move(page.body);
      dictionary.clear();
      for (std::string_view rest = dictionary_bytes; !rest.empty();) {
        const auto text = take_plain(rest);
        if (!text) fail(page.byte, "a dictionary is damaged");
        dictionary.push_back(check(*text));
      }
      continue;
    }
    if (page.type != kDataPage && page.type != kDataPageV2) continue;
    if (page.values > chunk.values - seen) fail(page.byte, "a page has more values than its column");
    const bool indexed = page.encoding == kPlainDictionary || page.encoding == kRleDictionary;
    if (!indexed && page.encoding != kPlain)
      fail(page.byte, fmt::format("its texts have the encoding {}, which is not read", page.encoding));
    RunReader levels(page.levels, 1);
    std::string_view rest = page.body;
    const unsigned bits = indexed && !rest.empty() ? static_cast<unsigned char>(rest[0]) : 0;
    if (bits > 32) fail(page.byte, fmt::format("numbers of {} bits", bits));
    RunReader indices(indexed && !rest.empty() ? rest.substr(1) : std::string_view(), bits);
    for (std::int64_t i = 0; i < page.values; ++i) {
      if (optional_) {
        const auto there = levels.next();
        if (!there) fail(page.byte, "a page's levels end before its values");
        if (*there == 0) continue;
      }
      if (indexed) {
        const auto index = indices.next();
        if (!index || *index >= dictionary.size()) fail(page.byte, "a page names a text that its dictionary lacks");
        take(dictionary[*index]);
      } else {
        const auto text = take_plain(rest);
        if (!text) fail(page.byte, "a page ends before its values");
        take(check(*text));
      }
    }
    seen += page.values;
  }
}

}  // namespace trireme::data
