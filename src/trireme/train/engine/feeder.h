// train/engine/feeder.h -- this rank's batches, step after step, read in the background.
//
// Depends on: data, train/engine/step_plan.h.
#pragma once

#include <memory>
#include <vector>

#include "trireme/data/prefetch.h"
#include "trireme/data/samples.h"
#include "trireme/train/engine/step_plan.h"

namespace trireme::train {

/// A step's batches, one a microbatch.
struct Fetched {
  StepPlan plan;
  std::vector<data::Batch> batches;
  double waited_s = 0;
};

class Feeder {
 public:
  /// `recipe` and `samples` are borrowed.
  Feeder(const spec::Recipe& recipe, const data::Samples& samples, spec::Position from, Share share);
  Fetched next();

 private:
  const spec::Recipe& recipe_;
  Share share_;
  spec::Position position_;
  std::unique_ptr<data::Prefetch> prefetch_;
};

}  // namespace trireme::train
