// spec/experts.h -- a mixture of experts: how many, which router sends tokens to them, and what keeps it balanced.
//
//   [experts]                     [experts]                       [experts]
//   num_experts = 8               num_experts = 256               num_experts = 64
//   top_k = 2                     top_k = 8                       router = "switch"
//   aux_loss_weight = 0.01        router = "sigmoid-top-k"        top_k = 1
//                                 num_groups = 8                  capacity_factor = 1.25
//                                 top_k_groups = 4                aux_loss_weight = 0.01
//                                 bias_update_rate = 0.001
//
// Losses, capacity and random draws are defined over balance groups of whole samples of the global batch, so that no
// layout and no micro-batch size changes them.
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

enum class RouterKind : std::uint8_t {
  kSoftmaxTopK,    ///< Mixtral (2401.04088), Qwen-MoE: softmax, top k, dropless
  kSigmoidTopK,    ///< DeepSeek-V3 (2412.19437): sigmoid, group-limited top k, balanced by a bias
  kSwitch,         ///< Switch Transformer (2101.03961): top 1 with a capacity
  kGshard,         ///< GShard (2006.16668): top 2 with a capacity and a random second choice
  kNoisyTopK,      ///< Shazeer et al. (1701.06538): noisy top k, with importance and load losses; two levels too
  kStrictBalance,  ///< the same paper, appendix F: each expert takes equally many tokens of a batch
  kExpertChoice,   ///< Zhou et al. (2202.09368): experts choose tokens
};
std::span<const Named<RouterKind>> enum_names(std::type_identity<RouterKind>);

/// What a group of experts is scored by, where tokens are limited to a few groups.
enum class GroupScore : std::uint8_t {
  kTop2,  ///< the sum of its two best (DeepSeek-V3's code, torchtitan)
  kTopK,  ///< the sum of its top_k / top_k_groups best (DeepSeek-V3's paper, Megatron)
  kMax,   ///< its best (DeepSeek-V2)
};
std::span<const Named<GroupScore>> enum_names(std::type_identity<GroupScore>);

/// In what rows of tokens travel to experts; they come back in the compute type.
enum class DispatchPrecision : std::uint8_t {
  kSame,  ///< the compute type
  kFp8,   ///< e4m3 with a scale for each 128 values (DeepSeek-V3)
};
std::span<const Named<DispatchPrecision>> enum_names(std::type_identity<DispatchPrecision>);

/// [experts]
struct Experts {
  std::int64_t num_experts = 0;         ///< of each layer that has them; 0: none
  std::int64_t top_k = 1;               ///< of them, those that a token visits
  std::int64_t ffn_size = 0;            ///< of an expert; 0: the model's
  std::int64_t num_shared_experts = 0;  ///< beside them, visited by all tokens
  std::int64_t every = 1;               ///< one layer in so many has them
  std::int64_t first_dense_layers = 0;  ///< the first ones, which have none
  double capacity_factor = 0;           ///< an expert takes so much of an even share; 0: as many tokens as come

  RouterKind router = RouterKind::kSoftmaxTopK;
  bool norm_topk_prob = true;        ///< gates of a token's experts add up to 1 (times routed_scaling_factor)
  double routed_scaling_factor = 1;  ///< of the gates
  bool shared_expert_gate = false;   ///< the shared experts' output is multiplied by sigmoid(w x) (Qwen2-MoE)

  std::int64_t num_groups = 1;    ///< of neighbouring experts, equally large; of noisy-top-k: the first level
  std::int64_t top_k_groups = 1;  ///< of them, those that a token's experts are in
  GroupScore group_score = GroupScore::kTop2;

  double aux_loss_weight = 0;         ///< of the load-balancing loss
  double z_loss_weight = 0;           ///< of the mean of logsumexp(logits)^2
  double importance_loss_weight = 0;  ///< noisy-top-k
  double load_loss_weight = 0;        ///< noisy-top-k
  double threshold_loss_weight = 0;   ///< strict-balance: of the thresholds that evaluation uses
  double bias_update_rate = 0;        ///< sigmoid-top-k: gamma; 0: no bias
  bool bias_centered = false;         ///< the mean is subtracted after each update (torchtitan)

  bool random_second_choice = true;  ///< gshard: it is taken with probability min(1, 2 g2)
  double jitter = 0;                 ///< the router's input times U(1 - jitter, 1 + jitter) in training
  double expert_dropout = 0;         ///< of an expert's middle
  std::int64_t balance_group = 1;    ///< samples
  double arena = 1.5;                ///< rows of a pass over an even share of them
  std::int64_t node_ranks = 0;       ///< hierarchical all-to-all: neighbouring ranks of ep that are a node; 0: flat
  bool slice_over_tp = false;        ///< each tensor-parallel rank dispatches a slice of the tokens that all have
  DispatchPrecision dispatch_precision = DispatchPrecision::kSame;
  std::int64_t redundant_experts = 0;  ///< copies of hot experts, over all ranks of ep
  bool move_experts = false;           ///< experts go to other ranks of ep between steps, where loads say so
  std::int64_t rebalance_every = 0;    ///< steps after which it is decided anew where experts and copies of them lie

  bool used() const { return num_experts > 0; }
  bool operator==(const Experts&) const = default;
};

void describe(config::Section<Experts>& section);
std::vector<config::Problem> find_problems(const Experts& experts);

}  // namespace trireme::spec
