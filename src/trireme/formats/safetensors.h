// formats/safetensors.h -- safetensors files: which tensors are in one, and their bytes without a copy.
//
// A file is 8 bytes of length, that many bytes of JSON (the header), then the tensors' bytes, without gaps.
//
//   const SafetensorsFile file("model.safetensors");
//   for (const TensorInfo& tensor : file.header().tensors) use(tensor, file.bytes(tensor));
//
// Everything a file claims is checked before anything is believed: a file that opens has names that differ, shapes that
// fit their byte ranges, and ranges that cover the data exactly. The same files are taken as by the reference reader,
// but for three kinds that it takes and that cannot be meant: a name twice, a tensor as a list instead of an object,
// more than 64 dimensions. safetensors_writer.h writes. Files that change while they are open: base/mapped_file.h.
// Depends on: base, formats/dtype.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/mapped_file.h"
#include "trireme/formats/dtype.h"

namespace trireme::formats {

/// What a tensor is called and looks like.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  bool operator==(const TensorSpec&) const = default;
};

/// The same, and where it lies: bytes [begin, end) of the data that follows the header.
struct TensorInfo : TensorSpec {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t bytes() const { return end - begin; }
  bool operator==(const TensorInfo&) const = default;
};

/// Texts about the file as a whole ("format" -> "pt"), in the order of the file.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// The header as a value: read from a file, or made for one that is to be written.
struct SafetensorsHeader {
  std::string text;  ///< the JSON as it is in the file, with the spaces after it: writing it again gives the same file
  std::vector<TensorInfo> tensors;       ///< in the order of the text
  std::optional<Metadata> metadata;      ///< none and empty are different texts
  std::vector<std::uint32_t> by_name;    ///< positions in `tensors`, ordered by name
  std::vector<std::uint32_t> by_offset;  ///< the same by where the bytes are: the order to read or write them in

  std::uint64_t data_begin() const { return 8 + text.size(); }
  std::uint64_t data_bytes() const { return by_offset.empty() ? 0 : tensors[by_offset.back()].end; }
  std::uint64_t file_bytes() const { return data_begin() + data_bytes(); }
  /// Null when there is none of that name.
  const TensorInfo* find(std::string_view name) const;
};

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation
inline constexpr std::size_t kMaxDimensions = 64;

/// The header of the file of which `bytes` is the content. FormatError with `source`, the tensor and the byte when
/// something is wrong.
SafetensorsHeader parse_safetensors(std::span<const std::byte> bytes, std::string_view source);

/// Bytes of a tensor; nothing when they cannot be counted in 63 bits or do not end with a whole byte.
std::optional<std::uint64_t> bytes_of(const TensorSpec& spec);
/// "BF16 [4096, 11008]".
std::string to_text(const TensorSpec& spec);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  /// Valid while this object, or what it was moved to, lives. Files of old writers do not align them.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  /// These bytes of it are not looked at again soon: they need no memory.
  void forget(std::span<const std::byte> bytes) const { file_.forget(bytes); }
  /// FormatError naming what is near when there is none of that name.
  const TensorInfo& tensor(std::string_view name) const;
  /// IoError when the file was cut or grew since it was opened.
  void check_size() const { file_.check_size(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// Fills in by_name and by_offset.
void sort_tensors(SafetensorsHeader& header);

}  // namespace trireme::formats
