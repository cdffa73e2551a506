#include "trireme/dashboard/alerts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/text.h"

namespace trireme::dashboard {

std::string_view name(Severity severity) {
  constexpr std::string_view kNames[] = {"info", "warning", "critical"};
  return kNames[static_cast<std::size_t>(severity)];
}

std::optional<Alert> alert_of(const observe::EventRecord& event) {
  const std::string why = event.text_of("why").value_or("");
  const auto with = [&](Severity severity, std::string text) {
    return Alert{
        .time = event.time, .severity = severity, .kind = event.kind, .text = std::move(text), .step = event.step()};
  };
  const auto step = event.step().value_or(0);
  if (event.kind == "skipped") return with(Severity::kInfo, fmt::format("step {} was skipped: {}", step, why));
  if (event.kind == "diverged") return with(Severity::kCritical, fmt::format("diverged at step {}: {}", step, why));
  if (event.kind == "rewound")
    return with(Severity::kWarning, fmt::format("went back from step {:.0f} to step {}: {}",
                                                event.number_of("from").value_or(0), step, why));
  if (event.kind == "checkpoint_failed")
    return with(Severity::kCritical, fmt::format("the checkpoint of step {} could not be saved: {}", step, why));
  if (event.kind == "copies_differ") return with(Severity::kCritical, why);
  if (event.kind == "straggler")
    return with(Severity::kWarning,
                fmt::format("rank {:.0f} computes {:.1f} times as long as the median rank",
                            event.number_of("rank").value_or(0), event.number_of("times").value_or(0)));
  if (event.kind == "stop" && why == "finished") {
    Alert alert = with(Severity::kInfo, fmt::format("finished at step {}", step));
    alert.kind = "finished";
    return alert;
  }
  return std::nullopt;
}

Verdict verdict_of(const Pulse& pulse) {
  Verdict verdict;
  if (!pulse.running) {
    verdict.text = "no process trains here";
    return verdict;
  }
  if (!pulse.silence) {
    verdict.state = Verdict::State::kStarting;
    verdict.text = "starting: no step yet";
    return verdict;
  }
  const double limit = std::max(30.0, 10 * pulse.step_seconds);
  const std::int64_t furthest = pulse.steps.empty() ? 0 : *std::ranges::max_element(pulse.steps);
  for (std::size_t rank = 0; rank < pulse.steps.size(); ++rank) {
    if (pulse.steps[rank] < furthest) verdict.behind.push_back(static_cast<int>(rank));
  }
  if (*pulse.silence <= limit) {
    verdict.state = Verdict::State::kAlive;
    verdict.text = fmt::format("alive: heartbeat {:.0f} s ago", *pulse.silence);
    return verdict;
  }
  verdict.state = Verdict::State::kHanging;
  verdict.text = fmt::format("hanging: no heartbeat for {:.0f} s, while a step takes {:.2g} s", *pulse.silence,
                             pulse.step_seconds);
  if (!verdict.behind.empty()) {
    verdict.text +=
        fmt::format("; {} {} behind the others, which wrote step {}", verdict.behind.size() == 1 ? "rank" : "ranks",
                    fmt::join(verdict.behind, ", "), furthest);
  } else if (pulse.steps.size() > 1) {
    verdict.text += fmt::format("; all ranks wrote step {} last", furthest);
  }
  return verdict;
}

std::vector<std::pair<int, double>> stragglers(const std::vector<double>& compute_seconds, double factor) {
  std::vector<std::pair<int, double>> out;
  if (compute_seconds.size() < 2) return out;
  std::vector<double> sorted = compute_seconds;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2];  // of two, the faster
  for (std::size_t rank = 0; rank < compute_seconds.size(); ++rank) {
    if (median > 0 && compute_seconds[rank] >= factor * median)
      out.emplace_back(static_cast<int>(rank), compute_seconds[rank] / median);
  }
  return out;
}

}  // namespace trireme::dashboard
