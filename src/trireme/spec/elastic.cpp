#include "trireme/spec/elastic.h"

#include <numeric>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::spec {
namespace {

std::vector<int> divisors_from_above(int number) {
  std::vector<int> divisors;
  for (int divisor = number; divisor >= 1; --divisor) {
    if (number % divisor == 0) divisors.push_back(divisor);
  }
  return divisors;
}

}  // namespace

ParallelConfig fit_ranks(const ParallelConfig& config, int ranks) {
  TRIREME_CHECK(ranks >= 1, "a run on {} ranks", ranks);
  const LayoutConfig& before = config.layout;
  for (const int tp : divisors_from_above(before.tp)) {
    for (const int pp : divisors_from_above(before.pp)) {
      for (const int cp : divisors_from_above(before.cp)) {
        const int each = tp * pp * cp;
        if (ranks % each != 0) continue;
        ParallelConfig fitted = config;
        LayoutConfig& layout = fitted.layout;
        layout.tp = tp, layout.pp = pp, layout.cp = cp;
        const int dp = ranks / each;
        if (before.dp) layout.dp = dp;
        if (tp == 1) layout.sequence_parallel = layout.tp_overlap = layout.sp_save_gathered = false;
        layout.cp_ulysses = std::gcd(before.cp_ulysses, cp);
        if (before.zero_group && dp % *before.zero_group != 0) layout.zero_group.reset();
        if (static_cast<int>(before.dp_batch_weights.size()) != dp) layout.dp_batch_weights.clear();
        if (pp != before.pp && pp == 1) fitted.pipeline = {};
        if (pp != before.pp) fitted.pipeline.stage_ranks.clear();
        if (pp == 1 && config.recompute == RecomputeKind::kStage) fitted.recompute = RecomputeKind::kFull;
        if (tp == 1) fitted.pipeline.scatter_gather = fitted.partition_activations = false;
        return fitted;
      }
    }
  }
  throw InternalError("one rank for each replica always fits");
}

std::optional<FittedWorld> fit_world(const ParallelConfig& config, int available,
                                     const std::function<bool(const ParallelConfig& config, int ranks)>& allowed) {
  const auto keeps_axes = [&](const ParallelConfig& fitted) {
    return fitted.layout.tp == config.layout.tp && fitted.layout.pp == config.layout.pp &&
           fitted.layout.cp == config.layout.cp;
  };
  for (const bool must_keep : {true, false}) {
    for (int ranks = available; ranks >= 1; --ranks) {
      const ParallelConfig fitted = fit_ranks(config, ranks);
      if ((!must_keep || keeps_axes(fitted)) && allowed(fitted, ranks)) return FittedWorld{ranks, fitted};
    }
  }
  return std::nullopt;
}

}  // namespace trireme::spec
