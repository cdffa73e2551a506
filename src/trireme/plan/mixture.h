// plan/mixture.h -- what a mixture of experts has beside a transformer's shape, and what follows by counting.
//
// Some layers have, in place of the MLP, many of which a router chooses a few for each token. DeepSeek's attention
// also makes queries, keys and values from narrow latents. Both are plain data in recipes/mixtures; they are counted
// and planned here, not trained.
// Depends on: spec.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/config.h"
#include "trireme/spec/model_config.h"

namespace trireme::plan {

/// [experts]
struct Experts {
  std::int64_t num_experts = 0;         ///< of each layer that has them; 0: none
  std::int64_t top_k = 1;               ///< of them, those that a token visits
  std::int64_t ffn_size = 0;            ///< width of an expert's middle; 0: the model's
  std::int64_t num_shared_experts = 0;  ///< beside them, visited by all tokens
  std::int64_t every = 1;               ///< one layer in so many has them
  std::int64_t first_dense_layers = 0;  ///< the first ones, which have none
  double capacity_factor = 0;           ///< padded to so much of an even share; 0: as many tokens as come
  bool operator==(const Experts&) const = default;
};

/// [latent]: DeepSeek-V2's attention (2405.04434), without absorbing GEMMs.
struct Mla {
  std::int64_t q_lora_rank = 0;  ///< 0: plain attention
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_rope_head_dim = 0;  ///< of each query head beside head_size; one for all keys
  std::int64_t v_head_dim = 0;
  bool operator==(const Mla&) const = default;
};

struct Mixture {
  Experts experts;
  Mla mla;
  bool operator==(const Mixture&) const = default;
};

void describe(config::Section<Experts>& section);
void describe(config::Section<Mla>& section);

/// A file of recipes/mixtures.
struct MixtureFile {
  std::string name;
  spec::ModelConfig model;
  Experts experts;
  Mla mla;
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
  double dense = 0;           ///< of all layers, but not of routed experts
  double experts = 0;         ///< routed
  double active_experts = 0;  ///< of those, what one token meets
  double total() const { return embedding + head + dense + experts; }
  double active() const { return embedding + head + dense + active_experts; }
};
MixtureCount count_parameters(const spec::ModelShape& shape, const Mixture& mixture);

/// FLOPs of one sequence's forward pass: GEMMs with weights that a token meets; of which the head; attention in
/// full, not halved for the mask.
struct MixtureFlops {
  double projections = 0, head = 0, attention = 0;
};
MixtureFlops count_flops(const spec::ModelShape& shape, const Mixture& mixture, std::int64_t length);

}  // namespace trireme::plan
