// plan/published_layouts.h -- layouts that others published as best beside the planner's, and where the difference is.
//
// Decisions are freed one after the other: first micro-batch and virtual stages, then stages against replicas, then
// tensor parallelism. What each gains says which decision the two differ in.
// Depends on: published, search.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/published.h"

namespace trireme::plan {

struct LayoutComparison {
  std::string id;
  Estimate published;  ///< as printed; what is not printed is chosen
  Estimate micros;     ///< micro-batch and virtual stages free
  Estimate stages;     ///< pp and dp too
  Estimate best;       ///< tp too; recomputation, ZeRO stage, batch and precision stay as published

  /// How much longer one takes than the planner's best.
  double slower(const Estimate& one) const { return one.step_seconds() / best.step_seconds() - 1; }
};

/// Runs whose layout is printed and was the source's best: those of Megatron SC'21, Llama 3 and MT-NLG.
std::vector<LayoutComparison> compare_layouts(const std::vector<PublishedSource>& sources);

}  // namespace trireme::plan
