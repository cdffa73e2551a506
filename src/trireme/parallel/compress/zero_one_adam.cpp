// 0/1 Adam (Lu et al. 2022): the variance is updated more and more rarely, and in between copies take steps by
// themselves and exchange, now and then, the sum of their steps in one bit an element.
//
// A variance step is a dense step of Adam, from equal weights. Others leave v as it is: each copy moves its own
// momentum and weights, and adds rate m^ to u. A round takes the compressed mean of u and goes on from the weights x'
// of the round before:  x = x' - u / (sqrt(v^) + eps),  m = u / (sum of rates),  u = 0. There is one before every
// variance step.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/parallel/compress/adam_moments.h"
#include "trireme/parallel/compress/compressed_reducer.h"
#include "trireme/parallel/compress/local_weights.h"
#include "trireme/parallel/compress/scaled_signs.h"

namespace trireme::parallel {
namespace {

class ZeroOneAdam final : public CompressedReducer {
 public:
  explicit ZeroOneAdam(const ReducerParts& parts)
      : CompressedReducer(parts, Scope::kAll),
        signs_(terms(), make_residuals(), groups(), options()),
        local_(plan(), groups(), options().copies) {}

  layout::AxisNames drift_axes() const override { return options().copies; }
  void attach(optim::Optimizer& optimizer) override {
    optimizer_ = &optimizer;
    moments_.emplace(optimizer);
    local_.take();
    anchor_ = local_.like_masters();
    steps_ = local_.like_masters();
    for (at::Tensor& u : steps_) u.zero_();
  }
  void begin_step(std::int64_t step) override {
    CompressedReducer::begin_step(step);
    if (optimizer_ == nullptr) return;
    const std::int64_t updates = clock_.updates + (was_dense() ? 1 : 0);
    optimizer_->set_adam_phase(
        {.variance_updates = std::max<std::int64_t>(1, updates), .freeze_variance = !was_dense()});
  }
  void settle(Bucket& bucket) override {
    if (was_dense()) return CompressedReducer::settle(bucket);
    if (!std::exchange(waited_, true)) wait_inside();
    mutable_report().dense_bytes += 2.0 * (copies() - 1) / copies() * static_cast<double>(bucket.sending.nbytes());
    bucket.sending.mul_(copies() * loss_scale());  // the mean over this copy's own tokens
    bucket.arriving = bucket.sending;
  }
  void finish(std::span<Bucket> buckets) override {
    waited_ = false;
    CompressedReducer::finish(buckets);
  }
  void step_taken(const TakenStep& taken) override {
    if (was_dense()) {
      updated_variance();
      for (std::size_t i = 0; i < anchor_.size(); ++i) anchor_[i].copy_(local_.params()[i]->master);
    } else {
      add_step(taken.learning_rate);
      if (round_is_due()) meet();
    }
    local_.take();
  }
  void loaded(nn::Params&) override { local_.give_back(); }
  void add_state(nn::State& state) override;
  std::int64_t bytes() const override { return signs_.bytes() + 3 * local_.bytes(); }

 protected:
  bool is_dense(std::int64_t step) const override { return step < config().start || step >= clock_.next_update; }
  std::string method() const override {
    return fmt::format(
        "a copy's norm, clip -> a copy's step of Adam, its variance as it is -> every 1 to {} steps sum of steps + "
        "residual -> signs and a scale -> all-to-all, mean, + residual -> signs and a scale, all-gather",
        config().max_local_steps);
  }
  std::string ending() const override {
    return fmt::format(
        "weights; at variance steps (their interval doubles after {} of them) dense sum -> global norm, clip -> "
        "optimizer",
        config().variance_scale);
  }
  double term_bytes(const Term& term) const override { return ScaledSigns::bytes_of(term, term.copies); }
  Stages stages(ExchangeLanes&, std::span<Term>) override { throw InternalError("0/1 Adam exchanges no gradients"); }

 private:
  /// What the next step is follows from these.
  struct Clock {
    std::int64_t updates = 0, next_update = 0;  // of the variance
    std::int64_t local_steps = 0;               // since the last round
    double rates = 0;                           // their learning rates, corrected for the momentum's bias
  };

  void updated_variance() {
    ++clock_.updates;
    const std::int64_t doublings = std::min<std::int64_t>(40, clock_.updates / config().variance_scale);
    clock_.next_update = step() + (step() < config().start ? 1 : std::int64_t{1} << doublings);
    if (config().freeze_after && clock_.next_update >= *config().freeze_after)
      clock_.next_update = std::numeric_limits<std::int64_t>::max();
  }
  bool round_is_due() const {
    const std::int64_t doublings = std::min<std::int64_t>(20, step() / config().local_scale);
    const std::int64_t interval = std::min<std::int64_t>(config().max_local_steps, std::int64_t{1} << doublings);
    return clock_.local_steps >= interval || step() + 1 >= clock_.next_update;
  }
  double corrected(double learning_rate) const {
    return learning_rate / (1 - std::pow(optimizer_->config().beta1, static_cast<double>(optimizer_->steps())));
  }
  spec::ParamRule rule(const nn::Param& param) const {
    return spec::rule_for(optimizer_->config(), param.name, param.decay);
  }

