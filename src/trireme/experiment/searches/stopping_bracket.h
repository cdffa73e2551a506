// experiment/searches/stopping_bracket.h -- ASHA that stops trials instead of promoting them, one bracket of it.
//
// Depends on: search.
#pragma once

#include <vector>

#include "trireme/experiment/search.h"

namespace trireme::experiment {

class StoppingBracket : public Search {
 public:
  struct Size {
    int first = 0;  ///< its trials are numbered from here on
    int trials = 0, rungs = 0;
    int concurrent = 0;  ///< trials at once; 0: as many as ask
  };
  StoppingBracket(const SearchOptions& options, const Size& size);

  std::optional<Job> next() override;
  void tell(const Result& result) override;
  std::vector<std::int64_t> evaluation_steps() const override { return steps_; }
  bool owns(int trial) const { return trial >= size_.first && trial < size_.first + size_.trials; }
  int running() const { return running_; }

 private:
  Job job_of(int trial) const;

  SearchOptions options_;
  Size size_;
  std::vector<std::int64_t> steps_;
  std::vector<std::vector<double>> seen_;  // losses at each rung, sorted
  std::vector<int> draws_;                 // of each trial, counted from `first`
  std::vector<std::size_t> rungs_;         // each trial is being trained for
  std::vector<int> ready_;                 // trials to go on, and those that are drawn again
  int started_ = 0, running_ = 0;
};

}  // namespace trireme::experiment
