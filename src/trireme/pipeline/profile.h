// pipeline/profile.h -- what each entry of a model's chain costs, measured: for splits by cost and by PipeDream's
// programme.
//
//   const auto profile = profile_entries(*model, [&] { return micro; });
//   const Split split = split_by_cost(seconds_of(profile), chunks);
//
// Depends on: base, models, nn.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "trireme/pipeline/replication.h"
#include "trireme/pipeline/stage.h"

namespace trireme::pipeline {

/// Medians over `repeats` passes of a micro forward and back, after one that warms up. The model is whole and has
/// memory; its gradients are forgotten.
std::vector<EntryProfile> profile_entries(models::Model& model, const std::function<Micro()>& micro, int repeats = 5);

/// The same of a model that is never whole: one entry at a time is built and fed with numbers of the size that come to
/// it.
std::vector<EntryProfile> profile_chain(const spec::ModelShape& shape, const models::BuildOptions& build,
                                        nn::Precision precision, const std::function<Micro()>& micro, int repeats = 5);

std::vector<double> seconds_of(std::span<const EntryProfile> profile);

}  // namespace trireme::pipeline
