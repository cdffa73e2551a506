// formats/checkpoint_manifest.h -- what a checkpoint says of itself: manifest.json as a value.
//
// A checkpoint is a folder with one or more parts, safetensors files that ranks wrote side by side. The manifest alone
// says where every element of every tensor is and what every byte must be: a reader opens only the parts it needs, and
// checks only the blocks it reads. Nothing here says how the run was laid out; any layout reads it.
// Depends on: base, formats/dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json_value.h"
#include "trireme/formats/dtype.h"

namespace trireme::formats {

inline constexpr const char* kUseOlderCheckpoint =
    "an older checkpoint of the run may be whole; --resume finds it by itself";

inline constexpr std::string_view kManifestFile = "manifest.json", kStateFile = "state.safetensors",
                                  kRecipeFile = "recipe.toml";

/// XXH3, 64 bits.
std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);
/// 16 hexadecimal digits, and back; nothing when it is something else.
std::string hex(std::uint64_t number);
std::optional<std::uint64_t> parse_hex(std::string_view text);

/// Stretches of a tensor's elements, numbered row by row: begin + i * stride .. + count, for i below times.
struct Strip {
  std::int64_t begin = 0, count = 0, stride = 0, times = 1;
  bool operator==(const Strip&) const = default;
};

/// Some elements of a tensor, one after the other from byte `at` of a part.
struct StoredSlice {
  std::size_t part = 0;
  std::uint64_t at = 0;
  std::vector<Strip> strips;
  bool operator==(const StoredSlice&) const = default;
  std::int64_t elements() const;
};

struct StoredTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::vector<StoredSlice> slices;  ///< each element once
  bool operator==(const StoredTensor&) const = default;
  std::size_t element_bytes() const { return static_cast<std::size_t>(bits_of(dtype)) / 8; }
  std::uint64_t bytes() const;
};

/// Bytes [begin, end) of a part have this checksum.
struct Checked {
  std::uint64_t begin = 0, end = 0, sum = 0;
  bool operator==(const Checked&) const = default;
};

/// A file with tensors, checked block by block, so that a part of it can be read and trusted.
struct StoredPart {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<Checked> checks;  ///< ascending; in our own files without gaps
  bool operator==(const StoredPart&) const = default;
};
inline constexpr std::uint64_t kCheckedBlock = std::uint64_t{1} << 20;

/// All that a manifest of version 1 says of the one file that holds its tensors, whole.
struct Version1Sums {
  std::uint64_t header = 0;
  std::map<std::string, std::uint64_t> tensors;
};

struct CheckpointManifest {
  int version = 2;
  std::string program;  ///< the version of Trireme that wrote it
  std::int64_t step = 0, tokens = 0;
  std::uint64_t hash = 0;                      ///< of the whole state
  std::optional<double> metric;                ///< what "the best" is chosen by: the last validation loss
  JsonValue values;                            ///< what the State registry holds beside tensors, by name
  std::map<std::string, std::uint64_t> files;  ///< small files beside the parts -> checksum
  std::vector<StoredPart> parts;
  std::map<std::string, StoredTensor, std::less<>> tensors;
  std::optional<Version1Sums> version1;  ///< parts and tensors are then not known from the manifest alone

  std::uint64_t bytes() const;  ///< of all parts
};

/// "state.safetensors" of a single rank, "state-00001-of-00004.safetensors" of several.
std::string part_name(int rank, int ranks);

/// The text of manifest.json, with a checksum of its own.
std::string manifest_text(const CheckpointManifest& manifest);
/// FormatError with `source` when it is damaged, of another version, or no manifest. One of version 1 says nothing of
/// slices: checkpoint_folder.h fills them in from the file that holds its tensors.
CheckpointManifest parse_manifest(std::string_view text, const std::string& source);

/// The same elements as as few strips as can be said in one pass.
std::vector<Strip> strips_of(std::span<const Strip> stretches);
/// "[0:512, 0:1024]" where the strips are a box of the tensor, otherwise how many elements and from where.
std::string slice_text(const StoredTensor& tensor, const StoredSlice& slice);

}  // namespace trireme::formats
