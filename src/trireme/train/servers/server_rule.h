// train/servers/server_rule.h -- what a server does with a push: the optimizer's own kernels, on the server's numbers.
//
// So that one replica, which fetches and pushes in every step, is serial training to the bit. Updates are those that go
// through elements one by one, whose numbers are wherever their keys are.
// Depends on: kernels, ps, spec.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/ps/update_rule.h"
#include "trireme/spec/optim.h"

namespace trireme::train {

/// Keys of one parameter, and what [optim] and muP say of it.
struct KeyGroup {
  ps::Segment keys;
  double rate = 1;  ///< the learning rate is multiplied by it
  double weight_decay = 0;
};

/// What the rule keeps beside weights, a plane each, by the optimizer's names of its moments.
std::vector<std::string> server_moments(const spec::OptimConfig& optim);
/// Whether a further plane, the last one, counts the pushes of each key: Adam corrects by them.
bool counts_pushes(const spec::OptimConfig& optim);

/// SGD, Adagrad, Adam, AdamW or Lion. `groups` are all keys, in their order.
std::unique_ptr<ps::UpdateRule> make_server_rule(const spec::OptimConfig& optim, std::vector<KeyGroup> groups);

}  // namespace trireme::train
