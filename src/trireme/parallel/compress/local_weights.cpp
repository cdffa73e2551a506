#include "trireme/parallel/compress/local_weights.h"

#include <algorithm>

#include "trireme/layout/placing.h"

namespace trireme::parallel {

LocalWeights::LocalWeights(BucketPlan& plan, MeshGroups& groups, layout::AxisNames copies)
    : groups_(groups), copies_(std::move(copies)) {
  for (Bucket& bucket : plan.buckets) {
    if (!bucket.trainable) continue;
    for (BucketMember& member : bucket.members) params_.push_back(member.param);
  }
  std::ranges::sort(params_, {}, [](const nn::Param* param) { return param->name; });
}

void LocalWeights::take() {
  if (taken_.empty()) taken_ = like_masters();
  for (std::size_t i = 0; i < params_.size(); ++i) taken_[i].copy_(params_[i]->master);
}

void LocalWeights::give_back() {
  for (std::size_t i = 0; i < params_.size(); ++i) params_[i]->master.copy_(taken_[i]);
}

void LocalWeights::add_state(nn::State& state) {
  if (taken_.empty()) take();
  add_stacked(state, "reduce/weight", taken_, nn::CopiesRule::kOwnOrFirst);
}

std::int64_t LocalWeights::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : taken_) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

std::vector<at::Tensor> LocalWeights::like_masters() const {
  std::vector<at::Tensor> tensors;
  for (const nn::Param* param : params_) tensors.push_back(param->master.clone());
  return tensors;
}

void LocalWeights::add_equal(nn::State& state, const std::string& name, const std::vector<at::Tensor>& tensors) const {
  for (std::size_t i = 0; i < params_.size(); ++i)
    state.add(name + "/" + params_[i]->name, tensors[i], params_[i]->placement);
}

void LocalWeights::add_stacked(nn::State& state, const std::string& name, const std::vector<at::Tensor>& tensors,
                               nn::CopiesRule rule) const {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    state.add(name + "/" + params_[i]->name, tensors[i],
              layout::stack_copies(groups_.mesh(), groups_.rank(), params_[i]->placement, copies_), rule);
  }
}

void LocalWeights::add_numbers(nn::State& state, const std::string& name, const at::Tensor& numbers) const {
  const layout::Placing placing(groups_.mesh(), groups_.rank(), name, {numbers.numel()});
  state.add(name, numbers, layout::stack_copies(groups_.mesh(), groups_.rank(), placing.placement(), copies_),
            nn::CopiesRule::kOwnOrZero);
}

void publish_changed(nn::Param& param) {
  nn::publish(param);
  ++param.version;
}

}  // namespace trireme::parallel
