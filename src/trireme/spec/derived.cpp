#include "trireme/spec/derived.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace trireme::spec {
namespace {

namespace fs = std::filesystem;
using Problems = std::vector<config::Problem>;

bool ends_somewhere(LrScheduleKind kind) {
  return kind == LrScheduleKind::kLinear || kind == LrScheduleKind::kCosine || kind == LrScheduleKind::kWsd ||
         kind == LrScheduleKind::kOneCycle || kind == LrScheduleKind::kRangeTest;
}

/// A schedule that ends, ends with the run.
void derive_total(LoadedRecipe& loaded, std::vector<std::string>& said) {
  Recipe& recipe = loaded.value;
  LrScheduleConfig& schedule = recipe.lr_schedule;
  if (!ends_somewhere(schedule.kind) || schedule.total || recipe.batch.global_batch_tokens < 1) return;
  constexpr std::int64_t kMost = 1'000'000'000'000'000;  // lr_schedule.total goes up to that
  const bool in_steps = schedule.unit == LrScheduleUnit::kSteps;
  if (recipe.train.steps && *recipe.train.steps > (in_steps ? kMost : kMost / recipe.batch.global_batch_tokens)) return;
  if (recipe.train.tokens && *recipe.train.tokens > kMost) return;
  const char* from = recipe.train.steps ? "train.steps" : "train.tokens";
  if (recipe.train.steps) {
    schedule.total =
        in_steps ? *recipe.train.steps : position_at_step(schedule, recipe.batch, *recipe.train.steps).tokens;
  } else if (recipe.train.tokens) {
    schedule.total = in_steps ? position_at(schedule, recipe.batch, *recipe.train.tokens).step : *recipe.train.tokens;
  } else {
    return;
  }
  loaded.origins["lr_schedule.total"] = fmt::format("from {}", from);
  said.push_back(fmt::format("lr_schedule.total = {}: the schedule ends with the run ({})", *schedule.total, from));
}

/// Data-parallel ranks: what a step's rows are shared among; 0 where the layout does not go with the ranks, which is a
/// problem of the layout's.
std::int64_t data_parallel_size(const Recipe& recipe, int ranks) {
  if (recipe.layout.dp) return *recipe.layout.dp;
  const std::int64_t all = ranks > 0 ? ranks : recipe.comm.ranks.value_or(1), copy = recipe.layout.ranks_per_copy();
  return copy >= 1 && all % copy == 0 ? all / copy : 0;
}

config::Problem batch_problem(std::string reason, std::string hint) {
  return {
      .key = "train.gradient_accumulation_steps", .reason = std::move(reason), .hint = std::move(hint), .where = {}};
}

std::string step_text(const Recipe& recipe, std::int64_t accumulation, std::int64_t dp) {
  return fmt::format(
      "a step has {} tokens: {} micro-batch{} (train.gradient_accumulation_steps) of train.micro_batch_size = {} "
      "sequence{} of {} tokens on {} data-parallel rank{}",
      recipe.batch.global_batch_tokens, accumulation, accumulation == 1 ? "" : "es", *recipe.train.micro_batch_size,
      *recipe.train.micro_batch_size == 1 ? "" : "s", recipe.data.seq_len, dp, dp == 1 ? "" : "s");
}

/// How many micro-batches follow from a recipe that gives the other two; nothing where they are not all alike.
void say_accumulation(const LoadedRecipe& loaded, int ranks, std::vector<std::string>& said) {
  const Recipe& recipe = loaded.value;
  const std::int64_t micro = recipe.train.micro_batch_size.value_or(0), dp = data_parallel_size(recipe, ranks);
  const std::int64_t tokens = recipe.batch.global_batch_tokens, length = recipe.data.seq_len;
  const bool given =
      loaded.origins.contains("batch.global_batch_tokens") && loaded.origins.contains("train.micro_batch_size");
  if (!given || recipe.batch.kind != BatchKind::kConstant || micro < 1 || dp < 1 || length < 1) return;
  if (tokens < 1 || tokens % length != 0 || (tokens / length) % dp != 0 || (tokens / length / dp) % micro != 0) return;
  said.push_back(step_text(recipe, tokens / length / dp / micro, dp));
}

/// Any two of global batch, micro-batch and gradient accumulation give the third. The number of micro-batches changes
/// with the ranks, the other two do not: what is kept are those.
Problems derive_batch(LoadedRecipe& loaded, int ranks, std::vector<std::string>& said) {
  Recipe& recipe = loaded.value;
  const auto given = recipe.train.gradient_accumulation_steps;
  if (!given) {
    say_accumulation(loaded, ranks, said);
    return {};
  }
  const std::int64_t accumulation = *given, dp = data_parallel_size(recipe, ranks), length = recipe.data.seq_len;
  constexpr std::int64_t kMost = 1 << 30;
  if (dp < 1 || length < 1 || accumulation < 1 || accumulation > kMost || length > kMost || dp > kMost) return {};
  const auto& micro = recipe.train.micro_batch_size;
  const bool batch_given = loaded.origins.contains("batch.global_batch_tokens");
  std::int64_t& tokens = recipe.batch.global_batch_tokens;
  if (recipe.batch.kind != BatchKind::kConstant) {
    return {batch_problem("is given, but batch.kind changes the batch from step to step",
                          "leave it out, and set train.micro_batch_size")};
  }
  if (micro && *micro > kMost) return {};
  if (micro && !batch_given) {
    tokens = *micro * accumulation * dp * length;
    loaded.origins["batch.global_batch_tokens"] = "from train.gradient_accumulation_steps";
  } else if (micro) {
    if (tokens != *micro * accumulation * dp * length) {
      return {batch_problem(
          fmt::format(
              "is {}: with train.micro_batch_size = {}, data.seq_len = {} and {} data-parallel rank{} a step has "
              "{} tokens, but batch.global_batch_tokens = {}",
              accumulation, *micro, length, dp, dp == 1 ? "" : "s", *micro * accumulation * dp * length, tokens),
          "leave one of the three out: it follows from the others")};
    }
  } else {
    const std::int64_t rows = tokens / length;
    if (tokens % length != 0 || rows % (accumulation * dp) != 0) {
      return {batch_problem(
          fmt::format("is {}, but batch.global_batch_tokens = {} is not as many micro-batches of whole sequences of {} "
                      "tokens on {} data-parallel rank{}",
                      accumulation, tokens, length, dp, dp == 1 ? "" : "s"),
          fmt::format("set batch.global_batch_tokens = {}",
                      std::max<std::int64_t>(1, rows / (accumulation * dp)) * accumulation * dp * length))};
    }
    recipe.train.micro_batch_size = rows / (accumulation * dp);
    loaded.origins["train.micro_batch_size"] = "from train.gradient_accumulation_steps";
  }
  said.push_back(step_text(recipe, accumulation, dp));
  recipe.train.gradient_accumulation_steps.reset();
  loaded.origins.erase("train.gradient_accumulation_steps");
  return {};
}

/// A path that stands in the file means a file beside it, where there is one; else it is as everywhere: from the folder
/// in which the command runs.
class BesideRecipe {
 public:
  BesideRecipe(const config::Origins& origins, const config::Input& input)
      : origins_(origins), file_(input.file.value_or("")), folder_(fs::path(file_).parent_path()) {}

