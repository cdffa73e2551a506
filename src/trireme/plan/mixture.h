// plan/mixture.h -- what a mixture of experts has beside a transformer's shape, and what follows by counting.
//
// Some layers have, in place of the MLP, many of which a router chooses a few for each token. They are plain data in
// recipes/mixtures, counted and planned here. The section [experts] is spec's.
// Depends on: spec.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/config.h"
#include "trireme/spec/experts.h"
#include "trireme/spec/model_config.h"

namespace trireme::plan {

using spec::Experts;

struct Mixture {
  Experts experts;
  bool operator==(const Mixture&) const = default;
};

/// A file of recipes/mixtures.
struct MixtureFile {
  std::string name;
  spec::ModelConfig model;
  Experts experts;
};
void describe(config::Section<MixtureFile>& section);
std::vector<config::Problem> find_problems(const MixtureFile& file);

/// Layers that have experts.
std::int64_t expert_layers(const spec::ModelShape& shape, const Experts& experts);
/// The width of an expert's middle.
std::int64_t expert_inner(const spec::ModelShape& shape, const Experts& experts);

/// Parameters of the whole model.
struct MixtureCount {
  double embedding = 0, head = 0;
  double mtp = 0;             ///< modules of multi-token prediction
  double dense = 0;           ///< of all layers, but not of routed experts
  double experts = 0;         ///< routed
  double active_experts = 0;  ///< of those, what one token meets
  double total() const { return embedding + head + mtp + dense + experts; }
  double active() const { return embedding + head + mtp + dense + active_experts; }
};
MixtureCount count_parameters(const spec::ModelShape& shape, const Mixture& mixture);

/// FLOPs of one sequence's forward pass: GEMMs with weights that a token meets; of which the head; attention in
/// full, not halved for the mask.
struct MixtureFlops {
  double projections = 0, head = 0, attention = 0;
  double mtp = 0;  ///< modules of multi-token prediction, each with its pass through the head
  double total() const { return projections + head + attention + mtp; }
};
MixtureFlops count_flops(const spec::ModelShape& shape, const Mixture& mixture, std::int64_t length);

}  // namespace trireme::plan
