#include "trireme/spec/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace trireme::spec {
namespace {

constexpr Named<RouterKind> kRouterKinds[] = {{"softmax-top-k", RouterKind::kSoftmaxTopK},
                                              {"sigmoid-top-k", RouterKind::kSigmoidTopK},
                                              {"switch", RouterKind::kSwitch},
                                              {"gshard", RouterKind::kGshard},
                                              {"noisy-top-k", RouterKind::kNoisyTopK},
                                              {"strict-balance", RouterKind::kStrictBalance},
                                              {"expert-choice", RouterKind::kExpertChoice}};
constexpr Named<GroupScore> kGroupScores[] = {
    {"top-2", GroupScore::kTop2}, {"top-k", GroupScore::kTopK}, {"max", GroupScore::kMax}};

constexpr Named<DispatchPrecision> kDispatchPrecisions[] = {{"same", DispatchPrecision::kSame},
                                                            {"fp8", DispatchPrecision::kFp8}};

void describe_router(config::Section<Experts>& section) {
  section.field("router", &Experts::router,
                "softmax-top-k (Mixtral, Qwen-MoE), sigmoid-top-k (DeepSeek-V3), switch, gshard, noisy-top-k "
                "(Shazeer et al.), strict-balance (its appendix F), expert-choice");
  section.field("norm_topk_prob", &Experts::norm_topk_prob, "gates of a token's experts are normalised to sum to 1");
  section.field("routed_scaling_factor", &Experts::routed_scaling_factor, "factor of the gates").above(0.0);
  section.field("shared_expert_gate", &Experts::shared_expert_gate,
                "the output of the shared experts is multiplied by sigmoid(w x) (Qwen2-MoE)");
  section
      .field("num_groups", &Experts::num_groups,
             "groups of neighbouring experts; noisy-top-k: experts of the first level's gate; 1: no groups")
      .range(1, 1 << 20);
  section.field("top_k_groups", &Experts::top_k_groups, "groups that the experts of one token lie in")
      .range(1, 1 << 20);
  section.field(
      "group_score", &Experts::group_score,
      "what a group is chosen by: the sum of its 2 best scores, of its top_k / top_k_groups best, or the max");
  section.field("random_second_choice", &Experts::random_second_choice,
                "gshard: in training the second expert is taken with probability min(1, 2 g2)");
  section.field("jitter", &Experts::jitter, "in training the router's input is multiplied by U(1 - jitter, 1 + jitter)")
      .range(0.0, 1.0);
  section.field("expert_dropout", &Experts::expert_dropout, "dropout of the activations inside experts (fine-tuning)")
      .range(0.0, 0.99);
}

void describe_balance(config::Section<Experts>& section) {
  section
      .field("balance_group", &Experts::balance_group,
             "samples of the global batch over which auxiliary losses, capacity and batch-wise choices are defined; "
             "the micro-batch must be a multiple")
      .at_least(1);
  section.field("aux_loss_weight", &Experts::aux_loss_weight, "weight of the load-balancing loss").at_least(0.0);
  section.field("z_loss_weight", &Experts::z_loss_weight, "weight of the router's z-loss, mean logsumexp(logits)^2")
      .at_least(0.0);
  section.field("importance_loss_weight", &Experts::importance_loss_weight, "noisy-top-k: weight of CV(importance)^2")
      .at_least(0.0);
  section.field("load_loss_weight", &Experts::load_loss_weight, "noisy-top-k: weight of CV(load)^2").at_least(0.0);
  section
      .field("threshold_loss_weight", &Experts::threshold_loss_weight,
             "strict-balance: weight of the loss that learns the thresholds of evaluation")
      .at_least(0.0);
  section
      .field("bias_update_rate", &Experts::bias_update_rate,
             "sigmoid-top-k: what an expert's selection bias moves by after each step; 0: no bias")
      .at_least(0.0);
  section.field("bias_centered", &Experts::bias_centered, "the biases' mean is subtracted after each update");
  section.field("arena", &Experts::arena,
                "with layout.ep: rows that a rank computes at once, over an even share, at least 1; what exceeds it "
                "takes further passes");
  section
      .field("node_ranks", &Experts::node_ranks,
             "hierarchical all-to-all: neighbouring ranks of layout.ep that are one node; a token crosses once to each "
             "node that it has experts on; 0: once to each expert")
      .range(0, 62);
  section.field("slice_over_tp", &Experts::slice_over_tp,
                "with layout.tp and without sequence parallelism: each tensor-parallel rank dispatches and computes an "
                "equal slice of the tokens, whose outputs are gathered (DeepSpeed's parallelism-coordinated "
                "all-to-all); false: every rank all of them");
  section.field(
      "dispatch_precision", &Experts::dispatch_precision,
      "what rows of tokens and of their gradients are rounded to on their way to experts: same (the compute "
      "type) or fp8 (e4m3 with a scale for each 128 values, DeepSeek-V3); they come back in the compute type");
  section
      .field("redundant_experts", &Experts::redundant_experts,
             "copies of hot experts in each MoE layer, spread over the ranks of layout.ep, which share their tokens "
             "(EPLB); 0: none")
      .range(0, 1 << 20);
  section.field("move_experts", &Experts::move_experts,
                "with layout.ep: experts go to other ranks between steps, with their optimizer state, where their "
                "loads make the busiest rank less busy; checkpoints hold them by number as ever");
  section
      .field("rebalance_every", &Experts::rebalance_every,
             "with redundant_experts or move_experts: steps after which the loads since then decide anew where experts "
             "and copies of them are")
      .range(0, 1 << 30);
}

void find_router_problems(const Experts& e, std::vector<config::Problem>& problems) {
  const auto add = [&problems](const char* key, std::string reason, std::string hint) {
    problems.push_back({.key = key, .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  };
  const bool sigmoid = e.router == RouterKind::kSigmoidTopK, noisy = e.router == RouterKind::kNoisyTopK;
  const bool chooses_tokens = e.router == RouterKind::kExpertChoice || e.router == RouterKind::kStrictBalance;
  if (e.router == RouterKind::kSwitch && e.top_k != 1)
    add("experts.top_k", fmt::format("is {}, but the router switch chooses 1", e.top_k), "set experts.top_k = 1");
  if (e.router == RouterKind::kGshard && e.top_k != 2)
    add("experts.top_k", fmt::format("is {}, but the router gshard chooses 2", e.top_k), "set experts.top_k = 2");
  if (chooses_tokens && e.capacity_factor > 0)
    add("experts.capacity_factor",
        "has no meaning where experts choose tokens: each takes tokens x top_k / num_experts",
        "leave experts.capacity_factor out");
  if (e.capacity_factor > 0 && (sigmoid || noisy))
    add("experts.capacity_factor", "belongs to the routers softmax-top-k, switch and gshard; this one drops nothing",
        "leave experts.capacity_factor out");
  if (e.bias_update_rate > 0 && !sigmoid)
    add("experts.bias_update_rate", "belongs to the router sigmoid-top-k", "set experts.router = \"sigmoid-top-k\"");
  if (e.aux_loss_weight > 0 && (noisy || chooses_tokens))
    add("experts.aux_loss_weight", "is not a loss of this router",
        noisy ? "set experts.importance_loss_weight and load_loss_weight" : "leave experts.aux_loss_weight out");
  if ((e.importance_loss_weight > 0 || e.load_loss_weight > 0) && !noisy)
    add("experts.load_loss_weight", "importance and load losses belong to the router noisy-top-k",
        "set experts.aux_loss_weight");
  if (e.threshold_loss_weight > 0 && e.router != RouterKind::kStrictBalance)
    add("experts.threshold_loss_weight", "belongs to the router strict-balance", "leave it out");
  if (e.z_loss_weight > 0 && (sigmoid || noisy))
    add("experts.z_loss_weight", "is a loss of routers with a softmax over all experts", "leave it out");
}

void find_group_problems(const Experts& e, std::vector<config::Problem>& problems) {
  const auto add = [&problems](const char* key, std::string reason, std::string hint) {
    problems.push_back({.key = key, .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  };
  if (e.num_groups == 1 && e.top_k_groups == 1) return;
  if (e.router != RouterKind::kSigmoidTopK && e.router != RouterKind::kNoisyTopK)
    return add("experts.num_groups", "belongs to the routers sigmoid-top-k and noisy-top-k",
               "leave experts.num_groups and top_k_groups out");
  if (e.num_experts % e.num_groups != 0)
    return add("experts.num_groups", fmt::format("{} does not divide {} experts", e.num_groups, e.num_experts),
               fmt::format("set experts.num_groups = {}", std::gcd(e.num_groups, e.num_experts)));
  if (e.top_k_groups > e.num_groups)
    return add("experts.top_k_groups", fmt::format("{} of {} groups", e.top_k_groups, e.num_groups),
               fmt::format("set experts.top_k_groups = {}", e.num_groups));
  const std::int64_t each = e.num_experts / e.num_groups;
  if (e.top_k > e.top_k_groups * each)
    add("experts.top_k",
        fmt::format("is {}, but {} groups of {} have {} experts", e.top_k, e.top_k_groups, each, e.top_k_groups * each),
        fmt::format("set experts.top_k_groups = {}", std::min(e.num_groups, (e.top_k + each - 1) / each)));
  const bool whole = e.router == RouterKind::kNoisyTopK || e.group_score == GroupScore::kTopK;
  if (whole && e.top_k % e.top_k_groups != 0)
    add("experts.top_k_groups", fmt::format("{} does not divide experts.top_k = {}", e.top_k_groups, e.top_k),
        fmt::format("set experts.top_k_groups = {}", std::gcd(e.top_k_groups, e.top_k)));
  if (e.router == RouterKind::kSigmoidTopK && e.group_score == GroupScore::kTop2 && each < 2)
    add("experts.group_score", "is the sum of two scores, but a group has one expert",
        "set experts.group_score = \"max\"");
}

}  // namespace

std::span<const Named<RouterKind>> enum_names(std::type_identity<RouterKind>) { return kRouterKinds; }
std::span<const Named<GroupScore>> enum_names(std::type_identity<GroupScore>) { return kGroupScores; }
std::span<const Named<DispatchPrecision>> enum_names(std::type_identity<DispatchPrecision>) {
  return kDispatchPrecisions;
}

void describe(config::Section<Experts>& section) {
  section.meaning("mixture of experts (MoE)");
  section.field("num_experts", &Experts::num_experts, "routed experts of each MoE layer; 0: none, a dense model")
      .range(0, 1 << 20);
  section.field("top_k", &Experts::top_k, "experts that the router chooses for each token").range(1, 1 << 20);
  section.field("ffn_size", &Experts::ffn_size, "FFN size of an expert; 0: model.ffn_size").range(0, 1 << 20);
  section.field("num_shared_experts", &Experts::num_shared_experts, "shared experts, which process every token")
      .range(0, 1 << 10);
  section.field("every", &Experts::every, "one layer in this many is an MoE layer").range(1, 1 << 10);
  section.field("first_dense_layers", &Experts::first_dense_layers, "dense layers at the bottom, before the MoE layers")
      .range(0, 1 << 16);
  section
      .field("capacity_factor", &Experts::capacity_factor,
             "tokens that an expert takes of a balance group, over an even share; 0: dropless, as many as are routed "
             "to it")
      .at_least(0);
  describe_router(section);
  describe_balance(section);
  section.retired("count", "num_experts");
  section.retired("active", "top_k");
  section.retired("shared", "num_shared_experts");
  section.retired("inner", "ffn_size");
  section.retired("dense_layers", "first_dense_layers");
  section.retired("capacity", "capacity_factor");
}

std::vector<config::Problem> find_problems(const Experts& experts) {
  std::vector<config::Problem> problems;
  if (!experts.used()) {
    // A key that is given and then ignored is a model that nobody wanted.
    if (experts != Experts{})
      problems.push_back({.key = "experts",
                          .reason = "is given without experts.num_experts, so nothing uses it",
                          .hint = "set experts.num_experts = 8"});
    return problems;
  }
  if (experts.top_k > experts.num_experts) {
    problems.push_back({.key = "experts.top_k",
                        .reason = fmt::format("{} of {} experts", experts.top_k, experts.num_experts),
                        .hint = fmt::format("set experts.top_k = {}", experts.num_experts)});
  }
  if (!(experts.arena >= 1)) {
    problems.push_back({.key = "experts.arena",
                        .reason = fmt::format("is {}, but evenly routed rows must fit", experts.arena),
                        .hint = "set experts.arena = 1.5"});
  }
  const bool rebalances = experts.redundant_experts > 0 || experts.move_experts;
  if (rebalances != (experts.rebalance_every > 0)) {
    problems.push_back({.key = rebalances ? "experts.rebalance_every" : "experts.redundant_experts",
                        .reason = rebalances ? "is 0, so it is never decided where experts and copies of hot ones are"
                                             : "is 0, so there is nothing to decide every so many steps",
                        .hint = rebalances ? "set experts.rebalance_every = 100, or experts.redundant_experts = 0 and "
                                             "experts.move_experts = false"
                                           : "set experts.rebalance_every = 0, or experts.move_experts = true",
                        .where = {}});
  }
  find_router_problems(experts, problems);
  find_group_problems(experts, problems);
  return problems;
}

}  // namespace trireme::spec
