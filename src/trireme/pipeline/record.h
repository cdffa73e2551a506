// pipeline/record.h -- the last walks of a table by all ranks of a pipeline, as schedule/timeline.h knows them.
//
// Depends on: comm, schedule, executor.
#pragma once

#include <deque>

#include "trireme/pipeline/executor.h"
#include "trireme/schedule/timeline.h"

namespace trireme::pipeline {

class WalkRecord {
 public:
  /// Keeps so many; the table is borrowed.
  explicit WalkRecord(const schedule::Schedule& table, std::size_t most = 8) : table_(table), most_(most) {}
  /// A run with keep_spans that went back nowhere.
  void add(const RunReport& report);
  std::size_t size() const { return walks_.size(); }
  /// The walks of all ranks, oldest first, on rank 0; empty elsewhere. On all ranks of the pipeline together, which
  /// share a clock: on several machines lanes of different machines are shifted by what their clocks differ.
  std::vector<schedule::Timeline> gather(comm::Group& pipeline) const;

 private:
  const schedule::Schedule& table_;
  std::size_t most_;
  std::deque<std::vector<double>> walks_;  // begin and end of each instruction, by the machine's clock
};

}  // namespace trireme::pipeline
