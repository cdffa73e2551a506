// The branch of a layer whose MLP is a mixture of experts.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "trireme/models/assemble.h"

namespace trireme::models {
namespace {

using nn::Init;
using nn::moe::Router;

/// The pieces of all experts one below the other become those of each expert: a rank's memory is [experts, rows, ..].
layout::Placement expert_by_expert(layout::Placement placement) {
  const std::vector<layout::Piece> blocks = std::move(placement.pieces);
  placement.pieces.clear();
  const layout::Box& first = blocks.front().box;
  for (layout::Index expert = first.begin[0]; expert < first.end[0]; ++expert) {
    for (layout::Piece piece : blocks) {
      piece.box.begin[0] = expert;
      piece.box.end[0] = expert + 1;
      placement.pieces.push_back(std::move(piece));
    }
  }
  return placement;
}

}  // namespace

/// Experts are one parameter, sharded along its first dimension over the expert-parallel ranks. Tensor-parallel ranks
/// have copies: without sequence parallelism of the same tokens, and then of equal gradients, unless they slice them.
/// In inference they may have a slice of each expert.
nn::Param& Assembly::expert_weight(const std::string& name, layout::Shape shape, std::size_t inner_dimension,
                                   const std::vector<layout::Block>& inner, Init init) {
  layout::Placing placing = parallel_.placing(name, std::move(shape));
  for (const std::string& axis : parallel_.expert_axes) placing.split(0, axis);
  if (slices_experts_) placing.split_blocks(inner_dimension, nn::kTensorAxis, inner);
  layout::Placement placement = placing.placement();
  if (placement.pieces.size() > 1) placement = expert_by_expert(std::move(placement));
  nn::Param& param = params_.add(std::move(placement), init, /*decay=*/true);
  if (!shape_.experts.slice_over_tp) param.equal_axes = parallel_.equal_grad_axes();
  return param;
}

nn::moe::SharedExperts Assembly::shared_experts(const std::string& name) {
  nn::moe::SharedExperts shared;
  const layout::Block ffn{.size = spec::shared_ffn_size(shape_)};
  if (ffn.size == 0) return shared;
  const std::vector<layout::Block> into(shape_.gated ? 2 : 1, ffn);
  const nn::Linear in = column(name + ".in", shape_.hidden_size, into, /*bias=*/false);
  const nn::Linear out = row(name + ".out", ffn, shape_.hidden_size, /*bias=*/false);
  shared.mlp = std::make_unique<nn::Mlp>(in, out, to_kernel(shape_.activation), shape_.gated, save_mlp_activations_);
  if (shape_.experts.shared_expert_gate)
    shared.gate = &table(name + ".gate.weight", 1, matrix_init(shape_.hidden_size, 1, false));
  return shared;
}

nn::moe::RebalancePolicy rebalance_policy(const spec::Experts& config, const nn::ParallelContext& parallel) {
  if (parallel.experts == nullptr) return {};
  const std::int64_t ranks = parallel.experts->size();
  return {.every = config.rebalance_every,
          .ranks = ranks,
          .room = config.redundant_experts / ranks,
          .moves = config.move_experts,
          // Tokens are limited to groups so that they go to few nodes.
          .node_ranks = config.num_groups > 1 ? config.node_ranks : 0};
}

nn::moe::ExpertLoads& Assembly::expert_loads(const std::string& name, Router::BiasKind bias) {
  const std::int64_t experts = shape_.experts.num_experts;
  nn::moe::ExpertLoads loads{
      .layer = name, .counts = std::vector<std::int64_t>(static_cast<std::size_t>(experts), 0), .last = {}};
  if (bias == Router::BiasKind::kBalanced) {
    loads.bias = at::zeros({experts}, at::kFloat);
    loads.placement = parallel_.placing(name, {experts}).placement();
    loads.rate = shape_.experts.bias_update_rate;
    loads.centered = shape_.experts.bias_centered;
  }
  loads.policy = rebalance_policy(shape_.experts, parallel_);
  return balance_.add(std::move(loads));
}

nn::Branch Assembly::experts(const std::string& name, nn::Stream stream) {
  const spec::Experts& config = shape_.experts;
  const std::int64_t hidden = shape_.hidden_size, ffn = spec::expert_ffn_size(shape_), count = config.num_experts;
  const std::int64_t into = shape_.gated ? 2 * ffn : ffn;
  nn::Norm normed = norm(name + ".norm");
  auto router = nn::moe::make_router(config);
  // Shazeer et al. start gates and their noise at zero, so that loads are even until something has been learnt.
  const bool noisy = config.router == spec::RouterKind::kNoisyTopK;
  nn::Param& router_weight = table(name + ".router.weight", router->outputs(),
                                   noisy ? Init{Init::Kind::kZeros, 0} : matrix_init(hidden, router->outputs(), false));
  nn::Param* thresholds = nullptr;
  if (router->bias_kind() == Router::BiasKind::kLearned) {
    thresholds = &vector(name + ".router.thresholds", count, {Init::Kind::kZeros, 0});
    // The losses of a balance group are functions of all of its logits, which every rank that shares its tokens has.
    thresholds->equal_axes = parallel_.sample_axes();
  }
  nn::moe::ExpertLoads& loads = expert_loads(name, router->bias_kind());
  const layout::Block block{.size = ffn};
  const std::vector<layout::Block> blocks(shape_.gated ? 2 : 1, block);
  nn::Param& in =
      expert_weight(name + ".experts.in.weight", {count, into, hidden}, 1, blocks, matrix_init(hidden, into, false));
  nn::Param& out =
      expert_weight(name + ".experts.out.weight", {count, hidden, ffn}, 2, {block}, matrix_init(ffn, hidden, true));
  nn::moe::SharedExperts shared = shared_experts(name + ".shared");
  std::unique_ptr<nn::moe::RowExchange> exchange = std::make_unique<nn::moe::LocalExchange>();
  std::int64_t first = 0;
  if (comm::Group* group = parallel_.experts) {
    exchange = std::make_unique<nn::moe::AllToAllExchange>(*group);
    first = count / group->size() * group->rank();
  }
  const nn::moe::ExpertsShape of_experts{.name = name,
                                         .activation = to_kernel(shape_.activation),
                                         .gated = shape_.gated,
                                         .dropout = config.expert_dropout,
                                         .first_expert = first};
  auto body = std::make_unique<nn::moe::MoeLayer>(nn::moe::MoeParts{.name = name,
                                                                    .router = std::move(router),
                                                                    .router_weight = &router_weight,
                                                                    .thresholds = thresholds,
                                                                    .loads = &loads,
                                                                    .experts = nn::moe::Experts(of_experts, in, out),
                                                                    .shared = std::move(shared),
                                                                    .exchange = std::move(exchange),
                                                                    .sliced = slices_experts_,
                                                                    .stream = stream},
                                                  parallel_);
  return {.norm = normed, .body = std::move(body), .dropout = dropout(name)};
}

}  // namespace trireme::models
