#include "trireme/train/servers/server_rule.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/update.h"

namespace trireme::train {
namespace {

class KernelRule final : public ps::UpdateRule {
 public:
  KernelRule(const spec::OptimConfig& optim, std::vector<KeyGroup> groups)
      : optim_(optim), groups_(std::move(groups)), moments_(static_cast<int>(server_moments(optim).size())) {}
  int state_planes() const override { return moments_ + (counts_pushes(optim_) ? 1 : 0); }

  void apply(const ps::Planes& planes, const ps::Segment& keys, std::span<const std::byte* const> pushed,
             double rate) const override {
    auto group =
        std::ranges::partition_point(groups_, [&](const KeyGroup& each) { return each.keys.end <= keys.begin; });
    for (; group != groups_.end() && group->keys.begin < keys.end; ++group) {
      const ps::Segment part{std::max(keys.begin, group->keys.begin), std::min(keys.end, group->keys.end)};
      const std::byte* gradient = pushed[0] + (part.begin - keys.begin) * ps::value_bytes(planes.type);
      if (counts_pushes(optim_)) {
        apply_counted(planes, part, gradient, rate, *group);
      } else {
        update(planes, part, gradient, rate, *group, /*step=*/0);
      }
    }
  }

 private:
  /// Filters may have held back some keys of a parameter before: those that have had equally many pushes go together.
  void apply_counted(const ps::Planes& planes, const ps::Segment& keys, const std::byte* gradient, double rate,
                     const KeyGroup& group) const {
    const auto count = [&]<typename T>(T) {
      T* pushes = planes.at<T>(static_cast<std::size_t>(moments_) + 1, 0);
      for (std::uint64_t key = keys.begin; key < keys.end; ++key) pushes[key] += 1;
      for (std::uint64_t begin = keys.begin; begin < keys.end;) {
        std::uint64_t end = begin + 1;
        while (end < keys.end && pushes[end] == pushes[begin]) ++end;
        update(planes, {begin, end}, gradient + (begin - keys.begin) * sizeof(T), rate, group,
               static_cast<std::int64_t>(pushes[begin]));
        begin = end;
      }
    };
    planes.type == ps::ValueType::kF64 ? count(double{}) : count(float{});
  }

  void update(const ps::Planes& planes, const ps::Segment& keys, const std::byte* pushed, double rate,
              const KeyGroup& group, std::int64_t step) const {
    const auto view = [&](const std::byte* at) {
      const auto type = planes.type == ps::ValueType::kF64 ? at::kDouble : at::kFloat;
      return at::from_blob(const_cast<std::byte*>(at), {static_cast<std::int64_t>(keys.size())}, type);
    };
    const auto plane = [&](std::size_t number) {
      return view(planes.data[number] + keys.begin * ps::value_bytes(planes.type));
    };
    at::Tensor weight = plane(0), gradient = view(pushed), none;
    const kernels::UpdateTensors tensors{.weight = weight, .gradient = gradient, .low = none};
    const double learning_rate = rate * group.rate;
    switch (optim_.kind) {
      case spec::OptimizerKind::kSgd: {
        at::Tensor velocity = moments_ > 0 ? plane(1) : none;  // begins as zeros: the first push fills it
        kernels::sgd_update(tensors, velocity,
                            {.learning_rate = learning_rate,
                             .weight_decay = group.weight_decay,
                             .momentum = optim_.momentum,
                             .nesterov = optim_.nesterov});
        return;
      }
      case spec::OptimizerKind::kAdagrad: {
        at::Tensor sum = plane(1);
        kernels::adagrad_update(
            tensors, sum,
            {.learning_rate = learning_rate, .weight_decay = group.weight_decay, .epsilon = spec::epsilon_of(optim_)});
        return;
      }
      case spec::OptimizerKind::kAdam:
      case spec::OptimizerKind::kAdamw: {
        at::Tensor m = plane(1), v = plane(2);
        kernels::adamw_update(tensors, m, v,
                              {.learning_rate = learning_rate,
                               .weight_decay = group.weight_decay,
                               .beta1 = optim_.beta1,
                               .beta2 = optim_.beta2,
                               .epsilon = spec::epsilon_of(optim_),
                               .step = step,
                               .decoupled = optim_.kind == spec::OptimizerKind::kAdamw});
        return;
      }
      case spec::OptimizerKind::kLion: {
        at::Tensor m = plane(1);
        const at::Tensor direction = at::mul(m, optim_.beta1).add_(gradient, 1 - optim_.beta1).sign_();
        m.mul_(optim_.beta2).add_(gradient, 1 - optim_.beta2);
        if (group.weight_decay != 0) weight.mul_(1 - learning_rate * group.weight_decay);
        weight.add_(direction, -learning_rate);
        return;
      }
      default:
        TRIREME_CHECK(false, "servers do not update as optimizer {} does", static_cast<int>(optim_.kind));
    }
  }

  const spec::OptimConfig optim_;
  const std::vector<KeyGroup> groups_;
  const int moments_;
};

}  // namespace

std::vector<std::string> server_moments(const spec::OptimConfig& optim) {
  switch (optim.kind) {
    case spec::OptimizerKind::kSgd:
      return optim.momentum > 0 ? std::vector<std::string>{"velocity"} : std::vector<std::string>{};
    case spec::OptimizerKind::kAdagrad:
      return {"sum"};
    case spec::OptimizerKind::kAdam:
    case spec::OptimizerKind::kAdamw:
      return {"m", "v"};
    case spec::OptimizerKind::kLion:
      return {"m"};
    default:
      return {};
  }
}

bool counts_pushes(const spec::OptimConfig& optim) {
  return optim.kind == spec::OptimizerKind::kAdam || optim.kind == spec::OptimizerKind::kAdamw;
}

std::unique_ptr<ps::UpdateRule> make_server_rule(const spec::OptimConfig& optim, std::vector<KeyGroup> groups) {
  return std::make_unique<KernelRule>(optim, std::move(groups));
}

}  // namespace trireme::train
