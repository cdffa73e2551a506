// checkpoint/state_source.h -- where a state is read from: a checkpoint on the disk, or snapshots in ranks' memory.
//
// Depends on: formats, store.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/checkpoint/store.h"

namespace trireme::checkpoint {

class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual std::string name() const = 0;  ///< for people
  virtual const formats::CheckpointManifest& manifest() const = 0;
  /// Bytes of the manifest's parts to memory.
  virtual void fetch(std::vector<formats::Fetch> wanted, int threads) const = 0;
};

/// As load() of store.h.
void load_from(const StateSource& source, nn::State& state, LoadScope scope = LoadScope::kEverything, int threads = 2);

}  // namespace trireme::checkpoint
