#include "trireme/formats/hf_index.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "trireme/formats/format_error.h"
#include "trireme/formats/json_reader.h"
#include "trireme/formats/json_text.h"

namespace trireme::formats {
namespace {

using Json = nlohmann::ordered_json;

/// An index must not be able to make us open files elsewhere.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

void read_metadata(JsonReader& json, std::string_view source, HfIndex& index) {
  const std::uint64_t at = json.value_position();
  if (json.peek() == JsonReader::Kind::kNull) return json.null();
  if (json.peek() != JsonReader::Kind::kObject) json.fail(at, "metadata must be an object {...}");
  index.metadata = json.raw();
  const Json metadata = parse_json(index.metadata, source, at);
  const auto total = metadata.find("total_size");
  if (total != metadata.end() && total->is_number_integer() && !total->is_number_unsigned())
    index.total_size = total->get<std::int64_t>();
}

void read_weight_map(JsonReader& json, HfIndex& index) {
  std::unordered_set<std::string> seen;
  json.object([&](std::string tensor) {
    json.about("tensor", tensor);
    if (!seen.insert(tensor).second) json.fail(json.key_position(), "is there twice");
    const std::uint64_t at = json.value_position();
    std::string file = json.string();
    if (!is_plain_name(file))
      json.fail(at, fmt::format("the file {} is no plain name of a file in the same folder", shown(file)));
    json.about("", "");
    index.weight_map.emplace_back(std::move(tensor), std::move(file));
  });
}

}  // namespace

HfIndex parse_hf_index(std::string text, std::string_view source) {
  HfIndex index;
  index.text = std::move(text);
  JsonReader json(index.text, source, 0, JsonReader::Dialect::kPython);
  bool has_map = false, has_metadata = false;
  json.object([&](const std::string& key) {
    bool other = false, &has = key == "weight_map" ? has_map : key == "metadata" ? has_metadata : other;
    if (std::exchange(has, true)) json.fail(json.key_position(), fmt::format("{} is there twice", key));
    if (key == "weight_map") {
      read_weight_map(json, index);
    } else if (key == "metadata") {
      read_metadata(json, source, index);
    } else {
      json.skip();
    }
  });
  json.end();
  if (!has_map) json.fail(0, "has no weight_map");
  return index;
}

HfIndex make_hf_index(const HfIndexMetadata& metadata, std::vector<std::pair<std::string, std::string>> weight_map) {
  HfIndex index;
  Json kept = metadata.others.empty() ? Json::object() : parse_json(metadata.others, "the index's metadata");
  if (metadata.total_parameters) kept["total_parameters"] = *metadata.total_parameters;
  kept["total_size"] = metadata.total_size;
  index.total_size = metadata.total_size;
  index.metadata = python_json(kept, Keys::kSorted);
  std::ranges::sort(weight_map);
  index.weight_map = std::move(weight_map);

  Json::object_t map;
  for (const auto& [tensor, file] : index.weight_map)
    static_cast<Json::object_t::Container&>(map).emplace_back(tensor, file);
  const Json whole = {{"metadata", std::move(kept)}, {"weight_map", std::move(map)}};
  index.text = python_json(whole, Keys::kSorted) + "\n";
  return index;
}

std::string hf_shard_name(std::size_t shard, std::size_t shards) {
  if (shards == 1) return std::string(kHfWeights);
  return fmt::format("model-{:05d}-of-{:05d}.safetensors", shard, shards);
}

std::optional<HfShardNumber> parse_hf_shard_name(std::string_view name) {
  constexpr std::string_view kStart = "model-", kMiddle = "-of-", kEnd = ".safetensors";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd) || name.size() < kStart.size() + kEnd.size())
    return std::nullopt;
  const std::string_view numbers = name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
  const std::size_t middle = numbers.find(kMiddle);
  if (middle == numbers.npos) return std::nullopt;
  const auto parse = [](std::string_view digits) -> std::optional<std::size_t> {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.size() < 5 || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    return value;
  };
  const auto shard = parse(numbers.substr(0, middle)), shards = parse(numbers.substr(middle + kMiddle.size()));
  if (!shard || !shards) return std::nullopt;
  return HfShardNumber{*shard, *shards};
}

}  // namespace trireme::formats
