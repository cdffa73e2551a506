#include "trireme/train/servers/server_rule.h"

#include <ATen/ops/from_blob.h>

#include "trireme/kernels/update.h"

namespace trireme::train {
namespace {

class KernelRule final : public ps::UpdateRule {
 public:
  explicit KernelRule(const spec::OptimConfig& optim)
      : adagrad_(optim.kind == spec::OptimizerKind::kAdagrad), epsilon_(spec::epsilon_of(optim)) {}
  int state_planes() const override { return adagrad_ ? 1 : 0; }
  void apply(const ps::Planes& planes, const ps::Segment& keys, std::span<const std::byte* const> pushed,
             double rate) const override {
    const auto view = [&](const std::byte* at) {
      const auto type = planes.type == ps::ValueType::kF64 ? at::kDouble : at::kFloat;
      return at::from_blob(const_cast<std::byte*>(at), {static_cast<std::int64_t>(keys.size())}, type);
    };
    const auto plane = [&](std::size_t number) {
      return view(planes.data[number] + keys.begin * ps::value_bytes(planes.type));
    };
    at::Tensor weight = plane(0), gradient = view(pushed[0]), none;
    const kernels::UpdateTensors tensors{.weight = weight, .gradient = gradient, .low = none};
    if (adagrad_) {
      at::Tensor sum = plane(1);
      kernels::adagrad_update(tensors, sum, {.learning_rate = rate, .epsilon = epsilon_});
    } else {
      kernels::sgd_update(tensors, none, {.learning_rate = rate});
    }
  }

 private:
  bool adagrad_;
  double epsilon_;
};

}  // namespace

std::unique_ptr<ps::UpdateRule> make_server_rule(const spec::OptimConfig& optim) {
  return std::make_unique<KernelRule>(optim);
}

}  // namespace trireme::train
