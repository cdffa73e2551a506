// DiLoCo (Douillard et al. 2023): every H steps copies take the mean of how far they have come, the pseudo-gradient
// theta' - theta_i, and an outer Nesterov SGD steps by it from the weights theta' of the last round.
//
// Streaming DiLoCo (Douillard et al. 2025): layers in fragments, each every H steps and all evenly spread; a result is
// applied `delay` steps after it was sent, which hides the exchange behind them, and mixed with the local weights:
// theta <- alpha theta_i + (1 - alpha) theta'.
//
// Copies come and go where a state is read by another number of them: at a resume, or in a new world of an elastic run.
// One that leaves is missing in the next mean. One that joins begins with theta', the outer momentum that all have, and
// empty moments; in the mean of its first round it counts by the steps that it has taken, as all do.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/base/log.h"
#include "trireme/parallel/compress/delta_code.h"
#include "trireme/parallel/compress/local_updates.h"
#include "trireme/parallel/compress/outer_step.h"

namespace trireme::parallel {

int fragment_of(const std::string& name, int fragments) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t at = name.find(kLayers);
  if (at == std::string::npos) return name.find("embedding") != std::string::npos ? 0 : fragments - 1;
  int layer = 0;
  const char* digits = name.data() + at + kLayers.size();
  std::from_chars(digits, name.data() + name.size(), layer);
  return layer % fragments;
}

void outer_step(at::Tensor& weights, at::Tensor& momentum, const at::Tensor& delta,
                const spec::CompressConfig& config) {
  momentum.mul_(config.outer_momentum).add_(delta);
  if (config.outer_nesterov) {
    weights.sub_(delta.add(momentum, config.outer_momentum), config.outer_learning_rate);
  } else {
    weights.sub_(momentum, config.outer_learning_rate);
  }
}

namespace {

class Diloco final : public LocalUpdates {
 public:
  explicit Diloco(const ReducerParts& parts)
      : LocalUpdates(parts), fragments_(static_cast<std::size_t>(config().fragments)) {
    for (std::size_t i = 0; i < params().size(); ++i)
      fragments_[static_cast<std::size_t>(fragment_of(params()[i]->name, config().fragments))].params.push_back(i);
  }

  void add_state(nn::State& state) override {
    LocalUpdates::add_state(state);
    local().add_equal(state, "reduce/anchor", anchor_);
    local().add_equal(state, "reduce/outer-momentum", momentum_);
    if (rounds_off()) local().add_stacked(state, "reduce/residual", residual_, nn::CopiesRule::kSum);
    local().add_numbers(state, "reduce/local-steps", taken_);
    if (config().delay == 0) return;
    local().add_stacked(state, "reduce/sent", sent_, nn::CopiesRule::kOwnOrFirst);
    state.add_value(
        "reduce/diloco", [this] { return saved(); }, [this](const nlohmann::ordered_json& value) { restore(value); });
  }
  void loaded(nn::Params& owned) override {
    LocalUpdates::loaded(owned);
    at::Tensor joined = at::ones({1}, at::kLong).sub_(taken_.narrow(0, 0, 1));
    if (joined.item<std::int64_t>() != 0) {
      for (std::size_t i = 0; i < anchor_.size(); ++i) params()[i]->master.copy_(anchor_[i]);
      for (std::size_t i = 0; i < sent_.size() && !rounds_off(); ++i) sent_[i].zero_();  // else the mean of all
      local().take();
      taken_[0] = 1;
    }
    exchange().sum(joined);
    const auto count = joined.item<std::int64_t>();
    for (Fragment& fragment : fragments_) fragment.senders = copies() - static_cast<int>(count);
    at::Tensor steps = taken_.clone();
    exchange().sum(steps);
    at::Tensor differ = steps.ne(taken_.mul(copies())).any().to(at::kLong).view({1});
    exchange().sum(differ);
    uneven_ = differ.item<std::int64_t>() > 0;
    if (count > 0 && exchange().copy() == 0)
      log_info("DiLoCo: {} of {} copies are new: they begin with the weights of the last round and without moments",
               count, copies());
  }
  std::int64_t bytes() const override {
    return LocalUpdates::bytes() * (3 + (rounds_off() ? 1 : 0) + (config().delay > 0 ? 1 : 0));
  }

 protected:
  std::string method() const override {
    std::string text = fmt::format("pseudo-gradient{} every {} steps -> mean -> outer SGD {} / {}{}",
                                   rounds_off() ? " + residual, rounded" : "", interval(), config().outer_learning_rate,
                                   config().outer_momentum, config().outer_nesterov ? " (Nesterov)" : "");
    if (config().fragments > 1) text += fmt::format(", {} fragments in turn", config().fragments);
    if (config().delay > 0) text += fmt::format(", applied {} steps later", config().delay);
    if (config().mixing > 0) text += fmt::format(", {} of the local weights stay", config().mixing);
    return text;
  }
  double round_bytes(double elements, double width) const override {
    if (!rounds_off()) return LocalUpdates::round_bytes(elements, width);
    const double bytes = config().delta_dtype == spec::DeltaDtype::kFp16 ? 2 : 1 + width / kDeltaBlock;
    return 2.0 * (copies() - 1) / copies() * elements * bytes;
  }
  void start_from(std::span<nn::Param* const> params) override {
    if (anchor_.empty()) {
      taken_ = at::zeros({1 + config().fragments}, at::kLong);
      taken_[0] = 1;
      anchor_ = local().like_masters();
      for (auto* tensors : {&momentum_, &residual_, &sent_}) {
        *tensors = local().like_masters();
        for (at::Tensor& tensor : *tensors) tensor.zero_();
      }
    }
    for (std::size_t i = 0; i < params.size(); ++i) anchor_[i].copy_(params[i]->master);
  }
  void after_step(std::int64_t number, double /*learning_rate*/) override {
    const std::int64_t apart = interval() / config().fragments;
    taken_.narrow(0, 1, config().fragments).add_(1);
    for (std::size_t i = 0; i < fragments_.size(); ++i) {
      const std::int64_t offset = apart * static_cast<std::int64_t>(i + 1) % interval();
      if (number % interval() == offset) {
        send(fragments_[i], number, share_of(i));
        taken_[static_cast<std::int64_t>(i) + 1] = 0;
      }
      if (fragments_[i].apply_at == number) apply(fragments_[i]);
    }
  }

