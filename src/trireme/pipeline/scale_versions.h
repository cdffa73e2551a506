// pipeline/scale_versions.h -- delayed FP8 scales of a pipeline whose steps overlap: they go with versions of weights.
//
// A pass through a stage takes the scales that were made at the same update as its weights, and the largest numbers
// that it meets count for the step of its own micro-batch, whatever else the stage does in between. So the scales after
// n updates follow from the first n steps alone, as on one rank; what stages have to tell each other is nothing, what
// the ranks of one stage have to, one call an update. Steps that are taken back leave nothing behind.
// Depends on: comm, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

#include "trireme/nn/fp8.h"

namespace trireme::pipeline {

class ScaleVersions {
 public:
  /// `history` is borrowed. `agree`: takes the largest over all ranks that hold the same matrices or parts of them;
  /// empty: no other does.
  ScaleVersions(nn::Fp8History& history, nn::Fp8History::Agree agree) : history_(history), agree_(std::move(agree)) {}

  /// The present scales are version 0.
  void begin();
  /// A pass with the weights of this version, of a micro-batch of this step.
  void enter(int version, int step);
  /// All passes of this step are through here: the next version. On all ranks of `agree` together.
  void updated(int step);
  /// What later steps have met is forgotten: they begin anew.
  void rewind(int step);
  /// The present scales are the newest version; those of others' matrices are theirs to tell (Fp8History::share).
  void end();

 private:
  void leave();

  nn::Fp8History& history_;
  nn::Fp8History::Agree agree_;
  std::map<int, at::Tensor> scales_;   // by version, float [tensors]
  std::map<int, at::Tensor> largest_;  // by step, likewise
  int step_ = -1;                      // whose numbers the history's table takes; -1: nobody's
  bool known_ = false;                 // before the first version of this run
};

}  // namespace trireme::pipeline
