#include "trireme/observe/expert_loads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/html.h"
#include "trireme/base/units.h"

namespace trireme::observe {

ExpertBalance expert_balance(std::span<const StepRecord> steps, std::int64_t most) {
  ExpertBalance balance;
  for (auto step = steps.rbegin(); step != steps.rend() && balance.steps < most; ++step) {
    if (step->experts.empty()) continue;
    balance.timed += std::ranges::any_of(step->experts, [](const LayerLoad& layer) { return layer.cost_ms > 0; });
    if (balance.steps++ == 0) {
      balance.layers = step->experts;
      balance.ranks = step->expert_ranks;
      balance.last_step = step->step;
      continue;
    }
    // A run that goes on in another layout has the same layers; another model's are left out.
    if (step->experts.size() != balance.layers.size()) break;
    for (std::size_t i = 0; i < balance.layers.size(); ++i) {
      std::vector<std::int64_t>& sum = balance.layers[i].tokens;
      const std::vector<std::int64_t>& more = step->experts[i].tokens;
      if (more.size() != sum.size()) continue;
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += more[e];
      balance.layers[i].cost_ms += step->experts[i].cost_ms;
      std::vector<std::int64_t>& ranks = balance.layers[i].ranks;
      if (ranks.size() != step->experts[i].ranks.size()) continue;
      for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] += step->experts[i].ranks[r];
    }
  }
  for (const StepRecord& step : steps) {
    if (!step.experts_moved) continue;
    ++balance.moves;
    balance.all_moves.experts += step.experts_moved->experts;
    balance.all_moves.bytes += step.experts_moved->bytes;
    balance.all_moves.seconds += step.experts_moved->seconds;
    balance.all_moves.busiest_before = step.experts_moved->busiest_before;
    balance.all_moves.busiest_after = step.experts_moved->busiest_after;
  }
  return balance;
}

std::vector<std::int64_t> rank_loads(std::span<const std::int64_t> experts, int ranks) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  if (experts.empty()) return loads;
  const std::size_t each = std::max<std::size_t>(1, experts.size() / loads.size());
  for (std::size_t i = 0; i < experts.size(); ++i) loads[std::min(i / each, loads.size() - 1)] += experts[i];
  return loads;
}

double mean_load(std::span<const std::int64_t> loads) {
  if (loads.empty()) return 0;
  return static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0})) /
         static_cast<double>(loads.size());
}

double max_over_mean(std::span<const std::int64_t> loads) {
  const std::int64_t sum = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  if (sum == 0) return 0;
  return static_cast<double>(*std::ranges::max_element(loads)) * static_cast<double>(loads.size()) /
         static_cast<double>(sum);
}

std::string balance_table(const ExpertBalance& balance) {
  if (balance.layers.empty()) return "";
  std::string rows;
  for (const LayerLoad& layer : balance.layers) {
    if (layer.tokens.empty()) continue;
    const auto [least, most] = std::ranges::minmax_element(layer.tokens);
    const std::vector<std::int64_t> ranks = layer.ranks.empty() ? rank_loads(layer.tokens, balance.ranks) : layer.ranks;
    const std::string cost =
        layer.cost_ms > 0 ? fmt::format("{:.2f}", layer.cost_ms / static_cast<double>(balance.timed)) : "–";
    rows += fmt::format(
        "<tr><th>{}</th><td>{:.2f}</td><td>expert {}: {}</td><td>expert {}: "
        "{}</td><td>{:.2f}</td><td>{}</td><td>{}</td></tr>\n",
        escaped(layer.layer), max_over_mean(layer.tokens), most - layer.tokens.begin(),
        short_count(static_cast<double>(*most)), least - layer.tokens.begin(), short_count(static_cast<double>(*least)),
        max_over_mean(ranks), cost, fmt::join(ranks, ", "));
  }
  std::string moves;
  if (balance.moves > 0) {
    const ExpertsMoved& all = balance.all_moves;
    moves = fmt::format(
        "<p>Experts moved after {} of the run's steps: {} of them in all, {} between ranks in {:.2f} s. The last time "
        "the "
        "busiest rank went from {:.2f} to {:.2f} of the mean.</p>\n",
        balance.moves, all.experts, short_bytes(static_cast<double>(all.bytes)), all.seconds, all.busiest_before,
        all.busiest_after);
  }
  return fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>Layer</th><th>max / mean of experts</th><th>Most</th><th>Least</th>"
      "<th>max / mean of ranks</th><th>Its cost, ms a step</th><th>Tokens of each "
      "rank</th></tr></thead><tbody>{}</tbody></table></div>\n"
      "<p>Choices of {} up to step {}. A layer takes as long as its busiest rank: what its maximum exceeds the mean by "
      "is time that the others wait, here priced by what experts took for a row, forward and backward.</p>\n{}",
      rows, balance.steps == 1 ? "one step" : fmt::format("{} steps", balance.steps), balance.last_step, moves);
}

}  // namespace trireme::observe
