// train/run/model_on_ranks.h -- a stored model on the ranks of a world, to be looked at rather than trained: each copy
// on `tp` of them.
//
// Depends on: checkpoint, comm, parallel, spec.
#pragma once

#include <filesystem>
#include <memory>

#include "trireme/checkpoint/open_model.h"
#include "trireme/comm/group.h"
#include "trireme/parallel/parallel_groups.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

struct ModelOnRanks {
  std::unique_ptr<parallel::ParallelGroups> groups;
  checkpoint::OpenedModel opened;
};

/// On all ranks together; each reads its own shards. A ProblemsError where the model cannot be split so.
ModelOnRanks open_on_ranks(const std::filesystem::path& model, int tp, spec::Precision precision,
                           spec::DeviceKind device, comm::Group& world);

}  // namespace trireme::train
