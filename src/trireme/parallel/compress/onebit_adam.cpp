// 1-bit Adam (Tang et al. 2021): plain Adam until its variance is stable; then the variance is frozen, and what copies
// exchange is the momentum, in one bit an element:
//   x = b1 m + (1 - b1) g of each copy,  m <- compressed mean of x,  w <- w - rate m^ / (sqrt(v^) + eps)
// with v^ as it was corrected when it was frozen.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/layout/reduction.h"
#include "trireme/parallel/compress/adam_moments.h"
#include "trireme/parallel/compress/compressed_reducer.h"
#include "trireme/parallel/compress/scaled_signs.h"

namespace trireme::parallel {
namespace {

class OnebitAdam final : public CompressedReducer {
 public:
  explicit OnebitAdam(const ReducerParts& parts)
      : CompressedReducer(parts), signs_(terms(), make_residuals(), groups(), options()) {}

  void attach(optim::Optimizer& optimizer) override {
    optimizer_ = &optimizer;
    moments_.emplace(optimizer);
  }
  void begin_step(std::int64_t step) override {
    CompressedReducer::begin_step(step);
    if (optimizer_ == nullptr) return;
    optimizer_->set_adam_phase(
        was_dense()
            ? optim::AdamPhase{}
            : optim::AdamPhase{.variance_updates = frozen_at_, .freeze_variance = true, .gradient_is_momentum = true});
  }
  void step_taken(const TakenStep& taken) override {
    if (!was_dense()) return signs_.keep();
    look_at_variance(taken.learning_rate);
  }
  void add_state(nn::State& state) override {
    signs_.add_state(state);
    state.add_value(
        "reduce/onebit-adam",
        [this] {
          return nlohmann::ordered_json{{"frozen_at", frozen_at_}, {"norm", norm_}, {"learning_rate", rate_}};
        },
        [this](const nlohmann::ordered_json& value) {
          frozen_at_ = value.at("frozen_at").get<std::int64_t>();
          norm_ = value.at("norm").get<double>();
          rate_ = value.at("learning_rate").get<double>();
        });
  }
  std::int64_t bytes() const override { return signs_.bytes(); }

 protected:
  bool is_dense(std::int64_t) const override { return frozen_at_ == 0; }
  std::string method() const override {
    return "momentum + residual -> signs and a scale -> all-to-all, mean, + residual -> signs and a scale, all-gather";
  }
  std::string ending() const override {
    const std::string when =
        config().freeze_after ? fmt::format("step {}", *config().freeze_after) : std::string("the variance is stable");
    return fmt::format(
        "Adam by that momentum, its variance frozen and nothing clipped; until {} dense sum -> global norm, clip -> "
        "optimizer",
        when);
  }
  double term_bytes(const Term& term) const override { return ScaledSigns::bytes_of(term, term.copies); }

  Stages stages(ExchangeLanes& lanes, std::span<Term> terms) override {
    TRIREME_CHECK(moments_.has_value(), "1-bit Adam has no optimizer");
    const auto round = std::make_shared<ScaledSigns::Round>();  // shared by the stages
    if (on_gpu()) {
      return {[=, this, &lanes] {
        make_momenta(terms, *round);
        signs_.mean(lanes.first, *round);
        note_errors(terms, *round);
        return comm::Work();
      }};
    }
    return {[=, this, &lanes] {
              make_momenta(terms, *round);
              return signs_.begin(lanes.first, *round);
            },
            [=, this, &lanes] { return signs_.answer(lanes.second, *round); },
            [=, this, &lanes] {
              ScaledSigns::end(lanes.second, *round);
              note_errors(terms, *round);
              return comm::Work();
            }};
  }
  void after_rest(const nn::Param& param, at::Tensor gradient) override {
    // Of what ranks of a copy hold together (norms with sequence parallelism) each has a part of the gradient: they are
    // summed next, and the momentum must count once.
    const double beta1 = optimizer_->config().beta1;
    const layout::Mesh& mesh = groups().mesh();
    const int parts = mesh.group_size(
        layout::subtract(mesh, layout::shared_reduction_axes(mesh, param.placement, param.equal_axes), options().data));
    gradient.mul_(1 - beta1).add_(moments_->m(param.name), beta1 / parts);
  }

 private:
  /// In place of the gradients.
  void make_momenta(std::span<Term> terms, ScaledSigns::Round& round) {
    const double beta1 = optimizer_->config().beta1;
    for (Term& term : terms) {
      // Gradients are parts of the mean over all copies: a copy's own mean is so many times larger.
      term.data.mul_((1 - beta1) * term.copies).add_(moments_->m(term.param->name), beta1);
      round.terms.push_back(term);
      round.values.push_back(term.data);
      round.variances.push_back(moments_->v(term.param->name));
    }
  }
  void note_errors(std::span<const Term> terms, const ScaledSigns::Round& round) {
    for (std::size_t i = 0; i < terms.size(); ++i) note_error(terms[i], round.errors[i].left, round.errors[i].whole);
  }
  /// Tang et al., section 4: stable over 1 / (1 - beta2) steps, never while the learning rate still rises.
  void look_at_variance(double learning_rate) {
    TRIREME_CHECK(optimizer_ != nullptr, "1-bit Adam has no optimizer");
    const std::int64_t taken = step() + 1;
    if (config().freeze_after) {
      if (taken >= std::max(*config().freeze_after, config().start)) freeze();
      return;
    }
    const auto window =
        std::max<std::int64_t>(1, std::llround(1 / (1 - std::min(optimizer_->config().beta2, 1 - 1e-6))));
    if (taken % window != 0) return;
    double norm = 0;
    for (const nn::StateTensor& entry : moments_->all().tensors()) {
      if (entry.name.starts_with("optim/v/")) norm += entry.tensor.sum().item<double>();
    }
    if (groups().world().size() > 1)  // stages and parts of matrices; copies count alike
      groups().world().all_reduce(comm::Buffer{&norm, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
    const double before = std::exchange(norm_, norm), rate = std::exchange(rate_, learning_rate);
    const bool stable = before > 0 && std::min(before / norm, norm / before) >= config().freeze_ratio;
    if (stable && learning_rate <= rate && taken >= config().start) freeze();
  }
  void freeze() {
    frozen_at_ = optimizer_->steps();
    if (groups().rank() == 0)
      log_info("1-bit Adam: the variance is frozen after step {}; from now on the momentum is compressed", frozen_at_);
  }

  ScaledSigns signs_;
  optim::Optimizer* optimizer_ = nullptr;
  std::optional<AdamMoments> moments_;
  std::int64_t frozen_at_ = 0;
  double norm_ = 0, rate_ = 0;  // at the last look
};

}  // namespace

std::unique_ptr<BucketReducer> make_onebit_adam(const ReducerParts& parts) {
  return std::make_unique<OnebitAdam>(parts);
}

}  // namespace trireme::parallel
