// train/servers/server_rule.h -- what a server does with a push: the optimizer's own kernels, on the server's numbers.
//
// So that one replica, which fetches and pushes in every step, is serial training to the bit.
// Depends on: kernels, ps, spec.
#pragma once

#include <memory>

#include "trireme/ps/update_rule.h"
#include "trireme/spec/optim.h"

namespace trireme::train {

/// Adagrad, or SGD without momentum.
std::unique_ptr<ps::UpdateRule> make_server_rule(const spec::OptimConfig& optim);

}  // namespace trireme::train
