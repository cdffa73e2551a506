#include "trireme/train/engine/expert_moves.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/reshard.h"
#include "trireme/nn/parallel_context.h"

namespace trireme::train {
namespace {

std::size_t rank_at(int rank) { return static_cast<std::size_t>(rank); }

/// `base` with the experts of part `part` of these places, one below the other.
layout::Placement with_experts(layout::Placement base, std::span<const std::int64_t> order, std::int64_t part,
                               std::int64_t each) {
  const layout::Piece like = base.pieces.front();
  base.pieces.clear();
  for (std::int64_t place = part * each; place < (part + 1) * each; ++place) {
    const std::int64_t expert = order[static_cast<std::size_t>(place)];
    layout::Piece piece = like;
    piece.box.begin[0] = expert, piece.box.end[0] = expert + 1;
    base.pieces.push_back(std::move(piece));
  }
  return base;
}

/// What an optimizer keeps of a whole matrix lies with its owner, by the numbers of experts.
bool has_all_or_none(const layout::Placement& placement, std::int64_t experts) {
  return std::ranges::all_of(placement.pieces, [&](const layout::Piece& piece) {
    return piece.box.begin[0] == 0 && piece.box.end[0] == experts;
  });
}

/// Whose tensors of this plan's element size become those of its targets; what this rank sent to others, in elements.
/// `device`: from where ranks send; the tensor may be on the host.
std::int64_t reshard(const layout::ReshardPlan& plan, const at::Tensor& tensor, at::Device device, comm::Group& group) {
  at::Tensor flat = tensor.view({-1});
  std::vector<at::Tensor> leaving{at::empty({0}, flat.options())};
  std::vector<std::size_t> send(rank_at(group.size()), 0), receive(rank_at(group.size()), 0);
  const auto count_of = [](const layout::ReshardTransfer& transfer) {
    layout::Index count = 0;
    for (const layout::Copy& copy : transfer.copies) count += copy.count;
    return static_cast<std::size_t>(count);
  };
  std::size_t come = 0, sent = 0;
  for (const layout::ReshardTransfer& transfer : plan.transfers) {  // by target, then source
    if (transfer.source == group.rank()) {
      send[rank_at(transfer.target)] += count_of(transfer);
      for (const layout::Copy& copy : transfer.copies) leaving.push_back(flat.narrow(0, copy.from, copy.count));
      if (transfer.target != group.rank()) sent += count_of(transfer);
    }
    if (transfer.target == group.rank()) {
      receive[rank_at(transfer.source)] += count_of(transfer);
      come += count_of(transfer);
    }
  }
  const at::Tensor all = at::cat(leaving).to(device);
  at::Tensor arriving = at::empty({static_cast<std::int64_t>(come)}, flat.options().device(device));
  group.all_to_all_v(device::to_const_buffer(all), device::to_buffer(arriving), send, receive).wait();
  std::int64_t at = 0;
  for (const layout::ReshardTransfer& transfer : plan.transfers) {
    if (transfer.target != group.rank()) continue;
    for (const layout::Copy& copy : transfer.copies) {
      flat.narrow(0, copy.to, copy.count).copy_(arriving.narrow(0, at, copy.count));
      at += copy.count;
    }
  }
  return static_cast<std::int64_t>(sent);
}

}  // namespace

ExpertMoves::ExpertMoves(Engine& engine, Updates& updates, nn::State& state, comm::Group& world)
    : engine_(engine), updates_(updates), state_(state), world_(world) {
  parallel::MeshGroups* groups = engine.account().groups;
  TRIREME_CHECK(groups != nullptr && engine.balance() != nullptr, "experts that move are sharded over ranks");
  layout::AxisNames axes;
  for (const char* axis : {nn::kDataAxis, nn::kContextAxis}) {
    if (groups->mesh().size(axis) > 1) axes.emplace_back(axis);
  }
  groups->agree_on({axes});
  group_ = groups->along(axes);
  for (const nn::moe::ExpertLoads& layer : *engine.balance()) {
    find(layer.layer + ".experts.in.weight");
    find(layer.layer + ".experts.out.weight");
  }
}

void ExpertMoves::find(const std::string& name) {
  Moved& param = params_.emplace_back(
      Moved{.layers = &engine_.layer_params()->at(name), .owned = &engine_.params().at(name), .holders = {}});
  const layout::Placement& mine = param.owned->placement;
  const layout::Box& box = mine.pieces.front().box;
  const std::int64_t each = box.end[0] - box.begin[0];
  // Which part of the experts, and what ZeRO leaves of it.
  const std::array<std::int64_t, 3> told{box.begin[0] / each, mine.partition ? mine.partition->begin : -1,
                                         mine.partition ? mine.partition->end : -1};
  std::vector<std::int64_t> all(3 * rank_at(group_->size()));
  group_
      ->all_gather(comm::ConstBuffer{told.data(), told.size(), comm::DType::kI64},
                   comm::Buffer{all.data(), all.size(), comm::DType::kI64})
      .wait();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const std::int64_t* of = &all[3 * rank_at(rank)];
    Holder& holder = param.holders.emplace_back(Holder{.part = of[0], .placement = mine});
    holder.placement.pieces.front().box.begin[0] = of[0] * each;
    holder.placement.pieces.front().box.end[0] = (of[0] + 1) * each;
    if (mine.partition) holder.placement.partition->begin = of[1], holder.placement.partition->end = of[2];
  }
}