  void add_step(double learning_rate) {
    ++clock_.local_steps;
    clock_.rates += corrected(learning_rate);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const nn::Param& param = *local_.params()[i];
      const spec::ParamRule rules = rule(param);
      steps_[i].view({-1}).add_(moments_->m(param.name), corrected(learning_rate) * rules.rate);
      // Decay is not exchanged: it is the same everywhere when it is taken of what all have.
      if (optimizer_->config().kind == spec::OptimizerKind::kAdamw)
        anchor_[i].mul_(1 - learning_rate * rules.rate * rules.weight_decay);
    }
  }

  void meet() {
    const auto begin = std::chrono::steady_clock::now();
    ScaledSigns::Round round;
    std::vector<at::Tensor> rest;
    std::int64_t rest_elements = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const nn::Param& param = *local_.params()[i];
      if (is_term(param)) {  // terms are by name too
        round.values.push_back(steps_[i].view({-1}));
        round.variances.push_back(moments_->v(param.name));
        mutable_report().elements += steps_[i].numel();
      } else {
        rest.push_back(steps_[i].view({-1}));
        rest_elements += steps_[i].numel();
      }
    }
    begin_errors();
    round.terms.assign(terms().begin(), terms().end());
    signs_.mean(exchange(), round);
    for (std::size_t i = 0; i < round.errors.size(); ++i)
      note_error(terms()[i], round.errors[i].left, round.errors[i].whole);
    read_errors();
    signs_.keep();
    mean_dense(rest, rest_elements);
    const double root = 1 / std::sqrt(1 - std::pow(optimizer_->config().beta2, static_cast<double>(clock_.updates)));
    const double epsilon = spec::epsilon_of(optimizer_->config());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      nn::Param& param = *local_.params()[i];
      const at::Tensor v = moments_->v(param.name), u = steps_[i].view({-1});
      const at::Tensor moved = u.div(v.sqrt().mul_(root).add_(epsilon)).masked_fill_(v.eq(0), 0);
      anchor_[i].view({-1}).sub_(moved);
      param.master.copy_(anchor_[i]);
      const double rates = clock_.rates * rule(param).rate;
      at::Tensor m = moments_->m(param.name);
      rates > 0 ? m.copy_(u).div_(rates).masked_fill_(v.eq(0), 0) : m.zero_();
      u.zero_();
      publish_changed(param);
    }
    clock_.local_steps = 0;
    clock_.rates = 0;
    ++mutable_report().rounds;
    mutable_report().sent_bytes += exchange().take_sent_bytes();
    count_seconds(seconds_since(begin));
  }

  bool is_term(const nn::Param& param) {
    return std::ranges::any_of(terms(), [&](const Term& term) { return term.param == &param; });
  }
  void mean_dense(std::vector<at::Tensor>& tensors, std::int64_t elements) {
    if (elements == 0 || copies() == 1) return;
    at::Tensor flat = at::empty({elements}, tensors.front().options());
    std::int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      flat.narrow(0, at, tensor.numel()).copy_(tensor);
      at += tensor.numel();
    }
    exchange().sum(flat);
    flat.div_(copies());
    at = 0;
    for (at::Tensor& tensor : tensors) {
      tensor.copy_(flat.narrow(0, at, tensor.numel()));
      at += tensor.numel();
    }
  }

  ScaledSigns signs_;
  LocalWeights local_;
  optim::Optimizer* optimizer_ = nullptr;
  std::optional<AdamMoments> moments_;
  std::vector<at::Tensor> anchor_, steps_;  // x' with its decay, and u
  Clock clock_;
  bool waited_ = false;
};

void ZeroOneAdam::add_state(nn::State& state) {
  TRIREME_CHECK(optimizer_ != nullptr, "0/1 Adam has no optimizer");
  signs_.add_state(state);
  local_.add_state(state);
  local_.add_equal(state, "reduce/anchor", anchor_);
  local_.add_stacked(state, "reduce/steps-sum", steps_, nn::CopiesRule::kOwnOrZero);
  state.add_value(
      "reduce/zero-one-adam",
      [this] {
        return nlohmann::ordered_json{{"updates", clock_.updates},
                                      {"next_update", clock_.next_update},
                                      {"local_steps", clock_.local_steps},
                                      {"rates", clock_.rates}};
      },
      [this](const nlohmann::ordered_json& value) {
        clock_ = {.updates = value.at("updates").get<std::int64_t>(),
                  .next_update = value.at("next_update").get<std::int64_t>(),
                  .local_steps = value.at("local_steps").get<std::int64_t>(),
                  .rates = value.at("rates").get<double>()};
      });
}

}  // namespace

std::unique_ptr<BucketReducer> make_zero_one_adam(const ReducerParts& parts) {
  return std::make_unique<ZeroOneAdam>(parts);
}

}  // namespace trireme::parallel
