// data/corpus/decompress.h -- the text in a .gz or .zst, piece by piece.
//
// Several gzip members or zstd frames in a row are one text, as the tools that make them mean it. A file that unpacks
// to far more than text ever does is refused, so that a small file cannot fill the memory.
// Depends on: base, zlib, zstd.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/base/mapped_file.h"

namespace trireme::data {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd };

/// By the end of the file's name: .gz, .zst.
Compression compression_of(const std::filesystem::path& path);

class Decompressor {
 public:
  /// Text that a file may unpack to whatever its size, and times its size beyond.
  static constexpr std::uint64_t kAlwaysAllowed = 64 << 20, kMostRatio = 256;

  /// `source` names the bytes in messages; both stay borrowed.
  Decompressor(Compression compression, std::string_view bytes, std::string_view source);
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Appends the next piece, of at most a megabyte; false: there is no more. FormatError with the byte for what is
  /// damaged, cut short or too large.
  bool read(std::string& out);

 private:
  struct Stream;
  [[noreturn]] void fail(std::string_view what, std::string hint = {}) const;

  std::string_view bytes_, source_;
  std::size_t at_ = 0;
  std::uint64_t made_ = 0;
  bool inside_ = false;  // a member or frame has begun
  std::unique_ptr<Stream> stream_;
};

}  // namespace trireme::data
