#include "trireme/spec/elastic.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/units.h"

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

void describe(config::Section<ElasticConfig>& section) {
  using namespace std::chrono_literals;
  section.meaning("ranks that die and join while a run goes on; read by `trireme elastic`, whose options beat it");
  section.field("min_ranks", &ElasticConfig::min_ranks, "with fewer ranks the run waits for more").at_least(1);
  section.field("max_ranks", &ElasticConfig::max_ranks, "ranks beyond these are spare").range(1, 4095);
  section
      .field("snapshot_every", &ElasticConfig::snapshot_every,
             "steps between two snapshots in memory: so many at most are computed again after a loss")
      .at_least(1);
  section.field("wait", &ElasticConfig::wait, "how long a run waits below min_ranks before it ends").at_least(1ms);
  section.field("heartbeat", &ElasticConfig::heartbeat, "a rank that is silent for so long is lost").at_least(10ms);
  section.field("cooldown", &ElasticConfig::cooldown,
                "how long a host on which a rank died gets no new one; doubled from failure to failure");
  section.field("cooldown_max", &ElasticConfig::cooldown_max, "the longest cooldown");
  section
      .field("reset_limit", &ElasticConfig::reset_limit,
             "worlds in a row that may begin at the same step before the run gives up; 0: any number")
      .at_least(0);
  section.field(
      "discovery_script", &ElasticConfig::discovery_script,
      "command that prints the hosts there are now, a line each, HOST or HOST:RANKS; empty: hosts do not change");
  section.field("discovery_interval", &ElasticConfig::discovery_interval, "time between two runs of that script")
      .at_least(1ms);
}

std::vector<config::Problem> find_problems(const ElasticConfig& elastic) {
  std::vector<config::Problem> problems;
  if (elastic.min_ranks > elastic.max_ranks) {
    problems.push_back(
        {.key = "elastic.min_ranks",
         .reason = fmt::format("is {}, more than elastic.max_ranks = {}", elastic.min_ranks, elastic.max_ranks),
         .hint = fmt::format("set elastic.max_ranks = {}", elastic.min_ranks)});
  }
  if (elastic.cooldown > elastic.cooldown_max) {
    problems.push_back({.key = "elastic.cooldown",
                        .reason = fmt::format("is {}, longer than elastic.cooldown_max = {}",
                                              exact_duration(elastic.cooldown), exact_duration(elastic.cooldown_max)),
                        .hint = fmt::format("set elastic.cooldown_max = \"{}\"", exact_duration(elastic.cooldown))});
  }
  return problems;
}

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
