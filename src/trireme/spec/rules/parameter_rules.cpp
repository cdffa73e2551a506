// What names parameters by patterns, or needs their sizes on a rank.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "trireme/base/text.h"
#include "trireme/spec/batch_split.h"
#include "trireme/spec/parameters.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

std::vector<std::string> parameter_names(const ModelShape& shape) {
  std::vector<std::string> names;
  for (const ParameterShape& parameter : list_parameters(shape)) names.push_back(parameter.name);
  return names;
}

bool matches_one(const std::string& pattern, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return matches(pattern, name); });
}

/// train.freeze also takes published names, which train/engine/freeze.h knows.
void patterns_match(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.precision.gemm_exclude.empty() && recipe.optim.groups.empty()) return;
  const std::vector<std::string> names = parameter_names(context.run.shape);
  for (const std::string& pattern : recipe.precision.gemm_exclude) {
    if (matches_one(pattern, names)) continue;
    context.refuse("precision.gemm_exclude",
                   fmt::format("no parameter is called \"{}\"{}", pattern, did_you_mean(pattern, names)),
                   "'*' stands for any text: \"layers.0.*\"");
  }
  for (config::Problem& problem : find_problems(recipe.optim, names))
    context.refuse(problem.key, problem.reason, problem.hint);
}

void something_is_trained(RuleContext& context) {
  const std::vector<std::string>& freeze = context.run.recipe.train.freeze;
  if (freeze.empty()) return;
  const std::vector<std::string> names = parameter_names(context.run.shape);
  const bool all = std::ranges::all_of(names, [&](const std::string& name) {
    return std::ranges::any_of(freeze, [&](const std::string& pattern) { return matches(pattern, name); });
  });
  if (all)
    context.refuse("train.freeze", "matches every parameter, so there is nothing to train", "leave train.freeze out");
}

std::int64_t fp8_grain(GemmPrecision gemm) { return gemm == GemmPrecision::kFp8Blocks ? 128 : 16; }

void fp8_divides_matrices(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.precision.gemm == GemmPrecision::kSame) return;
  const std::int64_t grain = fp8_grain(recipe.precision.gemm);
  for (const ParameterShape& whole : list_parameters(context.run.shape)) {
    if (!takes_gemm_precision(whole.name) || whole.columns == 0) continue;
    const auto excludes = [&](const std::string& pattern) { return matches(pattern, whole.name); };
    if (std::ranges::any_of(recipe.precision.gemm_exclude, excludes)) continue;
    ParameterShape local = on_tensor_rank(whole, context.run.shape, recipe.layout.tp);
    if (whole.name.find(".experts.") != std::string::npos) local.rows /= context.run.shape.experts.num_experts;
    if (local.rows % grain == 0 && local.columns % grain == 0) continue;
    return context.refuse(
        "precision.gemm",
        fmt::format("{} is {} x {} on a rank, which are no multiples of {}", local.name, local.rows, local.columns,
                    grain),
        fmt::format("set precision.gemm = \"same\", or add \"{}\" to precision.gemm_exclude", local.name));
  }
}

void fp8_divides_tokens(RuleContext& context) {
  const Recipe& recipe = context.run.recipe;
  if (recipe.precision.gemm == GemmPrecision::kSame) return;
  const LayoutConfig& layout = recipe.layout;
  const std::int64_t grain = fp8_grain(recipe.precision.gemm);
  const std::int64_t tokens = context.run.seq_len / layout.cp / (layout.tp_overlap ? layout.tp : 1);
  if (tokens % grain == 0) return;  // whatever the rows
  const std::int64_t size = context.has_stages() ? pipeline_micro_rows(recipe, context.run.schedule)
                                                 : recipe.train.micro_batch_size.value_or(0);
  std::vector<double> weights = layout.dp_batch_weights;
  if (static_cast<int>(weights.size()) != context.replicas) weights.clear();
  for (const std::int64_t rows : context.rows_of_steps()) {
    for (int rank = 0; rank < context.replicas; ++rank) {
      const std::int64_t mine = share_of_rows(0, rows, rank, context.replicas, weights).count;
      const std::int64_t micros = context.has_stages() || layout.zero >= 2 ? context.micros_of(rows) : 0;
      for (const std::int64_t micro : micro_sizes(mine, size, micros)) {
        if (std::max<std::int64_t>(1, micro) * tokens % grain == 0) continue;
        return context.refuse(
            "precision.gemm",
            fmt::format("FP8 GEMMs take multiples of {} tokens, but a micro-batch has {} sequences of {} on a rank",
                        grain, micro, tokens),
            fmt::format("set precision.gemm = \"same\", or make data.seq_len a multiple of {}", grain));
      }
    }
  }
}

constexpr Rule kParameterRules[] = {
    {"patterns-match", "patterns of `gemm_exclude` and `optim.groups` that match no parameter",
     "what they were meant for would be left as it is", Because::kDefinition, RuleNeeds::kRun, patterns_match},
    {"something-is-trained", "a `train.freeze` that matches every parameter", "there would be nothing to train",
     Because::kDefinition, RuleNeeds::kRun, something_is_trained},
    {"fp8-divides-matrices", "FP8 GEMMs with matrices whose sizes on a rank are no multiples of 16 (blocks: 128)",
     "GPUs multiply FP8 in such tiles", Because::kDefinition, RuleNeeds::kRun, fp8_divides_matrices},
    {"fp8-divides-tokens", "FP8 GEMMs with micro-batches whose tokens on a rank are no multiples of 16 (blocks: 128)",
     "GPUs multiply FP8 in such tiles", Because::kDefinition, RuleNeeds::kRun, fp8_divides_tokens},
};

}  // namespace

std::span<const Rule> parameter_rules() { return kParameterRules; }

}  // namespace trireme::spec
