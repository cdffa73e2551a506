// data/corpus/parquet.h -- the texts in one column of a Parquet file, in order.
//
// What files of text have is read: a column of byte arrays, plain or with a dictionary (PLAIN, PLAIN_DICTIONARY,
// RLE_DICTIONARY), in pages of either version, compressed with Snappy, gzip, zstd or not at all. All else is refused by
// name. Pages go through memory one by one; one that unpacks to far more than text does is refused.
// Depends on: thrift_reader, snappy, decompress.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class ParquetColumn {
 public:
  /// `file`, its bytes, and `source`, its name, stay borrowed. FormatError where the file is damaged, has no column of
  /// that name (naming those it has), or it holds no texts.
  ParquetColumn(std::string_view file, std::string_view source, const std::string& name);

  /// Calls `take` with each text; null is left out.
  void read(const std::function<void(std::string_view text)>& take) const;

 private:
  struct Chunk {
    std::uint64_t begin = 0, bytes = 0;
    std::int64_t values = 0;
    std::int64_t codec = 0;
  };
  struct Page;
  void read_footer(const std::string& name);
  void read_chunk(const Chunk& chunk, const std::function<void(std::string_view)>& take) const;
  Page read_page(const Chunk& chunk, std::uint64_t& at) const;
  std::string unpacked(const Chunk& chunk, std::string_view bytes, std::uint64_t size, std::uint64_t at) const;
  [[noreturn]] void fail(std::uint64_t byte, std::string_view what) const;

  std::string_view file_, source_;
  bool optional_ = false;  // values may be null
  std::vector<Chunk> chunks_;
};

}  // namespace trireme::data