void ExpertMoves::move(Moved& param, const nn::moe::ExpertLoads& layer) {
  const auto experts = static_cast<std::int64_t>(layer.next_order.size()), each = experts / layer.policy.ranks;
  std::vector<layout::Placement> from, to;
  for (const Holder& holder : param.holders) {
    from.push_back(holder.placement);
    to.push_back(with_experts(holder.placement, layer.next_order, holder.part, each));
  }
  std::vector<at::Tensor> tensors{param.owned->master};
  const auto add = [&tensors](const at::Tensor& tensor) {
    if (std::ranges::none_of(tensors, [&](const at::Tensor& one) { return one.is_same(tensor); }))
      tensors.push_back(tensor);
  };
  add(param.owned->value);
  const layout::Placement before = param.owned->placement;
  const layout::Placement& after = to[rank_at(group_->rank())];
  for (const nn::StateTensor& entry : state_.tensors()) {
    if (!entry.name.ends_with("/" + param.owned->name) || has_all_or_none(entry.placement, experts)) continue;
    TRIREME_CHECK(entry.placement.pieces == before.pieces && entry.placement.partition == before.partition,
                  "{} is not placed as its parameter, and cannot move with it", entry.name);
    add(entry.tensor);
    state_.place_again(entry.name, after);
  }
  layout::Sharing sharing;
  for (const at::Tensor& tensor : tensors) {
    const auto bytes = static_cast<std::size_t>(tensor.element_size());
    const layout::ReshardPlan plan = layout::plan_reshard(from, to, bytes, sharing);
    layout::add_sent(plan, sharing.sent_bytes);
    sent_bytes_ += reshard(plan, tensor, engine_.data_parallel().device(), *group_) * static_cast<std::int64_t>(bytes);
  }
  for (std::size_t rank = 0; rank < to.size(); ++rank) param.holders[rank].placement = to[rank];
  param.owned->placement.pieces = after.pieces;
  param.layers->placement.pieces =
      with_experts(param.layers->placement, layer.next_order, param.holders[rank_at(group_->rank())].part, each).pieces;
  ++param.owned->version;
}

observe::ExpertsMoved ExpertMoves::carry_out(std::span<const nn::moe::LayerLoads> loads) {
  observe::ExpertsMoved done;
  for (const nn::moe::LayerLoads& layer : loads) {
    done.experts += layer.moved;
    done.busiest_before = std::max(done.busiest_before, layer.busiest_before);
    done.busiest_after = std::max(done.busiest_after, layer.busiest_after);
  }
  const auto begin = std::chrono::steady_clock::now();
  sent_bytes_ = 0;
  std::size_t next = 0;
  for (nn::moe::ExpertLoads& layer : *engine_.balance()) {
    Moved &in = params_[next++], &out = params_[next++];
    if (layer.next_order.empty()) continue;
    move(in, layer);
    move(out, layer);
    layer.moved();
  }
  state_.count_placement_change();
  updates_.moved();
  done.bytes = sent_bytes_;
  world_.all_reduce(comm::Buffer{&done.bytes, 1, comm::DType::kI64}, comm::Reduce::kSum).wait();
  done.seconds = seconds_since(begin);
  return done;
}

}  // namespace trireme::train
