// formats/checkpoint_folder.h -- a checkpoint on the disk: what is in it, whether it is whole, which is the newest.
//
//   RUN/checkpoints/step-00000020/
//     manifest.json        step, values, every tensor and file with its checksum
//     state.safetensors    the tensors
//     recipe.toml          what the run was
//
// A folder is written under a name that ends in ".tmp" and renamed when all of it is on the disk: a name without that
// ending is whole, unless the disk lost something; the checksums say. The checkpoint room fills and reads tensors.
// Depends on: base, formats/safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/safetensors.h"

namespace trireme::formats {

inline constexpr std::string_view kManifestFile = "manifest.json", kStateFile = "state.safetensors",
                                  kRecipeFile = "recipe.toml";

/// XXH3, 64 bits.
std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);
/// 16 hexadecimal digits, and back; nothing when it is something else.
std::string hex(std::uint64_t number);
std::optional<std::uint64_t> parse_hex(std::string_view text);

struct CheckpointManifest {
  std::int64_t step = 0, tokens = 0;
  std::uint64_t hash = 0;                        ///< of the whole state
  nlohmann::ordered_json values;                 ///< what the State registry holds beside tensors, by name
  std::uint64_t header = 0;                      ///< checksum of the tensor file's header
  std::map<std::string, std::uint64_t> tensors;  ///< name -> checksum of its bytes
  std::map<std::string, std::uint64_t> files;    ///< small files beside the tensors
};

/// The text of manifest.json, with a checksum of its own.
std::string manifest_text(const CheckpointManifest& manifest);
/// FormatError with `source` when it is damaged, of another version, or no manifest.
CheckpointManifest parse_manifest(std::string_view text, const std::string& source);

/// "step-00000020".
std::string checkpoint_name(std::int64_t step);
/// The step of such a name.
std::optional<std::int64_t> checkpoint_step(std::string_view name);
/// The steps of the folders with such names in `folder`, ascending. None when it does not exist.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);

/// A checkpoint that was opened: its manifest was read and every small file and the tensor file's header checked.
class CheckpointFolder {
 public:
  /// FormatError or IoError naming the file that is damaged or missing.
  explicit CheckpointFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  const SafetensorsHeader& header() const { return state_->header(); }
  /// The tensor's bytes, checked against their checksum.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;
  /// Every byte of every tensor.
  void verify() const;
  /// A small file's text, as it was when the checkpoint was opened.
  const std::string& text(std::string_view file) const;

 private:
  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::map<std::string, std::string, std::less<>> texts_;
  std::optional<SafetensorsFile> state_;
};

/// The newest in `folder` that is whole to the last byte. Those that are not are told to `damaged` and left alone.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string why;
};
std::optional<CheckpointFolder> newest_checkpoint(const std::filesystem::path& folder,
                                                  std::vector<DamagedCheckpoint>& damaged);

/// Removes all but the newest `keep`, and what writers that died have left. 0: all stay.
void prune_checkpoints(const std::filesystem::path& folder, std::int64_t keep);

}  // namespace trireme::formats
