// formats/checkpoint_rewrite.h -- a checkpoint out of a stream, as another number of files, or as one safetensors file.
//
// Streams: a few megabytes of memory, however large the checkpoint. Training never needs this, any layout reads any
// checkpoint; it is for moving them, for fewer or more files, and for other tools.
// Depends on: base, formats/checkpoint_folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "trireme/formats/checkpoint_folder.h"

namespace trireme::formats {

/// A checkpoint whose tensors come piece by piece.
struct CheckpointStream {
  CheckpointManifest manifest;               ///< without parts; tensors with types and shapes, without slices
  std::map<std::string, std::string> files;  ///< texts that belong to it: "recipe.toml"
  /// Elements [begin, end) of a tensor, row by row, to memory. Each element is asked for once.
  std::function<void(const std::string& name, std::int64_t begin, std::int64_t end, std::byte* to)> read;
  /// Asked when all was read, for the manifest's hash; without it that stays as given.
  std::function<std::uint64_t()> hash = {};
};
/// Writes it with `parts` files of about equal size to `to`, which must not be there, with a few megabytes of memory.
void write_streamed(CheckpointStream stream, const std::filesystem::path& to, int parts);

/// Writes the same checkpoint with `parts` files of about equal size to `to`, which must not be there. Every byte is
/// checked as it is read.
void reshard_checkpoint(const CheckpointFolder& from, const std::filesystem::path& to, int parts);

enum class Export : bool {
  kEverything,  ///< every tensor under its name in the state: "param/wte", "optim/m/wte"
  kWeights,     ///< parameters only, by their own names: "wte"
};
/// Writes one safetensors file with whole tensors. Gives how many. ConfigError when `to` is there already.
std::int64_t export_checkpoint(const CheckpointFolder& from, const std::filesystem::path& to, Export what);

}  // namespace trireme::formats
