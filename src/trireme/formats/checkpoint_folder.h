// formats/checkpoint_folder.h -- a checkpoint on the disk: what is in it, whether it is whole, which is the newest.
//
//   RUN/checkpoints/step-00000020/
//     manifest.json                       step, values, where every element is, checksums: checkpoint_manifest.h
//     state-00000-of-00004.safetensors    what a rank wrote; state.safetensors when one rank wrote all
//     recipe.toml                         what the run was
//
// A folder is written under a name that ends in ".tmp" and renamed when all of it is on the disk: a name without that
// ending is whole, unless the disk lost something; the checksums say. The checkpoint room fills and reads tensors.
// Depends on: base, formats/checkpoint_manifest, formats/safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/checkpoint_manifest.h"

namespace trireme::formats {

/// "step-00000020".
std::string checkpoint_name(std::int64_t step);
/// The step of such a name.
std::optional<std::int64_t> checkpoint_step(std::string_view name);
/// The steps of the folders with such names in `folder`, ascending. None when it does not exist.
std::vector<std::int64_t> list_checkpoints(const std::filesystem::path& folder);

/// Bytes from `at` of a part on, to memory.
struct Fetch {
  std::size_t part = 0;
  std::uint64_t at = 0, bytes = 0;
  std::byte* to = nullptr;
};

/// A share of the blocks of a checkpoint: `index` of `count`.
struct BlockShare {
  int index = 0, count = 1;
};

/// A checkpoint that was opened: its manifest was read, every small file checked, and all parts have their size.
class CheckpointFolder {
 public:
  /// FormatError or IoError naming the file that is damaged or missing.
  explicit CheckpointFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  std::filesystem::path part_path(std::size_t part) const { return path_ / manifest_.parts[part].name; }

  /// Reads just the blocks that hold these bytes, each once and checked, with so many threads; memory: a block a thread
  /// beside the targets. FormatError naming file, bytes and tensors when a block is damaged: targets are then
  /// undefined.
  void fetch(std::vector<Fetch> wanted, int threads = 2) const;
  /// A tensor as a whole. FormatError naming a close one when there is none.
  std::vector<std::byte> read(std::string_view name) const;
  const StoredTensor& tensor(std::string_view name) const;
  /// Every byte of every part, or this share of them.
  void verify(BlockShare share = {}, int threads = 2) const;
  /// A small file's text, as it was when the checkpoint was opened.
  const std::string& text(std::string_view file) const;

 private:
  void take_version1();
  [[noreturn]] void refuse_block(std::size_t part, const Checked& check, std::string_view why) const;

  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::map<std::string, std::string, std::less<>> texts_;
};

/// The bytes that hold elements [begin, end) of a tensor, as fetches into memory where element `begin` is at `to`.
void add_fetches(const StoredTensor& tensor, std::int64_t begin, std::int64_t end, std::byte* to,
                 std::vector<Fetch>& fetches);

/// The newest in `folder` that is whole to the last byte. Those that are not are told to `damaged` and left alone.
struct DamagedCheckpoint {
  std::filesystem::path path;
  std::string why;
};
std::optional<CheckpointFolder> newest_checkpoint(const std::filesystem::path& folder,
                                                  std::vector<DamagedCheckpoint>& damaged);

/// Which checkpoints stay; what any rule keeps stays.
struct KeepRules {
  std::int64_t last = 0;   ///< the newest so many; 0: all
  std::int64_t every = 0;  ///< those whose step is a multiple; 0: none for that
  std::int64_t best = 0;   ///< those with the lowest metric
};
/// Removes what no rule keeps. Gives the steps that went.
std::vector<std::int64_t> prune_checkpoints(const std::filesystem::path& folder, const KeepRules& rules);
/// Removes one, so that half of it is never taken for a checkpoint. False: it cannot be.
bool remove_checkpoint(const std::filesystem::path& folder, std::int64_t step);
/// Removes what writers that died have left. Only while nobody writes there.
void sweep_unfinished(const std::filesystem::path& folder);

}  // namespace trireme::formats
