#include "trireme/pipeline/delayed.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/pipeline/scale_versions.h"
#include "trireme/schedule/check.h"

namespace trireme::pipeline {
namespace {

using schedule::WeightChoice;

class Given final : public nn::WeightSource {
 public:
  explicit Given(const std::map<const nn::Param*, at::Tensor>& values) : values_(values) {}
  const at::Tensor& value(const nn::Param& param) override { return values_.at(&param); }

 private:
  const std::map<const nn::Param*, at::Tensor>& values_;
};

/// Micros that have come back through chunk c of p when this one comes in.
int back_before(int micro, int chunk, int chunks) { return std::max(0, micro - (chunks - 1 - chunk)); }

}  // namespace

DelayLaw law_of(const schedule::Schedule& table) {
  const int chunks = table.chunks();
  TRIREME_CHECK(chunks <= static_cast<int>(table.ranks.size()), "schedule {} has several chunks a rank", table.name);
  const int every = table.update_every > 0 ? table.update_every : table.micros;
  switch (table.weights) {
    case WeightChoice::kFlush:
      return [=](int, int micro, bool) -> DelayedVersion { return {micro / every, 0}; };
    case WeightChoice::kStash:
      if (table.routes.size() > 1) {
        // Where ranks of a stage take turns it is the forwards before it on its own rank that count.
        return [uses = schedule::check(table).uses](int chunk, int micro, bool) -> DelayedVersion {
          return {uses.forward(chunk, micro), 0};
        };
      }
      return [=](int chunk, int micro, bool) -> DelayedVersion {
        return {back_before(micro, chunk, chunks) / every, 0};
      };
    case WeightChoice::kVerticalSync:
      return [=](int, int micro, bool) -> DelayedVersion { return {back_before(micro, 0, chunks) / every, 0}; };
    case WeightChoice::kDoubleBuffer:
      return [=](int, int micro, bool) -> DelayedVersion { return {std::max(0, micro / every - 1), 0}; };
    case WeightChoice::kStale:
      return [=](int chunk, int micro, bool forward) -> DelayedVersion {
        return {(forward ? back_before(micro, chunk, chunks) : micro) / every, 0};
      };
    case WeightChoice::kWaves:
      TRIREME_CHECK(false, "schedule {} is synchronised in waves: delayed_waves.h", table.name);
    case WeightChoice::kPredictMomentum:
    case WeightChoice::kPredictAdam:
      break;
  }
  // The first micro of a step predicts for all of it.
  return [aimed = schedule::check(table).uses, present = schedule::present_versions(table), every](
             int chunk, int mate, bool forward) -> DelayedVersion {
    const int micro = mate - mate % every;
    const int at = forward ? present.forward(chunk, micro) : present.backward(chunk, micro);
    return {at, (forward ? aimed.forward(chunk, micro) : aimed.backward(chunk, micro)) - at};
  };
}

DelayedGradients::DelayedGradients(models::Model& model, Split split, DelayLaw law, int micros,
                                   WeightPredictor* predictor)
    : model_(model), split_(std::move(split)), law_(std::move(law)), micros_(micros), predictor_(predictor) {}

void DelayedGradients::begin() {
  versions_.clear();
  if (scales_ != nullptr) scales_->begin();
  present_ = 0;
  remember();
}

void DelayedGradients::updated() {
  if (scales_ != nullptr) scales_->updated(present_);
  ++present_;
  remember();
}

/// The present weights, and whatever is ever predicted from them.
void DelayedGradients::remember() {
  const auto copy = [&](int ahead) {
    const auto [found, is_new] = versions_.try_emplace({present_, ahead});
    if (!is_new) return;
    for (const nn::Param& param : model_.params) {
      TRIREME_CHECK(ahead == 0 || predictor_ != nullptr, "there is no weight predictor");
      at::Tensor value = at::empty_like(param.value);
      value.copy_(ahead == 0 ? param.value : predictor_->after(param, ahead));
      found->second.emplace(&param, std::move(value));
    }
  };
  // No law reaches further back than a micro is in flight.
  const int oldest = present_ - 2 * static_cast<int>(split_.size());
  std::erase_if(versions_, [&](const auto& entry) { return entry.first.present < oldest; });
  copy(0);
  if (predictor_ == nullptr) return;
  for (int chunk = 0; chunk < static_cast<int>(split_.size()); ++chunk) {
    for (int micro = 0; micro < micros_; ++micro) {
      for (const bool forward : {true, false}) {
        const DelayedVersion wanted = law_(chunk, micro, forward);
        if (wanted.present == present_) copy(wanted.ahead);
      }
    }
  }
}

void DelayedGradients::add(Micro& micro, int number) {
  nn::Tape tape;
  nn::Tensors tensors = micro.inputs;
  const int chunks = static_cast<int>(split_.size());
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const DelayedVersion version = law_(chunk, number, /*forward=*/true);
    Given weights(versions_.at(version));
    micro.context.weights = &weights;
    if (scales_ != nullptr) scales_->enter(version.present, number / every_);
    const auto [begin, end] = split_[static_cast<std::size_t>(chunk)];
    for (std::size_t i = begin; i < end; ++i) {
      tensors = model_.layers[i].layer->forward(std::move(tensors), micro.context, &tape);
    }
  }
  tensors.assign(1, at::Tensor());
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    const DelayedVersion version = law_(chunk, number, /*forward=*/false);
    Given weights(versions_.at(version));
    micro.context.weights = &weights;
    if (scales_ != nullptr) scales_->enter(version.present, number / every_);
    const auto [begin, end] = split_[static_cast<std::size_t>(chunk)];
    for (std::size_t i = end; i > begin; --i) {
      tensors = model_.layers[i - 1].layer->backward(std::move(tensors), micro.context, tape);
    }
  }
  micro.context.weights = nullptr;
}

}  // namespace trireme::pipeline
