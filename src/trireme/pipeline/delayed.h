// pipeline/delayed.h -- what an asynchronous schedule computes, on one rank: the mathematics that it is held against.
//
//   DelayedGradients delayed(model, split, law_of(table), predictor);
//   delayed.begin();                                        // weights are those of a drain
//   for step: for micro of step: delayed.add(micro, number);  // gradients, each pass with the weights its law says
//             optimizer->step(...); delayed.updated();
//
// One step after the other, versions kept for as long as any micro could be on its way. Nothing of the executor is in
// here: no table is executed, nothing stashed or loaded.
// Depends on: base, schedule, models, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/pipeline/split.h"
#include "trireme/pipeline/stage.h"
#include "trireme/pipeline/versions.h"

namespace trireme::pipeline {

/// The weights after `present` updates since the last drain, predicted so many updates `ahead`.
struct DelayedVersion {
  int present = 0, ahead = 0;
  auto operator<=>(const DelayedVersion&) const = default;
};
/// Of a pass of a micro through a chunk; micros are numbered from the last drain on.
using DelayLaw = std::function<DelayedVersion(int chunk, int micro, bool forward)>;

/// As the papers say for the law's kind, counted from chunks and steps alone; how far predictions reach, and what
/// micros meet that take turns on the ranks of a stage, is taken from the table. For one chunk a rank.
DelayLaw law_of(const schedule::Schedule& table);

class DelayedGradients {
 public:
  /// Model and predictor are borrowed; `predictor` may be null where the law predicts nothing. `micros`: until the next
  /// drain, at most.
  DelayedGradients(models::Model& model, Split split, DelayLaw law, int micros, WeightPredictor* predictor);
  /// Delayed FP8 scales go with versions of weights (borrowed); `every`: micros of a step.
  void use_scales(ScaleVersions* scales, int every) { scales_ = scales, every_ = every; }

  /// The present weights are version 0.
  void begin();
  /// Adds the gradients of a micro, the `number`-th; its losses are in its context.
  void add(Micro& micro, int number);
  /// After an update: the present weights are the next version.
  void updated();

 private:
  using Copy = std::map<const nn::Param*, at::Tensor>;
  void remember();

  models::Model& model_;
  Split split_;
  DelayLaw law_;
  int micros_;
  WeightPredictor* predictor_;
  ScaleVersions* scales_ = nullptr;
  int every_ = 1;
  int present_ = 0;
  std::map<DelayedVersion, Copy> versions_;
};

}  // namespace trireme::pipeline