  void find(const std::string& key, std::string& path) const {
    const auto origin = origins_.find(key);
    if (folder_.empty() || path.empty() || fs::path(path).is_absolute()) return;
    if (origin == origins_.end() || !origin->second.starts_with(file_ + ":")) return;
    std::error_code ignored;
    const fs::path beside = (folder_ / path).lexically_normal();
    if (fs::exists(beside, ignored)) path = beside.string();
  }

 private:
  const config::Origins& origins_;
  std::string file_;
  fs::path folder_;
};

/// Keys of [experts] that are given beside a folder's, and at their defaults: they would change nothing.
Problems unseen_experts(const LoadedRecipe& loaded) {
  const ModelConfig& model = loaded.value.model;
  const bool whole = model.experts.used() || loaded.origins.contains("experts.num_experts");
  if (!model.init_from || model.init_dense || whole) return {};
  Problems problems;
  const config::Schema schema = config::schema_of<Experts>();
  const Experts defaults;
  for (const config::Field& field : schema.fields) {
    const std::string key = fmt::format("experts.{}", field.name);
    if (!loaded.origins.contains(key) || !(field.get(&model.experts) == field.get(&defaults))) continue;
    problems.push_back({.key = key,
                        .reason = fmt::format("is {}, the default, which beside model.init_from is as if it were not "
                                              "given",
                                              config::value_text(field, field.get(&defaults))),
                        .hint = "leave it out to keep what the folder has, or give [experts] as a whole, with "
                                "num_experts"});
  }
  return problems;
}

}  // namespace

Problems derive(LoadedRecipe& loaded, const config::Input& input, int ranks, std::vector<std::string>& said) {
  Recipe& recipe = loaded.value;
  const BesideRecipe beside(loaded.origins, input);
  if (recipe.model.init_from) beside.find("model.init_from", *recipe.model.init_from);
  if (recipe.data.tokenizer && *recipe.data.tokenizer != "bytes") beside.find("data.tokenizer", *recipe.data.tokenizer);
  for (std::size_t i = 0; i < recipe.data.sources.size(); ++i) {
    beside.find(fmt::format("data.sources.{}.path", i), recipe.data.sources[i].path);
  }
  for (std::size_t i = 0; i < recipe.data.validation.size(); ++i) {
    beside.find(fmt::format("data.validation.{}.path", i), recipe.data.validation[i].path);
  }
  Problems problems = derive_batch(loaded, ranks, said);
  derive_total(loaded, said);
  for (config::Problem& problem : unseen_experts(loaded)) problems.push_back(std::move(problem));
  return problems;
}

}  // namespace trireme::spec
