// A run's ranks side by side, its experts, and its pipeline as it ran.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/dashboard/json_numbers.h"
#include "trireme/dashboard/watched_run.h"
#include "trireme/observe/expert_loads.h"
#include "trireme/observe/records.h"
#include "trireme/observe/timeline.h"
#include "trireme/schedule/timeline.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;
using observe::Json;

constexpr std::size_t kSteps = 60;              // that a heat map shows
constexpr std::uint64_t kRankBytes = 96 << 10;  // in which they stand, at about 1 KB a line
constexpr int kMostRanks = 1024;

std::vector<observe::RankRecord> last_records(const fs::path& file) {
  std::vector<observe::RankRecord> records;
  for (const std::string& line : last_lines(file, kRankBytes)) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    try {
      records.push_back(observe::rank_from(json));
    } catch (const IoError&) {  // a damaged line
    }
  }
  if (records.size() > kSteps) records.erase(records.begin(), records.end() - kSteps);
  return records;
}

double metric_of(const observe::RankRecord& record, const std::string& metric) {
  const auto found = record.metrics.find(metric);
  return found == record.metrics.end() ? NAN : found->second;
}

Json rank_json(int rank, const std::vector<observe::RankRecord>& records) {
  Json out{{"rank", rank}, {"step", records.empty() ? 0 : records.back().step}};
  const std::pair<const char*, const char*> kColumns[] = {{"seconds", "step/seconds"},
                                                          {"compute", "step/compute_seconds"},
                                                          {"data", "step/data_seconds"},
                                                          {"comm", "step/exposed_comm_seconds"}};
  Json& steps = out["steps"] = Json::array();
  for (const auto& record : records) steps.push_back(record.step);
  for (const auto& [column, metric] : kColumns) {
    Json& values = out[column] = Json::array();
    for (const auto& record : records) values.push_back(short_number(metric_of(record, metric)));
  }
  out["memory"] = Json::object();
  out["sent"] = Json::array();
  if (records.empty()) return out;
  for (const auto& [metric, value] : records.back().metrics) {
    if (!metric.starts_with("memory/") || !metric.ends_with("_bytes")) continue;
    out["memory"][metric.substr(7, metric.size() - 13)] = short_number(value);
  }
  for (const auto& [metric, value] : records.back().metrics) {  // comm/GROUP/COLLECTIVE_bytes
    const std::size_t slash = metric.rfind('/');
    if (!metric.starts_with("comm/") || !metric.ends_with("_bytes") || slash < 5) continue;
    out["sent"].push_back({{"group", metric.substr(5, slash - 5)},
                           {"op", metric.substr(slash + 1, metric.size() - slash - 7)},
                           {"bytes", static_cast<std::int64_t>(value)}});
  }
  for (const auto& [metric, value] : records.back().metrics) {
    if (metric.starts_with("queue/")) out["queues"][metric.substr(6)] = short_number(value);
  }
  return out;
}

std::string_view span_kind(schedule::Op op) {
  using schedule::Op;
  switch (op) {
    case Op::kForward:
    case Op::kForwardDoubled:
      return "forward";
    case Op::kBackward:
      return "backward";
    case Op::kBackwardInput:
      return "input";
    case Op::kBackwardWeight:
      return "weight";
    case Op::kRecompute:
      return "recompute";
    case Op::kForwardBackward:
    case Op::kBeginForward:
    case Op::kBeginBackward:
    case Op::kDispatch:
    case Op::kExpert:
    case Op::kCombine:
      return "both";
    case Op::kOptimizerStep:
      return "update";
    default:
      return "other";
  }
}

}  // namespace

