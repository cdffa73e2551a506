#include "trireme/train/engine/step_driver.h"

#include <fmt/format.h>

#include <cmath>

#include "trireme/train/engine/train_state.h"
#include "trireme/train/servers/sandblaster_driver.h"

namespace trireme::train {

void tell_losses(StepReport& report, const std::vector<nn::LossTerm>& terms, const nn::LossCounts& counts) {
  report.loss = nn::total_of(terms, counts);
  report.losses.clear();
  for (const nn::LossTerm& term : terms) {
    report.losses.push_back({.name = term.name, .mean = nn::mean_of(term, counts), .weight = term.weight});
  }
}

std::string describe_loss(const StepReport& report) {
  std::string text = fmt::format("the loss is {}", report.loss);
  if (report.losses.size() < 2) return text;
  for (const observe::NamedLoss& term : report.losses) {
    if (term.weight != 0 && !std::isfinite(term.mean)) text += fmt::format(", its term {} {}", term.name, term.mean);
  }
  return text;
}

std::unique_ptr<StepDriver> make_driver(TrainState& state) {
  if (auto* several = std::get_if<std::unique_ptr<MultiStepEngine>>(&state.any_engine)) {
    return make_multi_step_driver(state, **several);
  }
  auto& single = *std::get<std::unique_ptr<SingleStepEngine>>(state.any_engine);
  switch (state.recipe.train.mode) {
    case spec::TrainMode::kDownpour:
      return make_downpour_driver(state, single);
    case spec::TrainMode::kSandblaster:
      return make_sandblaster_driver(state, single);
    case spec::TrainMode::kSynchronous:
      break;
  }
  return make_synchronous_driver(state, single);
}

}  // namespace trireme::train
