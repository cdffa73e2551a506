#include "trireme/serve/step_cost.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::serve {
namespace {

/// Straight lines between the points; beyond the last the line through the last two, before the first its value.
double on_curve(const std::vector<StepCost::Point>& points, std::int64_t rows) {
  TRIREME_CHECK(!points.empty(), "a step's time is asked of no points");
  if (points.size() == 1 || rows <= points.front().rows) return points.front().seconds;
  auto above = std::ranges::lower_bound(points, rows, {}, &StepCost::Point::rows);
  if (above == points.end()) --above;
  const StepCost::Point &b = *above, &a = *(above - 1);
  const double part = static_cast<double>(rows - a.rows) / static_cast<double>(b.rows - a.rows);
  return a.seconds + part * (b.seconds - a.seconds);
}

}  // namespace

double pairs_of(const PlannedSequence& planned) {
  const auto queries = static_cast<double>(planned.query_len);
  return queries * static_cast<double>(planned.context_len) + queries * (queries + 1) / 2;
}

double StepCost::seconds(const StepPlan& plan) const {
  std::int64_t with_logits = 0;
  double pairs = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    if (planned.samples) with_logits += 1 + planned.drafts;
    pairs += pairs_of(planned);
  }
  double seconds = on_curve(prefill, plan.tokens) + seconds_per_pair * pairs;
  // What the head takes beside one row's logits.
  if (with_logits > 1) seconds += std::max(0.0, on_curve(decode, with_logits) - on_curve(prefill, with_logits));
  return seconds;
}

Simulation simulate(const SchedulerOptions& options, std::span<const SimulatedRequest> requests, const StepCost& cost) {
  Scheduler scheduler(options);
  Simulation out;
  out.requests.resize(requests.size());
  std::size_t next = 0;
  while (next < requests.size() || !scheduler.idle()) {
    if (scheduler.idle()) out.seconds = std::max(out.seconds, requests[next].arrives);
    for (; next < requests.size() && requests[next].arrives <= out.seconds; ++next) {
      SequenceRequest request = requests[next].request;
      request.id = next;
      if (const auto why = scheduler.add(std::move(request))) throw ConfigError(*why);
    }
    const StepPlan plan = scheduler.plan();
    const double took = cost.seconds(plan);
    out.seconds += took;
    out.busy += took;
    ++out.steps;
    std::vector<StepResult> results(plan.sequences.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      const PlannedSequence& planned = plan.sequences[i];
      if (!planned.samples) continue;
      results[i].tokens = {0};
      if (scheduler.progress(planned.id).generated == 0) out.requests[planned.id].first_token = out.seconds;
    }
    for (const RequestId id : scheduler.complete(plan, results)) out.requests[id].end = out.seconds;
  }
  return out;
}

}  // namespace trireme::serve
