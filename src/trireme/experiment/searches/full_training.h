// experiment/searches/full_training.h -- trials that are all trained to the end: grid, random and Latin hypercube.
//
// Depends on: search.
#pragma once

#include <functional>
#include <vector>

#include "trireme/experiment/search.h"

namespace trireme::experiment {

class FullTraining : public Search {
 public:
  /// The setting of a trial; nothing: there is no other than the invalid one before.
  using Suggest = std::function<std::optional<Setting>(int trial, int draw)>;
  FullTraining(int trials, std::int64_t steps, Suggest suggest);

  std::optional<Job> next() override;
  void tell(const Result& result) override;
  std::vector<std::int64_t> evaluation_steps() const override { return {steps_}; }

 private:
  int trials_, started_ = 0;
  std::int64_t steps_;
  Suggest suggest_;
  std::vector<int> draws_;  // of each trial
  std::vector<Job> again_;  // with another setting
};

}  // namespace trireme::experiment
