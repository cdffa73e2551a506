#include "trireme/formats/hf_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

namespace fs = std::filesystem;

std::uint64_t stored_bytes(const TensorSpec& spec) {
  const auto bytes = bytes_of(spec);
  if (!bytes) throw ConfigError(fmt::format("tensor {}: {} cannot be stored", shown(spec.name), to_text(spec)));
  return *bytes;
}

/// The tensors of each file, in the order of the files. The rule of the standard writer: a tensor that is too large by
/// itself is a file, and does not end the one that is being filled.
std::vector<std::vector<TensorSpec>> split_greedily(const std::vector<TensorSpec>& specs, std::uint64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> shards;
  std::vector<TensorSpec> filling;
  std::uint64_t filled = 0;
  for (const TensorSpec& spec : specs) {
    const std::uint64_t bytes = stored_bytes(spec);
    if (bytes > max_bytes) {
      shards.push_back({spec});
      continue;
    }
    if (filled + bytes > max_bytes) {
      shards.push_back(std::exchange(filling, {}));
      filled = 0;
    }
    filling.push_back(spec);
    filled += bytes;
  }
  if (!filling.empty() || shards.empty()) shards.push_back(std::move(filling));
  return shards;
}

std::uint64_t total_bytes(const HfPlan& plan) {
  std::uint64_t total = 0;
  for (const HfShard& shard : plan.shards) total += shard.header.data_bytes();
  return total;
}

std::vector<std::pair<std::string, std::string>> weight_map(const HfPlan& plan) {
  std::vector<std::pair<std::string, std::string>> map;
  for (const HfShard& shard : plan.shards) {
    for (const TensorInfo& tensor : shard.header.tensors) map.emplace_back(tensor.name, shard.file);
  }
  return map;
}

/// The header that holds the specs: the file's own where it says the same, so that its bytes stay.
SafetensorsHeader header_like(const SafetensorsHeader& old, std::vector<TensorSpec> specs) {
  const bool same = std::ranges::all_of(specs, [&](const TensorSpec& spec) {
    const TensorInfo* tensor = old.find(spec.name);
    return tensor != nullptr && static_cast<const TensorSpec&>(*tensor) == spec;
  });
  return same && specs.size() == old.tensors.size() ? old : make_safetensors_header(std::move(specs), old.metadata);
}

}  // namespace

HfPlan plan_hf(const std::vector<TensorSpec>& specs, const HfConfig& config, const HfSplit& split) {
  HfPlan plan;
  plan.config = config.text();
  auto shards = split_greedily(specs, split.max_shard_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    plan.shards.push_back(
        {hf_shard_name(i + 1, shards.size()), make_safetensors_header(std::move(shards[i]), split.metadata)});
  }
  if (plan.shards.size() > 1) {
    plan.index = make_hf_index({.total_size = static_cast<std::int64_t>(total_bytes(plan)),
                                .total_parameters = split.total_parameters},
                               weight_map(plan))
                     .text;
  }
  return plan;
}

HfPlan plan_hf_like(const HfDirectory& source) {
  HfPlan plan;
  plan.config = source.config().text();
  for (const SafetensorsFile& file : source.files())
    plan.shards.push_back({file.path().filename().string(), file.header()});
  if (source.index()) plan.index = source.index()->text;
  return plan;
}

HfPlan plan_hf_like(const HfDirectory& source, const std::vector<TensorSpec>& specs, const HfConfig& config) {
  std::map<const SafetensorsFile*, std::vector<TensorSpec>> of_file;
  for (const TensorSpec& spec : specs) {
    const HfTensor* tensor = source.find(spec.name);
    if (tensor == nullptr)
      throw ConfigError(fmt::format("tensor {} is not in {}, so its split has no file for it", shown(spec.name),
                                    source.path().string()),
                        "split anew with a size limit");
    of_file[tensor->file].push_back(spec);
  }
  HfPlan plan;
  plan.config = config.text();
  bool same = true;
  for (const SafetensorsFile& file : source.files()) {
    plan.shards.push_back({file.path().filename().string(), header_like(file.header(), of_file[&file])});
    const SafetensorsHeader& header = plan.shards.back().header;
    for (const TensorInfo& tensor : file.header().tensors) {
      if (header.find(tensor.name) == nullptr)
        throw ConfigError(fmt::format("tensor {} of {} is not among the {} to be written", shown(tensor.name),
                                      source.path().string(), specs.size()),
                          "split anew with a size limit");
    }
    same = same && header.data_bytes() == file.header().data_bytes();
  }
  if (source.index()) {
    plan.index = same ? source.index()->text
                      : make_hf_index({.total_size = static_cast<std::int64_t>(total_bytes(plan)),
                                       .others = source.index()->metadata},
                                      weight_map(plan))
                            .text;
  }
  return plan;
}

