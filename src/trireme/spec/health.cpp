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
  section.meaning("what happens at NaN or Inf, loss spikes, diverged replicas and stragglers");
  section.field(
      "non_finite", &HealthConfig::non_finite,
      "when the loss or the gradient norm is NaN or Inf: stop, skip the update, or rewind to a checkpoint and "
      "skip the data of that step");
  section.field("spike", &HealthConfig::spike,
                "at a loss spike: ignore, stop, skip the update, or rewind to a checkpoint and skip the data");
  section
      .field("spike_deviations", &HealthConfig::spike_deviations,
             "a loss is a spike when it lies this many standard deviations above the mean of spike_window steps")
      .above(0.0);
  section.field("spike_window", &HealthConfig::spike_window, "steps in the running mean and standard deviation")
      .at_least(2);
  section.field("rewind", &HealthConfig::rewind, "a rewind goes back at least this many steps").at_least(0);
  section
      .field("max_skips", &HealthConfig::max_skips,
             "skips and rewinds allowed in one run; one more stops it, as something else is wrong")
      .at_least(1);
  section
      .field("compare_replicas", &HealthConfig::compare_replicas,
             "steps between comparisons of parameters and optimizer state across data-parallel replicas, which name "
             "the one that differs (silent data corruption); 0: never")
      .at_least(0);
  section
      .field("straggler", &HealthConfig::straggler,
             "a rank whose compute time is this many times the median is reported as a straggler; 0: never")
      .at_least(0.0);
  section.retired("not_finite", "non_finite");
  section.retired("most_skips", "max_skips");
}

std::vector<config::Problem> find_problems(const HealthConfig& health) {
  std::vector<config::Problem> problems;
  if (health.non_finite == AnomalyPolicy::kIgnore) {
    problems.push_back({.key = "health.non_finite",
                        .reason = "is \"ignore\", but one NaN or Inf in the weights makes every later step NaN",
                        .hint = "set health.non_finite = \"skip\""});
  }
  if (health.straggler > 0 && health.straggler <= 1) {
    problems.push_back({.key = "health.straggler",
                        .reason = "is at most 1, so about half of the ranks would be called stragglers",
                        .hint = "set health.straggler = 2"});
  }
  return problems;
}

}  // namespace trireme::spec