Json WatchedRun::ranks_json(double now) const {
  Json ranks = Json::array();
  std::vector<double> compute;
  Pulse pulse{.running = locked_,
              .silence = heartbeat_ > 0 ? std::optional(now - heartbeat_) : std::nullopt,
              .step_seconds = summary_.typical_seconds};
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const fs::path file = place_.path / "ranks" / fmt::format("{:05}.jsonl", rank);
    if (!fs::exists(file)) break;
    const auto records = last_records(file);
    std::vector<double> own;
    for (const auto& record : records) {
      if (const double seconds = metric_of(record, "step/compute_seconds"); std::isfinite(seconds))
        own.push_back(seconds);
    }
    compute.push_back(own.empty() ? 0 : observe::quantile(std::move(own), 0.5));
    pulse.steps.push_back(records.empty() ? 0 : records.back().step);
    ranks.push_back(rank_json(rank, records));
  }
  const Verdict verdict = verdict_of(pulse);
  constexpr std::string_view kStates[] = {"idle", "starting", "alive", "hanging"};
  Json out{{"ranks", std::move(ranks)},
           {"verdict",
            {{"state", kStates[static_cast<std::size_t>(verdict.state)]},
             {"text", verdict.text},
             {"behind", verdict.behind}}},
           {"stragglers", Json::array()},
           {"timeline", Json::array()}};
  for (const auto& [rank, times] : stragglers(compute))
    out["stragglers"].push_back({{"rank", rank}, {"times", short_number(times)}});
  auto timeline = observe::read_timeline(place_.path / "timeline.jsonl");
  const std::size_t from = timeline.size() > 50 ? timeline.size() - 50 : 0;
  for (std::size_t i = from; i < timeline.size(); ++i) {
    out["timeline"].push_back({{"time", timeline[i].time}, {"who", timeline[i].who}, {"event", timeline[i].event}});
  }
  return out;
}

Json WatchedRun::experts_json() const {
  // Of large models a line with loads is long, and only some lines have them.
  constexpr std::uint64_t kLoadBytes = 4 << 20;
  std::vector<observe::StepRecord> records;
  for (const std::string& line : last_lines(metrics_.file(), kLoadBytes)) {
    if (line.find("\"experts\":") == std::string::npos) continue;
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    try {
      records.push_back(observe::step_from(json));
    } catch (const IoError&) {  // a damaged line
    }
  }
  const observe::ExpertBalance balance = observe::expert_balance(records);
  if (balance.layers.empty()) return nullptr;
  Json layers = Json::array();
  for (const observe::LayerLoad& layer : balance.layers) {
    const std::vector<std::int64_t> ranks =
        layer.ranks.empty() ? observe::rank_loads(layer.tokens, balance.ranks) : layer.ranks;
    layers.push_back({{"name", layer.layer},
                      {"tokens", layer.tokens},
                      {"imbalance", short_number(observe::max_over_mean(layer.tokens))},
                      {"ranks", ranks},
                      {"rank_imbalance", short_number(observe::max_over_mean(ranks))}});
  }
  return {
      {"step", balance.last_step}, {"steps", balance.steps}, {"ranks", balance.ranks}, {"layers", std::move(layers)}};
}

Json WatchedRun::pipeline_json() const {
  const fs::path file = place_.path / "pipeline.json";
  if (!fs::exists(file)) return nullptr;
  const schedule::MeasuredTable measured = schedule::read_measured(read_text_file(file, std::uint64_t{64} << 20));
  if (measured.executions.empty()) return nullptr;
  const schedule::Timing timing = measured.executions.back().timing();
  Json ranks = Json::array();
  for (const schedule::RankTiming& rank : timing.ranks) {
    Json spans = Json::array();
    for (const schedule::Span& span : rank.spans) {
      spans.push_back({to_text(span.instruction, true), span_kind(span.instruction.op), short_number(span.start),
                       short_number(span.end)});
    }
    ranks.push_back(std::move(spans));
  }
  return {{"name", measured.schedule.name},
          {"seconds", short_number(timing.makespan)},
          {"bubble", short_number(timing.bubble())},
          {"ranks", std::move(ranks)}};
}

}  // namespace trireme::dashboard
