#include "trireme/experiment/searches/full_training.h"

#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {

FullTraining::FullTraining(int trials, std::int64_t steps, Suggest suggest)
    : trials_(trials), steps_(steps), suggest_(std::move(suggest)), draws_(static_cast<std::size_t>(trials)) {}

std::optional<Job> FullTraining::next() {
  if (!again_.empty()) {
    const Job job = again_.front();
    again_.erase(again_.begin());
    return job;
  }
  if (started_ == trials_) return std::nullopt;
  const int trial = started_++;
  return Job{.trial = trial, .until = steps_, .setting = suggest_(trial, 0).value()};
}

void FullTraining::tell(const Result& result) {
  if (result.end != Result::End::kInvalid) return;
  int& draw = draws_[static_cast<std::size_t>(result.trial)];
  if (++draw >= kMostDraws) return;
  if (const auto setting = suggest_(result.trial, draw)) {
    again_.push_back({.trial = result.trial, .draw = draw, .until = steps_, .setting = *setting});
  }
}

}  // namespace trireme::experiment
