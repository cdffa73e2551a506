#include "trireme/optim/optimizer.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/config.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/nn/state.h"
#include "trireme/optim/gradients.h"

namespace trireme::optim {
namespace {

struct Maker {
  spec::OptimizerKind kind;
  std::unique_ptr<Optimizer> (*make)(OptimizerParts parts);
};
at::ScalarType moment_type(const spec::OptimConfig& config, const nn::Param& param) {
  if (param.master.scalar_type() == at::kDouble) return at::kDouble;
  return config.state_dtype == spec::StateDtype::kBf16 ? at::kBFloat16 : at::kFloat;
}

constexpr Maker kMakers[] = {
    {spec::OptimizerKind::kSgd, make_sgd},         {spec::OptimizerKind::kAdagrad, make_adagrad},
    {spec::OptimizerKind::kAdam, make_adam},       {spec::OptimizerKind::kAdamw, make_adam},
    {spec::OptimizerKind::kLamb, make_lamb},       {spec::OptimizerKind::kLars, make_lars},
    {spec::OptimizerKind::kLion, make_lion},       {spec::OptimizerKind::kScheduleFree, make_schedule_free},
    {spec::OptimizerKind::kMuon, make_muon},       {spec::OptimizerKind::kAdafactor, make_adafactor},
    {spec::OptimizerKind::kShampoo, make_shampoo}, {spec::OptimizerKind::kSoap, make_soap},
};

}  // namespace

Optimizer::Optimizer(const spec::OptimConfig& config, nn::Params& params, std::vector<std::string> moment_names)
    : Optimizer(config, params, std::move(moment_names), nullptr) {}

Optimizer::Optimizer(const spec::OptimConfig& config, nn::Params& params, std::vector<std::string> moment_names,
                     const Keeps& keeps)
    : config_(config), params_(params), moment_names_(std::move(moment_names)) {
  for (nn::Param& param : params_) {
    if (!param.trainable) continue;
    TRIREME_CHECK(param.master.defined() && param.value.defined(), "{} has no memory yet", param.name);
    TRIREME_CHECK(param.value.numel() == param.master.numel(),
                  "{}: compute weights of {} elements for master weights of {}", param.name, param.value.numel(),
                  param.master.numel());
    const spec::ParamRule rule = spec::rule_for(config_, param.name, param.decay);
    Slot& slot = slots_.emplace_back(Slot{param, rule.rate * param.rate, rule.weight_decay, param.decay, {}, {}});
    for (std::size_t i = 0; i < moment_names_.size(); ++i) {
      if (keeps && !keeps(param, i)) {
        slot.moments.emplace_back();
        continue;
      }
      slot.moments.push_back(at::zeros_like(param.master, param.master.options().dtype(moment_type(config_, param))));
    }
  }
}

void Optimizer::step(const StepOptions& options) {
  begin_step();
  finish_step(options);
}

void Optimizer::begin_step() {
  require_gradients(params_);
  ++steps_;
  for (Slot& slot : slots_) {
    slot.gradient = slot.param.gradient;
    if (!slot.param.unused) ++slot.param.version;
    slot.param.gradient_empty = true;
  }
}

void Optimizer::finish_step(const StepOptions& options) {
  // Runs of slots that have a gradient; nearly always one run of all.
  const auto used = [](const Slot& slot) { return !slot.param.unused; };
  if (updates_together()) {
    update(slots_, options);
    return finish_captured();
  }
  for (auto begin = std::ranges::find_if(slots_, used); begin != slots_.end();) {
    const auto end = std::find_if_not(begin, slots_.end(), used);
    update({begin, end}, options);
    begin = std::find_if(end, slots_.end(), used);
  }
  for (Slot& slot : slots_) slot.gradient = at::Tensor();
}

void Optimizer::finish_captured() {
  for (Slot& slot : slots_) slot.gradient = at::Tensor();
}

bool Optimizer::is_capturable() const {
  // Stochastic rounding draws by the step's number, which a CUDA graph does not see.
  const auto stochastic = [&](const Slot& slot) { return !slot.param.has_master; };
  if (config_.state_dtype == spec::StateDtype::kBf16 || std::ranges::any_of(slots_, stochastic)) return false;
  switch (config_.kind) {
    case spec::OptimizerKind::kSgd:
    case spec::OptimizerKind::kAdagrad:
    case spec::OptimizerKind::kAdam:
    case spec::OptimizerKind::kAdamw:
      return true;
    default:  // the host decides on something in the midst of it, or hands its numbers to kernels
      break;
  }
  return false;
}

std::vector<kernels::DeviceScalars::Slot> Optimizer::device_scalar_slots() const {
  std::vector<kernels::DeviceScalars::Slot> out;
  for (const Slot& slot : slots_) {
    out.push_back({.rate = slot.rate, .decay = config_.kind == spec::OptimizerKind::kAdamw ? slot.weight_decay : 0.0});
  }
  return out;
}

kernels::DeviceScalars::Step Optimizer::device_scalar_step(double learning_rate) const {
  kernels::DeviceScalars::Step step{.learning_rate = learning_rate};
  if (config_.kind == spec::OptimizerKind::kAdam || config_.kind == spec::OptimizerKind::kAdamw) {
    const auto number = static_cast<double>(steps_);
    step.correction1 = 1 - std::pow(config_.beta1, number);
    step.root2 = 1 / std::sqrt(1 - std::pow(config_.beta2, number));
  }
  return step;
}

std::int64_t Optimizer::bytes() const {
  std::int64_t sum = 0;
  for (const Slot& slot : slots_) {
    for (const at::Tensor& moment : slot.moments) {
      if (moment.defined()) sum += static_cast<std::int64_t>(moment.nbytes());
    }
  }
  return sum + own_bytes();
}

void Optimizer::add_state(nn::State& state, const Place& place) {
  state.add_value(
      "optim/steps", [this] { return nlohmann::ordered_json(steps_); },
      [this](const nlohmann::ordered_json& value) { steps_ = value.get<std::int64_t>(); });
  for (std::size_t i = 0; i < moment_names_.size(); ++i) {
    for (Slot& slot : slots_) {
      if (!slot.moments[i].defined()) continue;
      state.add(fmt::format("optim/{}/{}", moment_names_[i], slot.param.name), slot.moments[i],
                place ? place(slot.param) : slot.param.placement,
                place ? nn::CopiesRule::kOwnOrZero : nn::CopiesRule::kSame);
    }
  }
  add_own_state(state);
}

kernels::UpdateTensors Optimizer::tensors(Slot& slot, const StepOptions& options) {
  nn::Param& param = slot.param;
  return {.weight = param.master,
          .gradient = slot.gradient,
          .low = param.value.is_same(param.master) ? no_copy_ : param.value,
          .gradient_scale = options.gradient_scale,
          .rounding = weight_rounding(slot),
          .device_scalars = options.device_scalars == nullptr
                                ? nullptr
                                : options.device_scalars->of(static_cast<std::size_t>(&slot - slots_.data()))};
}

std::uint64_t Optimizer::rounding_of(const Slot& slot) const {
  const auto narrow = [](const at::Tensor& moment) {
    return moment.defined() && moment.scalar_type() == at::kBFloat16;
  };
  if (slot.param.has_master && std::ranges::none_of(slot.moments, narrow)) return 0;
  const layout::Placement& placement = slot.param.placement;
  const std::uint64_t key = Random(0, "rounding/" + slot.param.name).bits(static_cast<std::uint64_t>(steps()));
  return kernels::rounding_from(key, placement.partition ? placement.partition->begin : 0);
}

std::uint64_t Optimizer::weight_rounding(const Slot& slot) const {
  return slot.param.master.scalar_type() == at::kBFloat16 ? rounding_of(slot) : 0;
}

std::vector<nn::Param*> matrices_of(const spec::OptimConfig& config, nn::Params& params) {
  std::vector<nn::Param*> found;
  for (nn::Param& param : params) {
    if (param.trainable && spec::treats_as_matrix(config, param.name, param.placement.shape.size()))
      found.push_back(&param);
  }
  return found;
}

std::unique_ptr<Optimizer> make_optimizer(const spec::OptimConfig& config, nn::Params& params,
                                          std::unique_ptr<MatrixOwners> owners) {
  if (auto problems = spec::find_problems(config); !problems.empty()) {
    throw config::ProblemsError("the optimizer's configuration", std::move(problems));
  }
  for (const Maker& maker : kMakers) {
    if (maker.kind == config.kind) return maker.make({config, params, std::move(owners)});
  }
  throw InternalError("an optimizer of this kind is not in the table");
}

}  // namespace trireme::optim
