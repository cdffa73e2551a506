#include "trireme/formats/checkpoint_manifest.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "trireme/base/version.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

using Json = nlohmann::ordered_json;
using JsonType = Json::value_t;

constexpr std::string_view kFormat = "trireme checkpoint";
constexpr int kManifestVersion = 2;

Json checksums(const std::map<std::string, std::uint64_t>& sums) {
  Json out = Json::object();
  for (const auto& [name, sum] : sums) out[name] = hex(sum);
  return out;
}

/// Reads members of an object; whatever is not there or not of its kind is one error.
class Reader {
 public:
  Reader(const Json& json, const std::string& source) : json_(json), source_(source) {
    if (!json.is_object()) fail("has something else where an object must be");
  }

  const Json& at(const char* key, JsonType type) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(fmt::format("there is no \"{}\"", key));
    if (found->type() != type) fail(fmt::format("\"{}\" is {}", key, found->type_name()));
    return *found;
  }
  bool has(const char* key) const { return json_.contains(key); }
  std::int64_t count(const char* key) const { return whole(at(key, JsonType::number_unsigned), key); }
  std::string text(const char* key) const { return at(key, JsonType::string).get<std::string>(); }
  std::uint64_t sum(const char* key) const { return sum_of(at(key, JsonType::string).get<std::string>(), key); }
  std::map<std::string, std::uint64_t> sums(const char* key) const {
    std::map<std::string, std::uint64_t> out;
    for (const auto& [name, value] : at(key, JsonType::object).items()) {
      if (!value.is_string()) fail(fmt::format("\"{}\" has something else than checksums", key));
      out[name] = sum_of(value.get<std::string>(), key);
    }
    return out;
  }
  std::vector<std::int64_t> counts(const char* key) const { return counts_of(at(key, JsonType::array), key); }
  std::vector<std::int64_t> counts_of(const Json& list, const char* key) const {
    std::vector<std::int64_t> out;
    if (!list.is_array()) fail(fmt::format("\"{}\" is no list", key));
    for (const Json& number : list) out.push_back(whole(number, key));
    return out;
  }
  std::uint64_t sum_of(std::string_view text, const char* key) const {
    const auto number = parse_hex(text);
    if (!number) fail(fmt::format("\"{}\" has a checksum that is none", key));
    return *number;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", source_, what), kUseOlderCheckpoint);
  }
  const std::string& source() const { return source_; }

 private:
  std::int64_t whole(const Json& number, const char* key) const {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >> 62 != 0) {
      fail(fmt::format("\"{}\" has something else than counts", key));
    }
    return number.get<std::int64_t>();
  }

  const Json& json_;
  const std::string& source_;
};

Json part_json(const StoredPart& part) {
  std::string sums;
  for (const Checked& check : part.checks) sums += hex(check.sum);
  return {{"name", part.name}, {"bytes", part.bytes}, {"block", kCheckedBlock}, {"checksums", sums}};
}

StoredPart part_from(const Json& json, const std::string& source) {
  const Reader reader(json, source);
  StoredPart part{.name = reader.text("name"), .bytes = static_cast<std::uint64_t>(reader.count("bytes"))};
  const auto block = static_cast<std::uint64_t>(reader.count("block"));
  const std::string sums = reader.text("checksums");
  if (part.name.empty() || part.name.find('/') != std::string::npos) reader.fail("a part has no proper name");
  if (block == 0 || sums.size() != (part.bytes + block - 1) / block * 16) {
    reader.fail(fmt::format("part {} does not have a checksum for each of its blocks", shown(part.name)));
  }
  for (std::uint64_t begin = 0, at = 0; begin < part.bytes; begin += block, at += 16) {
    part.checks.push_back({.begin = begin,
                           .end = std::min(begin + block, part.bytes),
                           .sum = reader.sum_of(std::string_view(sums).substr(at, 16), "checksums")});
  }
  return part;
}

Json tensor_json(const StoredTensor& tensor) {
  Json slices = Json::array();
  for (const StoredSlice& slice : tensor.slices) {
    Json strips = Json::array();
    for (const Strip& strip : slice.strips) {
      Json numbers{strip.begin, strip.count};
      if (strip.times > 1) numbers.insert(numbers.end(), {strip.stride, strip.times});
      strips.push_back(std::move(numbers));
    }
    slices.push_back({{"part", slice.part}, {"at", slice.at}, {"strips", std::move(strips)}});
  }
  return {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"slices", std::move(slices)}};
}

