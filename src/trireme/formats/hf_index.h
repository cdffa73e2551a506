// formats/hf_index.h -- model.safetensors.index.json: which file of a split model has which tensor.
//
// Depends on: base, formats/json_text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::formats {

inline constexpr std::string_view kHfWeights = "model.safetensors";
inline constexpr std::string_view kHfIndex = "model.safetensors.index.json";
inline constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

struct HfIndex {
  std::string text;      ///< as it is in the file
  std::string metadata;  ///< the JSON object of that name; empty when there is none
  /// metadata.total_size where it is a whole number. Published indices often have the sizes of the files in it, or of
  /// another type, so nothing is checked by it.
  std::optional<std::int64_t> total_size;
  std::vector<std::pair<std::string, std::string>> weight_map;  ///< tensor and file, in the order of the text
};

/// FormatError with `source`, the tensor and the byte: no weight_map, a tensor twice, a file that is no plain name in
/// the same folder.
HfIndex parse_hf_index(std::string text, std::string_view source);

struct HfIndexMetadata {
  std::int64_t total_size = 0;                   ///< bytes of all tensors
  std::optional<std::int64_t> total_parameters;  ///< newer writers have it, older ones do not
  std::string others;  ///< a JSON object with what else is to be kept: the metadata of another index; or empty
};
/// The index as the standard writer makes it: sorted keys, two spaces of indent.
HfIndex make_hf_index(const HfIndexMetadata& metadata, std::vector<std::pair<std::string, std::string>> weight_map);

/// "model-00001-of-00003.safetensors"; `shard` counts from 1. "model.safetensors" when there is one shard.
std::string hf_shard_name(std::size_t shard, std::size_t shards);
struct HfShardNumber {
  std::size_t shard = 0, shards = 0;
};
/// The numbers in such a name; nothing for other names.
std::optional<HfShardNumber> parse_hf_shard_name(std::string_view name);

}  // namespace trireme::formats
