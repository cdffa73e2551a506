#include "trireme/spec/health.h"

namespace trireme::spec {
namespace {

constexpr Named<AnomalyPolicy> kPolicies[] = {{"ignore", AnomalyPolicy::kIgnore},
                                              {"stop", AnomalyPolicy::kStop},
                                              {"skip", AnomalyPolicy::kSkip},
                                              {"rewind", AnomalyPolicy::kRewind}};

}  // namespace

std::span<const Named<AnomalyPolicy>> enum_names(std::type_identity<AnomalyPolicy>) { return kPolicies; }

void describe(config::Section<HealthConfig>& section) {
  section.meaning("what happens when numbers or machines are anomalous");
  section.field("non_finite", &HealthConfig::non_finite,
                "at a loss or gradient that is NaN or Inf: stop, skip the batch, or rewind and skip that data");
  section.field("spike", &HealthConfig::spike,
                "at a loss far above those before it: ignore, stop, skip the batch, or rewind and skip that data");
  section
      .field("spike_deviations", &HealthConfig::spike_deviations,
             "a loss is a spike when it lies so many standard deviations above the mean of spike_window steps")
      .above(0.0);
  section.field("spike_window", &HealthConfig::spike_window, "steps over which mean and deviation are taken")
      .at_least(2);
  section.field("rewind", &HealthConfig::rewind, "at least so many steps are gone back").at_least(0);
  section
      .field("max_skips", &HealthConfig::max_skips,
             "after so many skips and rewinds in one run it stops: something else is wrong")
      .at_least(1);
  section
      .field("compare_replicas", &HealthConfig::compare_replicas,
             "every so many steps the copies of parameters and optimizer are compared, and the odd one named; 0: never")
      .at_least(0);
  section
      .field("straggler", &HealthConfig::straggler,
             "a rank that computes so many times as long as the median one is named; 0: never")
      .at_least(0.0);
}

std::vector<config::Problem> find_problems(const HealthConfig& health) {
  std::vector<config::Problem> problems;
  if (health.non_finite == AnomalyPolicy::kIgnore) {
    problems.push_back({.key = "health.non_finite",
                        .reason = "is \"ignore\", but weights that are NaN or Inf never become numbers again",
                        .hint = "set health.non_finite = \"skip\""});
  }
  if (health.straggler > 0 && health.straggler <= 1) {
    problems.push_back({.key = "health.straggler",
                        .reason = "is at most 1, so every second rank would be named",
                        .hint = "set health.straggler = 2"});
  }
  return problems;
}

}  // namespace trireme::spec
