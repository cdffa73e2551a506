// experiment/searches/halving.h -- one bracket of synchronous halving: a rung begins when the one below is complete.
//
// Depends on: search.
#pragma once

#include <vector>

#include "trireme/experiment/search.h"

namespace trireme::experiment {

class Halving : public Search {
 public:
  /// Its trials are numbered from `first` on.
  Halving(const SearchOptions& options, Bracket bracket, int first = 0);

  std::optional<Job> next() override;
  void tell(const Result& result) override;
  std::vector<std::int64_t> evaluation_steps() const override;
  int first() const { return first_; }
  int trials() const { return bracket_.front().trials; }

 private:
  Job job_of(int trial) const;
  void promote();

  SearchOptions options_;
  Bracket bracket_;
  int first_;
  std::size_t rung_ = 0;
  std::vector<int> draws_;       // of each trial, counted from `first`
  std::vector<int> waiting_;     // trials of this rung that nobody has asked for yet
  std::vector<Result> results_;  // of this rung
  std::size_t expected_;         // results of this rung
};

}  // namespace trireme::experiment
