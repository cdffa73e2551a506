// spec/server_updates.h -- what parameter servers do: which of the optimizers' updates, and L-BFGS.
//
// Depends on: optim.h.
#pragma once

#include "trireme/spec/optim.h"

namespace trireme::spec {

/// Whether servers can apply a push by it: it goes through elements one by one, wherever their keys are, and what it
/// updates is what is evaluated.
bool servers_update_by(OptimizerKind kind);
/// Numbers that a server keeps of each key: the weight, and what its update remembers.
int server_planes(const OptimConfig& optim);

// train.mode = "sandblaster", as in Dean et al. 2012.
inline constexpr int kSandblasterPortions = 50;  ///< of the batch, for each rank
inline constexpr int kSandblasterVectors = 25;   ///< weights, gradients, the direction, and ten pairs

}  // namespace trireme::spec