/// The elements of the tensor: nothing when there are too many to number.
std::optional<std::int64_t> elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return count;
}

StoredTensor tensor_from(const std::string& name, const Json& json, const CheckpointManifest& manifest,
                         const std::string& source) {
  const Reader reader(json, source);
  const auto fail = [&](std::string_view why) { reader.fail(fmt::format("tensor {} {}", shown(name), why)); };
  const auto dtype = parse_dtype(reader.text("dtype"));
  if (!dtype || bits_of(*dtype) < 8) fail("has a type that is not known");
  StoredTensor tensor{.dtype = *dtype, .shape = reader.counts("shape"), .slices = {}};
  const auto all = elements_of(tensor.shape);
  if (!all) fail("has more elements than can be numbered");
  std::int64_t stored = 0;
  for (const Json& each : reader.at("slices", JsonType::array)) {
    const Reader about(each, source);
    StoredSlice slice{.part = static_cast<std::size_t>(about.count("part")),
                      .at = static_cast<std::uint64_t>(about.count("at")),
                      .strips = {}};
    for (const Json& numbers : about.at("strips", JsonType::array)) {
      const auto strip = about.counts_of(numbers, "strips");
      if (strip.size() != 2 && strip.size() != 4) fail("has a strip that is none");
      slice.strips.push_back({strip[0], strip[1]});
      if (strip.size() == 4) slice.strips.back() = {strip[0], strip[1], strip[2], strip[3]};
      const Strip& last = slice.strips.back();
      std::int64_t end = 0;
      if (last.times < 1 || last.count < 1 || __builtin_mul_overflow(last.stride, last.times - 1, &end) ||
          end > *all - last.begin - last.count || (last.times > 1 && last.stride < last.count)) {
        fail("has a strip outside of it");
      }
    }
    stored += slice.elements();
    if (slice.part >= manifest.parts.size() ||
        slice.at + static_cast<std::uint64_t>(slice.elements()) * tensor.element_bytes() >
            manifest.parts[slice.part].bytes) {
      fail("has a slice outside of its file");
    }
    tensor.slices.push_back(std::move(slice));
  }
  if (stored != *all) fail(fmt::format("has {} elements, but {} are stored", *all, stored));
  return tensor;
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::uint64_t checksum(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hex(std::uint64_t number) { return fmt::format("{:016x}", number); }

std::optional<std::uint64_t> parse_hex(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc{} || end != text.data() + text.size() || hex(number) != text) return std::nullopt;
  return number;
}

std::int64_t StoredSlice::elements() const {
  std::int64_t count = 0;
  for (const Strip& strip : strips) count += strip.count * strip.times;
  return count;
}

std::uint64_t StoredTensor::bytes() const {
  return static_cast<std::uint64_t>(elements_of(shape).value_or(0)) * element_bytes();
}

std::uint64_t CheckpointManifest::bytes() const {
  std::uint64_t sum = 0;
  for (const StoredPart& part : parts) sum += part.bytes;
  return sum;
}

std::string part_name(int rank, int ranks) {
  return ranks == 1 ? std::string(kStateFile) : fmt::format("state-{:05}-of-{:05}.safetensors", rank, ranks);
}

std::string manifest_text(const CheckpointManifest& manifest) {
  Json json{{"format", kFormat},
            {"version", kManifestVersion},
            {"program", manifest.program.empty() ? std::string(kVersion) : manifest.program},
            {"step", static_cast<std::uint64_t>(manifest.step)},
            {"tokens", static_cast<std::uint64_t>(manifest.tokens)},
            {"hash", hex(manifest.hash)},
            {"values", *manifest.values},
            {"files", checksums(manifest.files)}};
  if (manifest.metric) json["metric"] = *manifest.metric;
  json["parts"] = Json::array();
  for (const StoredPart& part : manifest.parts) json["parts"].push_back(part_json(part));
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) json["tensors"][name] = tensor_json(tensor);
  // A line for each key and each tensor: long lists of numbers stay in one line, which people can read past.
  const std::string sum = hex(checksum(json.dump()));
  std::string text = "{\n";
  for (const auto& [key, value] : json.items()) {
    if (key != "tensors" && key != "parts") {
      text += fmt::format(" {}: {},\n", Json(key).dump(), value.dump());
      continue;
    }
    const bool list = value.is_array();
    text += fmt::format(" {}: {}", Json(key).dump(), list ? "[" : "{");
    const char* separator = "\n  ";
    for (const auto& [name, entry] : value.items()) {
      text += separator + (list ? std::string() : Json(name).dump() + ": ") + entry.dump();
      separator = ",\n  ";
    }
    text += list ? "],\n" : "},\n";
  }
  return text + fmt::format(" \"checksum\": \"{}\"\n}}\n", sum);
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& source) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw FormatError(fmt::format("{}: is damaged: no JSON object", source), kUseOlderCheckpoint);
  const Reader reader(json, source);
  if (reader.at("format", JsonType::string) != kFormat) reader.fail("is no manifest of a checkpoint");
  const std::int64_t version = reader.count("version");
  if (version < 1 || version > kManifestVersion) {
    reader.fail(fmt::format("has version {}, but this program reads versions 1 to {}", version, kManifestVersion));
  }
  const std::uint64_t said = reader.sum("checksum");
  Json rest = json;
  rest.erase("checksum");
  if (checksum(rest.dump()) != said) reader.fail("is damaged: its content does not have its checksum");
  CheckpointManifest manifest{.version = static_cast<int>(version),
                              .program = reader.has("program") ? reader.text("program") : std::string(),
                              .step = reader.count("step"),
                              .tokens = reader.count("tokens"),
                              .hash = reader.sum("hash"),
                              .metric = {},
                              .values = JsonValue(reader.at("values", JsonType::object)),
                              .files = reader.sums("files"),
                              .parts = {},
                              .tensors = {},
                              .version1 = {}};
  if (version == 1) {
    manifest.version1 = Version1Sums{.header = reader.sum("header"), .tensors = reader.sums("tensors")};
    return manifest;
  }
  if (reader.has("metric")) {
    if (!json["metric"].is_number()) reader.fail("\"metric\" is not a number");
    manifest.metric = json["metric"].get<double>();
  }
  for (const Json& part : reader.at("parts", JsonType::array)) manifest.parts.push_back(part_from(part, source));
  for (const auto& [name, tensor] : reader.at("tensors", JsonType::object).items()) {
    manifest.tensors[name] = tensor_from(name, tensor, manifest, source);
  }
  return manifest;
}

