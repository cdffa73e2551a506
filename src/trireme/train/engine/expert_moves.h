// train/engine/expert_moves.h -- experts that go to other ranks between two steps, with all that is kept of them.
//
// Where experts lie is decided from the loads (nn/moe/balance.h); here it is carried out. Every tensor of an expert's
// parameter, its masters, values and optimizer state, whatever ZeRO leaves a rank of each, goes as a reshard plan says
// (layout/reshard.h) from where it is to where it will be, among the ranks that hold the layer; what offload keeps on
// the host goes by way of the device. Its placement says so from then on, so that checkpoints, hashes and comparisons
// go by the number of an expert as before.
// Depends on: comm, layout, nn, observe, parallel.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/layout/placement.h"
#include "trireme/nn/moe/balance.h"
#include "trireme/nn/state.h"
#include "trireme/observe/step_record.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/updates.h"

namespace trireme::train {

class ExpertMoves {
 public:
  /// On all ranks together, before the first step: experts lie in the order of their numbers. All are borrowed.
  ExpertMoves(Engine& engine, Updates& updates, nn::State& state, comm::Group& world);

  /// What layers have decided. `loads`: of the whole model, the same on all ranks. On all ranks together, at rest.
  observe::ExpertsMoved carry_out(std::span<const nn::moe::LayerLoads> loads);

 private:
  /// One parameter on one rank of the group.
  struct Holder {
    std::int64_t part = 0;  ///< which of the equal parts of places it has
    layout::Placement placement;
  };
  struct Moved {
    nn::Param* layers = nullptr;  ///< as layers compute with it; owned: as it is updated
    nn::Param* owned = nullptr;
    std::vector<Holder> holders;  ///< by rank of the group; of what is owned
  };
  void find(const std::string& name);
  void move(Moved& param, const nn::moe::ExpertLoads& layer);

  Engine& engine_;
  Updates& updates_;
  nn::State& state_;
  comm::Group& world_;
  comm::Group* group_ = nullptr;  ///< that hold the same layers, apart from copies of whole ones
  std::vector<Moved> params_;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace trireme::train
