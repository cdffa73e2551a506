// checkpoint/store.h -- a state to the disk and back.
//
//   save(state, {.folder = run / "checkpoints", .step = 20, ...});      one process, which holds every tensor whole
//   load(CheckpointFolder(path), state);                                every rank, whatever its layout
//
// What is stored is what the State registry holds, nothing else. Ranks that save together: saver.h.
// Depends on: base, formats, layout, nn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/save_plan.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/nn/state.h"

namespace trireme::checkpoint {

struct SaveRequest {
  std::filesystem::path folder;  ///< that holds the checkpoints of the run
  std::string name;              ///< of this one; empty: by its step
  std::int64_t step = 0, tokens = 0;
  std::optional<double> metric;              ///< what the best is chosen by
  std::map<std::string, std::string> files;  ///< texts that belong to it: "recipe.toml"
};

/// Writes everything, brings it to the disk and renames it into place; gives its path. One that is there under the same
/// name is replaced. Every element must be held by this process: an InternalError naming one otherwise.
std::filesystem::path save(const nn::State& state, const SaveRequest& request);

enum class LoadScope {
  kEverything,
  kWeights,  ///< parameters and biases of routers only: to generate, evaluate, or begin anew from them
};
/// Reads into the tensors and values that `state` has, just the blocks that hold them. A ConfigError lists what is
/// missing or has another shape or type, and nothing has changed then; FormatError when bytes are damaged, and the
/// tensors are undefined then. The caller publishes parameters.
void load(const formats::CheckpointFolder& checkpoint, nn::State& state, LoadScope scope = LoadScope::kEverything,
          int threads = 2);

/// What this rank holds, for plan_save().
std::vector<HeldTensor> holdings_of(const nn::State& state);

}  // namespace trireme::checkpoint