HfWriter::HfWriter(fs::path path, HfPlan plan)
    : path_(path.has_filename() ? std::move(path) : path.parent_path()),
      plan_(std::move(plan)),
      writers_(plan_.shards.size()),
      closed_(plan_.shards.size()) {
  for (std::size_t i = 0; i < plan_.shards.size(); ++i) {
    for (const TensorInfo& tensor : plan_.shards[i].header.tensors) {
      if (!shard_of_.emplace(tensor.name, i).second)
        throw ConfigError(fmt::format("tensor {} is to be written twice", shown(tensor.name)));
    }
  }
  std::error_code failed;
  if (fs::exists(path_) && !fs::is_empty(path_, failed))
    throw ConfigError(fmt::format("{} exists and is no empty folder; a model is never written over", path_.string()),
                      "name a new folder, or move the old one away");
  for (int number = 0;; ++number) {
    temporary_ = fmt::format("{}.{}-{}.tmp", path_.string(), ::getpid(), number);
    if (::mkdir(temporary_.c_str(), 0777) == 0) break;
    if (errno != EEXIST)
      throw IoError(fmt::format("{}: cannot be created: {}", path_.string(), std::strerror(errno)),
                    "name a folder in one that exists and can be written to");
  }
}

HfWriter::~HfWriter() {
  if (temporary_.empty()) return;
  writers_.clear();
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

SafetensorsWriter& HfWriter::writer_of(std::size_t shard) {
  auto& writer = writers_[shard];
  if (!writer)
    writer = std::make_unique<SafetensorsWriter>(temporary_ / plan_.shards[shard].file, plan_.shards[shard].header);
  return *writer;
}

void HfWriter::close(std::size_t shard) {
  writer_of(shard).finish();
  writers_[shard].reset();
  closed_[shard] = true;
}

void HfWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = shard_of_.find(name);
  TRIREME_CHECK(found != shard_of_.end(), "{} has no place for a tensor {}", path_.string(), shown(name));
  if (bytes.empty()) return;  // nothing to do, perhaps after its file was closed
  TRIREME_CHECK(!closed_[found->second], "tensor {} has all its bytes already", shown(name));
  SafetensorsWriter& writer = writer_of(found->second);
  writer.write(name, bytes);
  if (writer.complete()) close(found->second);
}

void HfWriter::add_file(std::string_view name, std::string_view text) {
  TRIREME_CHECK(!fs::exists(temporary_ / name), "{} is written twice", name);
  write_text_file(temporary_ / name, text);
}

void HfWriter::finish() {
  for (std::size_t shard = 0; shard < closed_.size(); ++shard) {
    if (!closed_[shard]) close(shard);  // only tensors without elements, or something is missing and this says what
  }
  if (plan_.index) add_file(kHfIndex, *plan_.index);
  add_file("config.json", plan_.config);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw IoError(fmt::format("{}: cannot be given its name: {}", path_.string(), std::strerror(errno)));
  temporary_.clear();
  sync_folder(path_.parent_path());
}

std::vector<fs::path> hf_companions(const fs::path& folder) {
  static constexpr std::array<std::string_view, 7> kKinds = {".json",     ".jinja", ".model", ".txt",
                                                             ".tiktoken", ".md",    ".py"};
  std::vector<fs::path> companions;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == "config.json" || name.ends_with(".index.json");
    const bool kind = std::ranges::any_of(kKinds, [&](std::string_view end) { return name.ends_with(end); });
    if (entry.is_regular_file() && kind && !ours) companions.push_back(entry.path());
  }
  std::ranges::sort(companions);
  return companions;
}

void copy_hf(const HfDirectory& source, const fs::path& path, const std::optional<HfSplit>& split) {
  std::vector<TensorSpec> specs;
  for (const HfTensor& tensor : source.tensors()) specs.push_back(*tensor.info);
  HfWriter writer(path, split ? plan_hf(specs, source.config(), *split) : plan_hf_like(source));
  for (const SafetensorsFile& file : source.files()) {
    file.check_size();
    for (const std::uint32_t i : file.header().by_offset) {
      const TensorInfo& tensor = file.header().tensors[i];
      writer.write(tensor.name, file.bytes(tensor));
    }
  }
  for (const fs::path& companion : hf_companions(source.path()))
    writer.add_file(companion.filename().string(), MappedFile(companion).text());
  writer.finish();
}

}  // namespace trireme::formats