std::vector<Strip> strips_of(std::span<const Strip> stretches) {
  std::vector<Strip> strips;
  for (const Strip& next : stretches) {
    if (!strips.empty()) {
      Strip& last = strips.back();
      if (last.times == 1 && next.times == 1 && last.begin + last.count == next.begin) {
        last.count += next.count;
        continue;
      }
      if (next.times == 1 && next.count == last.count && next.begin > last.begin) {
        if (last.times == 1) {
          last.stride = next.begin - last.begin;
          last.times = 2;
          continue;
        }
        if (next.begin == last.begin + last.stride * last.times) {
          ++last.times;
          continue;
        }
      }
    }
    strips.push_back(next);
  }
  return strips;
}

std::string slice_text(const StoredTensor& tensor, const StoredSlice& slice) {
  const auto& shape = tensor.shape;
  if (slice.strips.size() == 1 && !shape.empty()) {
    const Strip& strip = slice.strips[0];
    std::int64_t row = 1;  // elements of one index of dimension 0
    for (std::size_t i = 1; i < shape.size(); ++i) row *= shape[i];
    std::string rest;
    for (std::size_t i = 1; i < shape.size(); ++i) rest += fmt::format(", 0:{}", shape[i]);
    if (strip.times == 1 && strip.begin % row == 0 && strip.count % row == 0) {
      return fmt::format("[{}:{}{}]", strip.begin / row, (strip.begin + strip.count) / row, rest);
    }
    if (shape.size() == 2 && (strip.times == 1 || strip.stride == row) && strip.begin % row + strip.count <= row) {
      return fmt::format("[{}:{}, {}:{}]", strip.begin / row, strip.begin / row + strip.times, strip.begin % row,
                         strip.begin % row + strip.count);
    }
  }
  return slice.strips.empty() ? "nothing"
                              : fmt::format("{} elements from {} on", slice.elements(), slice.strips.front().begin);
}

}  // namespace trireme::formats
