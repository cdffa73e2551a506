// formats/hf_writer.h -- Hugging Face model folders out: first what goes where, as a value, then the tensors.
//
//   HfWriter writer("out", plan_hf(specs, config, {}));              split anew, as the standard writer splits
//   HfWriter writer("out", plan_hf_like(source, specs, config));     split as `source` is
//   for (...) writer.write(name, bytes);
//   writer.finish();
//
// The folder is written under another name and renamed when it is whole and on the disk.
// Depends on: base, formats/hf_directory, formats/safetensors_writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/formats/hf_directory.h"
#include "trireme/formats/safetensors_writer.h"

namespace trireme::formats {

struct HfShard {
  std::string file;
  SafetensorsHeader header;
};

/// A folder before its tensors.
struct HfPlan {
  std::vector<HfShard> shards;
  std::optional<std::string> index;  ///< the index's text; none for one file
  std::string config;                ///< the text of config.json
};

struct HfSplit {
  std::uint64_t max_shard_bytes = 5'000'000'000;            ///< a tensor larger than this has a file of its own
  std::optional<Metadata> metadata = {{{"format", "pt"}}};  ///< of every file; readers look for this format
  std::optional<std::int64_t> total_parameters = {};        ///< for the index
};

/// Takes the tensors in the order given and begins a new file where the next one would be too much, as the standard
/// writer does.
HfPlan plan_hf(const std::vector<TensorSpec>& specs, const HfConfig& config, const HfSplit& split);
/// The files of `source` again: byte for byte when all is written that it holds.
HfPlan plan_hf_like(const HfDirectory& source);
/// The same split with other types or shapes; headers and index stay the same bytes where they say the same.
/// ConfigError when a name is not in both.
HfPlan plan_hf_like(const HfDirectory& source, const std::vector<TensorSpec>& specs, const HfConfig& config);

class HfWriter {
 public:
  /// ConfigError when `path` exists and is no empty folder.
  HfWriter(std::filesystem::path path, HfPlan plan);
  ~HfWriter();
  HfWriter(const HfWriter&) = delete;
  HfWriter& operator=(const HfWriter&) = delete;

  /// The next bytes of a tensor, as SafetensorsWriter::write(). A file is closed when its last byte is there.
  void write(std::string_view name, std::span<const std::byte> bytes);
  /// What belongs beside the weights: tokenizer.json, generation_config.json.
  void add_file(std::string_view name, std::string_view text);
  /// InternalError naming a tensor when some bytes were not written.
  void finish();

 private:
  SafetensorsWriter& writer_of(std::size_t shard);
  void close(std::size_t shard);

  std::filesystem::path path_, temporary_;
  HfPlan plan_;
  std::map<std::string, std::size_t, std::less<>> shard_of_;  // tensor -> shard
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;   // [shard]: null before its first byte and after its last
  std::vector<bool> closed_;                                  // [shard]
};

/// The texts that belong to a model beside its weights and configuration: tokenizer, generation settings, chat
/// template.
std::vector<std::filesystem::path> hf_companions(const std::filesystem::path& folder);

/// Writes `source` again to `path`: the same split and bytes, or another split.
void copy_hf(const HfDirectory& source, const std::filesystem::path& path, const std::optional<HfSplit>& split = {});

}  // namespace trireme::formats
