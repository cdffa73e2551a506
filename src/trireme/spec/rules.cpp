#include "trireme/spec/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "trireme/base/text.h"
#include "trireme/spec/batch_split.h"

namespace trireme::spec {

std::span<const Rule> rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> joined;
    // Layouts first: they are what later rules count micro-batches with.
    for (const auto& table : {recipe_rules(), layout_rules(), expert_rules(), asynchronous_rules(), pipeline_rules(),
                              run_rules(), parameter_rules(), compress_rules(), optim_rules()}) {
      joined.insert(joined.end(), table.begin(), table.end());
    }
    return joined;
  }();
  return all;
}

RuleContext::RuleContext(RunSetup setup) : run(std::move(setup)) {
  const std::int64_t copy = layout().ranks_per_copy();
  replicas = run.ranks ? std::max(1, static_cast<int>(*run.ranks / copy)) : layout().dp.value_or(1);
}

bool RuleContext::runs_several_steps() const {
  return has_stages() && (run.schedule.asynchronous || run.recipe.pipeline.drain_every.value_or(1) > 1);
}

std::int64_t RuleContext::micros_of(std::int64_t rows) const {
  const std::int64_t size =
      has_stages() ? pipeline_micro_rows(run.recipe, run.schedule) : run.recipe.train.micro_batch_size.value_or(0);
  std::vector<double> weights = layout().dp_batch_weights;
  if (static_cast<int>(weights.size()) != replicas) weights.clear();  // a rule of its own
  return most_micros(rows, replicas, weights, size);
}

std::vector<std::int64_t> RuleContext::rows_of_steps() const {
  if (run.rows) return {*run.rows};
  const BatchConfig& batch = run.recipe.batch;
  const bool told = batch.kind != BatchKind::kRamp || (batch.start && batch.over);
  if (!told || (batch.kind == BatchKind::kIncrease && !batch.maximum)) return {};  // find_problems() says it
  constexpr std::int64_t kEver = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> rows;
  for (const std::int64_t size : batch_sizes(run.recipe.lr_schedule, batch, run.recipe.train.steps.value_or(kEver),
                                             run.recipe.train.tokens.value_or(kEver))) {
    const std::int64_t whole = size / run.seq_len;
    if (size % run.seq_len == 0 && std::ranges::find(rows, whole) == rows.end()) rows.push_back(whole);
  }
  return rows;
}

void RuleContext::refuse(std::string key, std::string reason, std::string hint) {
  problems_.push_back({.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
}

std::vector<Refusal> find_refusals(RunSetup run, RuleNeeds least, RuleNeeds most) {
  std::vector<Refusal> refusals;
  RuleContext context(std::move(run));
  for (const Rule& rule : rules()) {
    if (rule.needs < least || rule.needs > most) continue;
    rule.look(context);
    for (config::Problem& problem : context.take_problems()) refusals.push_back({&rule, std::move(problem)});
  }
  return refusals;
}

std::vector<config::Problem> problems_of(const std::vector<Refusal>& refusals) {
  std::vector<config::Problem> problems;
  for (const Refusal& refusal : refusals) problems.push_back(refusal.problem);
  return problems;
}

std::int64_t pipeline_micro_rows(const Recipe& recipe, const ScheduleTraits& schedule) {
  return recipe.train.micro_batch_size.value_or(schedule.updates_every_micro ? 0 : 1);
}

std::vector<std::string> chain_entries(const ModelShape& shape, RecomputeKind recompute) {
  std::vector<std::string> entries;
  const auto add_blocks = [&](const char* prefix, std::int64_t count) {
    // With sqrt, several blocks make one segment, which is named after its first (nn::sqrt_segments).
    const auto segments = recompute == RecomputeKind::kSqrt
                              ? static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count))))
                              : count;
    for (std::int64_t i = 0; i < segments; ++i) entries.push_back(fmt::format("{}.{}", prefix, i * count / segments));
  };
  const bool encoder = shape.num_encoder_layers > 0;
  if (encoder) {
    entries.emplace_back("encoder.embedding");
    add_blocks("encoder.layers", shape.num_encoder_layers);
    entries.emplace_back("encoder.end");
  }
  entries.emplace_back("embedding");
  add_blocks("layers", shape.num_layers);
  if (encoder) entries.emplace_back("decoder.end");
  if (shape.norm_first) entries.emplace_back("norm");
  if (shape.mtp_depth > 0) entries.emplace_back("mtp");
  if (shape.family == Family::kBert) entries.insert(entries.end(), {"head.dense", "head.activation", "head.norm"});
  entries.emplace_back("head");
  return entries;
}

std::vector<std::string> split_entries(const std::string& split) {
  std::vector<std::string> entries;
  for (const std::string& part : trireme::split(split, ',')) {
    if (const std::string_view entry = trimmed(part); !entry.empty()) entries.emplace_back(entry);
  }
  return entries;
}

SplitSpeeds split_speeds(const std::string& split) {
  const std::size_t colon = split.find(':');
  const std::string how = split.substr(0, colon);
  if (colon == std::string::npos || (how != "size" && how != "time")) return {split, {}};
  SplitSpeeds found{how, {}};
  for (const std::string& part : split_entries(split.substr(colon + 1))) {
    double speed = 0;
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), speed);
    if (failure != std::errc{} || end != part.data() + part.size() || !(speed > 0)) return {split, {}};
    found.speeds.push_back(speed);
  }
  return found.speeds.empty() ? SplitSpeeds{split, {}} : found;
}

std::vector<std::string> worker_splits(const std::string& split) {
  std::vector<std::string> splits;
  for (const std::string& part : trireme::split(split, ';')) splits.emplace_back(trimmed(part));
  return splits;
}

std::string split_of_worker(const std::string& split, int worker) {
  const std::vector<std::string> splits = worker_splits(split);
  return splits[std::min(static_cast<std::size_t>(worker), splits.size() - 1)];
}

std::int64_t steps_between_drains(const Recipe& recipe, bool asynchronous) {
  // Longer tables gain nothing: filling a pipeline takes a few micro-batches.
  constexpr std::int64_t kMostByItself = 128;
  if (recipe.pipeline.drain_every) return *recipe.pipeline.drain_every;
  if (!asynchronous) return 1;
  const std::int64_t common = std::gcd(std::gcd(recipe.eval.every, recipe.checkpoint.every), recipe.train.hash_every);
  if (common == 0) return kMostByItself;
  std::int64_t divisor = std::min(common, kMostByItself);
  while (common % divisor != 0) --divisor;
  return divisor;
}

}  // namespace trireme::spec
