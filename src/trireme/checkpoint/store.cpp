#include "trireme/checkpoint/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/formats/safetensors_writer.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

formats::Dtype dtype_of(const nn::StateTensor& entry) {
  switch (entry.tensor.scalar_type()) {
    case at::kFloat:
      return formats::Dtype::kF32;
    case at::kDouble:
      return formats::Dtype::kF64;
    case at::kBFloat16:
      return formats::Dtype::kBF16;
    case at::kHalf:
      return formats::Dtype::kF16;
    case at::kLong:
      return formats::Dtype::kI64;
    case at::kInt:
      return formats::Dtype::kI32;
    default:
      throw InternalError(fmt::format("{} has a type that checkpoints do not store", entry.name));
  }
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// The global tensor from row to row is what this rank has in memory.
bool is_whole(const nn::StateTensor& entry) {
  return layout::runs(entry.placement) ==
             std::vector<layout::Run>{{.global = 0, .local = 0, .count = layout::elements(entry.placement.shape)}} ||
         layout::elements(entry.placement.shape) == 0;
}

formats::TensorSpec spec_of(const nn::StateTensor& entry) {
  return {.name = entry.name, .dtype = dtype_of(entry), .shape = entry.placement.shape};
}

/// The folder under its temporary name; removed unless it was published.
class NewFolder {
 public:
  explicit NewFolder(fs::path path) : path_(std::move(path)), temporary_(path_.string() + ".tmp") {
    std::error_code error;
    fs::remove_all(temporary_, error);
    fs::create_directories(temporary_, error);
    if (error) throw IoError(fmt::format("{} cannot be made: {}", temporary_.string(), error.message()));
  }
  ~NewFolder() {
    std::error_code error;
    if (!published_) fs::remove_all(temporary_, error);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& temporary() const { return temporary_; }
  void publish() {
    sync_folder(temporary_);
    // One that is there already changes places with the new one in a single step; where the file system cannot do that,
    // it is put aside first.
    std::error_code error;
    if (fs::exists(path_) && renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
      fs::remove_all(temporary_, error);
    } else {
      const fs::path old = path_.string() + ".old.tmp";
      fs::remove_all(old, error);
      if (fs::exists(path_)) fs::rename(path_, old, error);
      fs::rename(temporary_, path_, error);
      if (error) throw IoError(fmt::format("{} cannot be renamed: {}", temporary_.string(), error.message()));
      fs::remove_all(old, error);
    }
    published_ = true;
    sync_folder(path_.parent_path());
  }

 private:
  fs::path path_, temporary_;
  bool published_ = false;
};

void check_same(const formats::CheckpointFolder& checkpoint, const std::vector<const nn::StateTensor*>& wanted,
                const std::vector<const nn::StateValue*>& values) {
  std::vector<std::string> problems;
  for (const nn::StateTensor* entry : wanted) {
    const formats::TensorInfo* stored = checkpoint.header().find(entry->name);
    if (!stored) {
      problems.push_back(fmt::format("{} is missing", entry->name));
    } else if (static_cast<const formats::TensorSpec&>(*stored) != spec_of(*entry)) {
      problems.push_back(fmt::format("{} is {} there and {} here", entry->name, formats::to_text(*stored),
                                     formats::to_text(spec_of(*entry))));
    }
  }
  for (const nn::StateValue* entry : values) {
    if (!checkpoint.manifest().values.contains(entry->name)) {
      problems.push_back(fmt::format("{} is missing", entry->name));
    }
  }
  if (problems.empty()) return;
  const std::size_t shown = std::min<std::size_t>(problems.size(), 5);
  throw ConfigError(
      fmt::format("{} is of another run: {}{}", checkpoint.path().string(),
                  fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(shown), "; "),
                  shown < problems.size() ? fmt::format("; and {} more", problems.size() - shown) : std::string()),
      "model, optimizer and precision must be those that it was written with");
}

}  // namespace

fs::path save(const nn::State& state, const SaveRequest& request) {
  const std::string name = request.name.empty() ? formats::checkpoint_name(request.step) : request.name;
  const fs::path path = request.folder / name;
  std::vector<formats::TensorSpec> specs;
  for (const nn::StateTensor& entry : state.tensors()) {
    TRIREME_CHECK(is_whole(entry), "{} is not held whole by the rank that writes the checkpoint", entry.name);
    specs.push_back(spec_of(entry));
  }
  formats::CheckpointManifest manifest{
      .step = request.step, .tokens = request.tokens, .values = nlohmann::ordered_json::object()};
  manifest.hash = nn::total_hash(nn::hash_shares(state, layout::Mesh{}, 0));
  for (const nn::StateValue& value : state.values()) manifest.values[value.name] = value.get();

  NewFolder folder(path);
  formats::SafetensorsWriter writer(folder.temporary() / formats::kStateFile,
                                    formats::make_safetensors_header(specs, formats::Metadata{{"format", "pt"}}));
  manifest.header = formats::checksum(writer.header().text);
  for (const std::uint32_t at : writer.header().by_offset) {
    const std::string& tensor = writer.header().tensors[at].name;
    const at::Tensor host = state.at(tensor).tensor.cpu();
    manifest.tensors[tensor] = formats::checksum(bytes_of(host));
    writer.write(tensor, bytes_of(host));
  }
  writer.finish();
  for (const auto& [file, text] : request.files) {
    write_text_file(folder.temporary() / file, text);
    manifest.files[file] = formats::checksum(text);
  }
  write_text_file(folder.temporary() / formats::kManifestFile, formats::manifest_text(manifest));
  folder.publish();
  return path;
}

void load(const formats::CheckpointFolder& checkpoint, nn::State& state, What what) {
  std::vector<const nn::StateTensor*> tensors;
  for (const nn::StateTensor& entry : state.tensors()) {
    if (what == What::kEverything || entry.name.starts_with("param/")) tensors.push_back(&entry);
  }
  std::vector<const nn::StateValue*> values;
  if (what == What::kEverything) {
    for (const nn::StateValue& entry : state.values()) values.push_back(&entry);
  }
  check_same(checkpoint, tensors, values);
  for (const nn::StateTensor* entry : tensors) {
    const std::span<const std::byte> bytes = checkpoint.bytes(*checkpoint.header().find(entry->name));
    const auto element = static_cast<std::size_t>(entry->tensor.element_size());
    at::Tensor host = entry->tensor.cpu();  // the same tensor where it is there already
    auto* out = static_cast<std::byte*>(host.mutable_data_ptr());
    for (const layout::Run& run : layout::runs(entry->placement)) {
      std::memcpy(out + static_cast<std::size_t>(run.local) * element,
                  bytes.data() + static_cast<std::size_t>(run.global) * element,
                  static_cast<std::size_t>(run.count) * element);
    }
    if (!host.is_same(entry->tensor)) entry->tensor.copy_(host);
  }
  for (const nn::StateValue* entry : values) entry->set(checkpoint.manifest().values.at(entry->name));
}

}  // namespace trireme::checkpoint