 private:
  struct Fragment {
    std::vector<std::size_t> params;
    std::int64_t apply_at = -1;  // local step; -1: nothing was sent
    at::Tensor flat = {};
    comm::Work work = {};  // of `flat`, so destroyed before it; after a restart there is none, and sent_ goes again
    int senders = 1;       // copies that have sent it: after a restart there may be more
  };

  bool rounds_off() const { return config().delta_dtype != spec::DeltaDtype::kFp32; }
  std::vector<at::Tensor> of(const Fragment& fragment, const std::vector<at::Tensor>& all) const {
    std::vector<at::Tensor> some;
    for (const std::size_t i : fragment.params) some.push_back(all[i]);
    return some;
  }

  /// What this copy's pseudo-gradient is multiplied by so that the mean over copies is one over the steps that they
  /// took: 1 where all took as many.
  double share_of(std::size_t fragment) {
    if (!uneven_) return 1;
    const std::int64_t mine = taken_[static_cast<std::int64_t>(fragment) + 1].item<std::int64_t>();
    at::Tensor steps = at::full({1}, mine, at::kLong);
    exchange().sum(steps);
    const auto all = steps.item<std::int64_t>();
    return all == 0 || mine * copies() == all ? 1 : static_cast<double>(mine * copies()) / static_cast<double>(all);
  }

  void send(Fragment& fragment, std::int64_t number, double share) {
    std::vector<at::Tensor> deltas;
    for (const std::size_t i : fragment.params) {
      deltas.push_back(anchor_[i].sub(params()[i]->master));
      if (share != 1) deltas.back().mul_(share);
      sent_[i].copy_(deltas.back());
    }
    fragment.flat = flatten_all(deltas);
    fragment.apply_at = number + config().delay;
    fragment.senders = copies();
    if (!rounds_off()) {
      fragment.work = exchange().start_sum(fragment.flat);
      return;
    }
    std::vector<at::Tensor> residuals = of(fragment, residual_), sent = of(fragment, sent_);
    at::Tensor residual = flatten_all(residuals);
    std::vector<std::int64_t> lengths;
    for (const at::Tensor& delta : deltas) lengths.push_back(delta.numel());
    mean_rounded(exchange(), fragment.flat, residual, lengths, config().delta_dtype);
    unflatten_all(residual, residuals);
    unflatten_all(fragment.flat, sent);  // the mean: what is applied, also after a restart
  }

  void apply(Fragment& fragment) {
    std::vector<at::Tensor> deltas = of(fragment, sent_);
    if (!rounds_off()) {
      if (!fragment.flat.defined()) {
        fragment.flat = flatten_all(deltas);
        fragment.work = exchange().start_sum(fragment.flat);
      }
      exchange().wait(std::exchange(fragment.work, comm::Work()));
      fragment.flat.div_(fragment.senders);
    } else if (!fragment.flat.defined()) {
      fragment.flat = flatten_all(deltas);
    }
    for (at::Tensor& delta : deltas) delta = delta.clone();  // sent_ is the state's
    unflatten_all(fragment.flat, deltas);
    for (std::size_t i = 0; i < deltas.size(); ++i) {
      const std::size_t at = fragment.params[i];
      outer_step(anchor_[at], momentum_[at], deltas[i], config());
      nn::Param& param = *params()[at];
      if (config().mixing == 0) {
        param.master.copy_(anchor_[at]);
      } else {
        param.master.mul_(config().mixing).add_(anchor_[at], 1 - config().mixing);
      }
      publish_changed(param);
    }
    count_round(fragment.flat.numel());
    fragment.flat = at::Tensor();
    fragment.apply_at = -1;
  }

  nlohmann::ordered_json saved() const {
    auto value = nlohmann::ordered_json::array();
    for (const Fragment& fragment : fragments_) value.push_back(fragment.apply_at);
    return value;
  }
  void restore(const nlohmann::ordered_json& value) {
    for (std::size_t i = 0; i < fragments_.size() && i < value.size(); ++i) {
      fragments_[i].work.wait();
      fragments_[i].work = {};
      fragments_[i].flat = at::Tensor();
      fragments_[i].apply_at = value[i].get<std::int64_t>();
    }
  }

  std::vector<Fragment> fragments_;
  std::vector<at::Tensor> anchor_, momentum_, residual_, sent_;
  at::Tensor taken_;     // whether this copy was there before, and its steps since each fragment was sent; on the host
  bool uneven_ = false;  // copies may differ in that
};

}  // namespace

std::unique_ptr<BucketReducer> make_diloco(const ReducerParts& parts) { return std::make_unique<Diloco>(parts); }

}  // namespace trireme::parallel
