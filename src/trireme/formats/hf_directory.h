// formats/hf_directory.h -- a Hugging Face model folder: config.json and safetensors files, whole or split.
//
//   const HfDirectory model("models/llama");
//   model.config().get<std::int64_t>("hidden_size");
//   const HfTensor& wte = model.tensor("model.embed_tokens.weight");    wte.info->shape, wte.bytes()
//
// SpeculationWindow reads headers only. All files are checked against each other: a model that opens has every tensor
// that its index names, in the file that the index names, and no other. Where model.safetensors stands beside an index,
// it is taken, as the standard reader does. hf_writer.h writes.
// Depends on: base, formats/safetensors, formats/hf_config, formats/hf_index.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "trireme/formats/hf_config.h"
#include "trireme/formats/hf_index.h"
#include "trireme/formats/safetensors.h"

namespace trireme::formats {

struct HfTensor {
  const TensorInfo* info;
  const SafetensorsFile* file;
  std::span<const std::byte> bytes() const { return file->bytes(*info); }
};

class HfDirectory {
 public:
  /// FormatError with everything that does not fit together, IoError for what cannot be read.
  explicit HfDirectory(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const HfConfig& config() const { return config_; }
  std::span<const SafetensorsFile> files() const { return files_; }
  const std::optional<HfIndex>& index() const { return index_; }
  /// Every tensor, file after file, in the order of their headers. Pointers are valid while this object, or what it was
  /// moved to, lives.
  std::span<const HfTensor> tensors() const { return tensors_; }
  /// Null when there is none of that name.
  const HfTensor* find(std::string_view name) const;
  /// FormatError naming what is near when there is none of that name.
  const HfTensor& tensor(std::string_view name) const;

 private:
  void open_split();

  std::filesystem::path path_;
  HfConfig config_;
  std::optional<HfIndex> index_;
  std::vector<SafetensorsFile> files_;
  std::vector<HfTensor> tensors_;
  std::vector<std::size_t> by_name_;  // positions in tensors_
};

}  // namespace trireme::formats
