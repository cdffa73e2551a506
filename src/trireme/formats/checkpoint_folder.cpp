#include "trireme/formats/checkpoint_folder.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "trireme/base/mapped_file.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "trireme checkpoint";
constexpr int kManifestVersion = 1;
constexpr std::uint64_t kMaxSmallFile = std::uint64_t{64} << 20;
constexpr const char* kOlder = "an older checkpoint of the run may be whole; --resume finds it by itself";

Json checksums(const std::map<std::string, std::uint64_t>& sums) {
  Json out = Json::object();
  for (const auto& [name, sum] : sums) out[name] = hex(sum);
  return out;
}

/// Reads members of a manifest; whatever is not there or not of its kind is one error.
class Reader {
 public:
  Reader(const Json& json, const std::string& source) : json_(json), source_(source) {}

  const Json& at(const char* key, Json::value_t type) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(fmt::format("there is no \"{}\"", key));
    if (found->type() != type) fail(fmt::format("\"{}\" is {}", key, found->type_name()));
    return *found;
  }
  std::int64_t count(const char* key) const { return at(key, Json::value_t::number_unsigned).get<std::int64_t>(); }
  std::uint64_t sum(const char* key) const { return sum_of(at(key, Json::value_t::string), key); }
  std::map<std::string, std::uint64_t> sums(const char* key) const {
    std::map<std::string, std::uint64_t> out;
    for (const auto& [name, value] : at(key, Json::value_t::object).items()) {
      if (!value.is_string()) fail(fmt::format("\"{}\" has something else than checksums", key));
      out[name] = sum_of(value, key);
    }
    return out;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", source_, what), kOlder);
  }

 private:
  std::uint64_t sum_of(const Json& value, const char* key) const {
    const auto number = parse_hex(value.get_ref<const std::string&>());
    if (!number) fail(fmt::format("\"{}\" has a checksum that is none", key));
    return *number;
  }

  const Json& json_;
  const std::string& source_;
};

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

std::string manifest_text(const CheckpointManifest& manifest) {
  Json json{{"format", kFormat},
            {"version", kManifestVersion},
            {"step", static_cast<std::uint64_t>(manifest.step)},
            {"tokens", static_cast<std::uint64_t>(manifest.tokens)},
            {"hash", hex(manifest.hash)},
            {"values", manifest.values},
            {"files", checksums(manifest.files)},
            {"header", hex(manifest.header)},
            {"tensors", checksums(manifest.tensors)}};
  json["checksum"] = hex(checksum(json.dump()));
  return json.dump(1) + "\n";
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& source) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw FormatError(fmt::format("{}: is damaged: no JSON object", source), kOlder);
  const Reader reader(json, source);
  if (reader.at("format", Json::value_t::string) != kFormat) reader.fail("is no manifest of a checkpoint");
  const std::int64_t version = reader.count("version");
  if (version != kManifestVersion) {
    reader.fail(fmt::format("has version {}, but this program reads version {}", version, kManifestVersion));
  }
  const std::uint64_t said = reader.sum("checksum");
  Json rest = json;
  rest.erase("checksum");
  if (checksum(rest.dump()) != said) reader.fail("is damaged: its content does not have its checksum");
  CheckpointManifest manifest{.step = reader.count("step"),
                              .tokens = reader.count("tokens"),
                              .hash = reader.sum("hash"),
                              .values = reader.at("values", Json::value_t::object),
                              .header = reader.sum("header"),
                              .tensors = reader.sums("tensors"),
                              .files = reader.sums("files")};
  return manifest;
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + 8) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc{} && at == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::vector<std::int64_t> list_checkpoints(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto step = checkpoint_step(entry->path().filename().string())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

CheckpointFolder::CheckpointFolder(fs::path path) : path_(std::move(path)) {
  const fs::path manifest = path_ / kManifestFile;
  manifest_ = parse_manifest(read_text_file(manifest, kMaxSmallFile), manifest.string());
  for (const auto& [name, sum] : manifest_.files) {
    std::string text = read_text_file(path_ / name, kMaxSmallFile);
    if (checksum(text) != sum) {
      throw FormatError(fmt::format("{}: is damaged: its content does not have its checksum", (path_ / name).string()),
                        kOlder);
    }
    texts_[name] = std::move(text);
  }
  state_.emplace(path_ / kStateFile);
  if (checksum(state_->header().text) != manifest_.header) {
    throw FormatError(fmt::format("{}: its header is damaged: it does not have its checksum", state_->path().string()),
                      kOlder);
  }
  for (const TensorInfo& tensor : state_->header().tensors) {
    if (!manifest_.tensors.contains(tensor.name)) {
      throw FormatError(
          fmt::format("{}: tensor {} is not in the manifest", state_->path().string(), shown(tensor.name)), kOlder);
    }
  }
}

std::span<const std::byte> CheckpointFolder::bytes(const TensorInfo& tensor) const {
  const auto bytes = state_->bytes(tensor);
  if (checksum(bytes) != manifest_.tensors.at(tensor.name)) {
    const std::uint64_t begin = header().data_begin() + tensor.begin;
    throw FormatError(fmt::format("{}: tensor {}, bytes {} to {}, is damaged: it does not have its checksum",
                                  state_->path().string(), shown(tensor.name), begin, begin + tensor.bytes()),
                      kOlder);
  }
  return bytes;
}

void CheckpointFolder::verify() const {
  for (const auto& [name, sum] : manifest_.tensors) {
    const TensorInfo* tensor = header().find(name);
    if (!tensor) {
      throw FormatError(fmt::format("{}: tensor {} is missing", state_->path().string(), shown(name)), kOlder);
    }
    bytes(*tensor);
  }
}

const std::string& CheckpointFolder::text(std::string_view file) const {
  const auto found = texts_.find(file);
  if (found == texts_.end()) throw FormatError(fmt::format("{}: there is no {}", path_.string(), file));
  return found->second;
}

std::optional<CheckpointFolder> newest_checkpoint(const fs::path& folder, std::vector<DamagedCheckpoint>& damaged) {
  const auto steps = list_checkpoints(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path path = folder / checkpoint_name(*step);
    try {
      CheckpointFolder checkpoint(path);
      checkpoint.verify();
      return checkpoint;
    } catch (const IoError& error) {
      damaged.push_back({path, error.message()});
    }
  }
  return std::nullopt;
}

void prune_checkpoints(const fs::path& folder, std::int64_t keep) {
  std::error_code error;
  std::vector<fs::path> unfinished;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".tmp") unfinished.push_back(entry->path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, error);
  if (keep <= 0) return;
  const auto steps = list_checkpoints(folder);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < steps.size(); ++i) {
    // Renamed first: half removed, it must not be taken for a checkpoint.
    const fs::path path = folder / checkpoint_name(steps[i]);
    fs::path gone = path;
    gone += ".tmp";
    fs::rename(path, gone, error);
    if (!error) fs::remove_all(gone, error);
  }
}

}  // namespace trireme::formats
