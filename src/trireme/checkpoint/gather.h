// checkpoint/gather.h -- the whole state on one rank, when every rank holds some of its tensors, or parts of them.
//
// For checkpoints that one rank writes and for hashes.
// Depends on: base, comm, device, layout, nn.
#pragma once

#include "trireme/comm/group.h"
#include "trireme/nn/state.h"

namespace trireme::checkpoint {

/// On rank 0 of the group, the tensors of all ranks by name, each once, sorted, and rank 0's values; empty elsewhere.
/// Rank 0's own tensors are shared, the others are copies. Called by all ranks of the group together. `state` must
/// outlive what is returned.
nn::State gather_whole(const nn::State& state, comm::Group& group);

}  // namespace trireme::checkpoint
