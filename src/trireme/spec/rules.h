// spec/rules.h -- what of a recipe runs together: one list of rules, which all who must know it read.
//
//   RunSetup run{.recipe = recipe, .shape = shape, .seq_len = 1024, .ranks = 8};
//   run.schedule = plan::schedule_traits(recipe);
//   for (const Refusal& refusal : find_refusals(run)) ...    refusal.rule->name, refusal.problem.hint
//
// load_recipe() applies the rules that need nothing but the recipe, planner and `eval` those of a layout, `trireme
// check` and the trainer all of them, so what a check accepts is what runs; docs/combinations.md is made from the same
// list. What the trainer still finds by itself is an internal error.
// To add one: a function beside its like in rules/*.cpp and a row in that file's table; a feature in plan/features.h
// that meets it, without which tests/train/combinations_test.cpp fails.
// Depends on: recipe, model_shape, batch_split.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/spec/recipe.h"

namespace trireme::spec {

/// What rules ask of a pipeline schedule, a name to this room: plan::schedule_traits() fills it in.
struct ScheduleTraits {
  enum class Prediction : std::uint8_t { kNone, kMomentum, kAdam };
  std::string unknown;           ///< why there is no such schedule; empty: there is
  std::string nearest = "1f1b";  ///< of the names that there are
  bool asynchronous = false;     ///< ranks update while micro-batches are in flight
  bool updates_every_micro = false;
  bool waves = false;                         ///< virtual workers that push once a wave (HetPipe)
  Prediction prediction = Prediction::kNone;  ///< of weights, and from which state of the optimizer
  int default_chunks = 1;                     ///< of each rank
  bool bidirectional = false;                 ///< the chunks of a rank are copies of others': the model has pp of them
  bool doubled_forward = false;               ///< a forward takes two micro-batches, or both halves of one
  int least_rows = 1;                         ///< sequences of a micro-batch, which backwards may halve
  int steps = 0;                              ///< that it holds, where it cannot be repeated; 0: any number
  /// Why it is not defined for so many micro-batches a step and chunks a rank; empty where it is.
  std::function<std::string(int micros, int chunks_per_rank)> refuses = [](int, int) { return std::string(); };
};

/// Of one transformer block on a rank.
struct BlockBytes {
  double saved = 0;  ///< that its forward leaves of a micro-batch for its backward, its input among them
  double input = 0;  ///< that are left where it runs again
};

/// What ranks are, where comm.transport leaves it open.
enum class RankKind : std::uint8_t { kThreads, kProcesses };

/// A run as rules see it.
struct RunSetup {
  Recipe recipe;
  ModelShape shape;
  std::int64_t seq_len = 1;          ///< of samples, in tokens
  std::optional<std::int64_t> rows;  ///< of a step, in sequences; unset: as recipe.batch says
  std::optional<int> ranks;          ///< unset: as many as the layout takes
  RankKind rank_kind = RankKind::kThreads;
  ScheduleTraits schedule = {};  ///< where layout.pp > 1
  /// What blocks save, which is the planner's to say (plan/run_setup.h); empty: nobody asks.
  std::function<BlockBytes(const Recipe& recipe, bool encoder)> block_bytes = {};
};

/// A run in which earlier problems are mended as their hints say, so that later hints suit earlier ones.
class RuleContext {
 public:
  explicit RuleContext(RunSetup setup);

  RunSetup run;
  int replicas = 1;  ///< data-parallel ranks, from where the ranks have been counted on

  const LayoutConfig& layout() const { return run.recipe.layout; }
  bool has_stages() const { return run.recipe.layout.pp > 1; }
  /// Whether the pipeline stays full from one step to the next.
  bool runs_several_steps() const;
  /// Micro-batches of a replica in a step of so many sequences.
  std::int64_t micros_of(std::int64_t rows) const;
  /// Sequences of a step, each number once; those that are no whole number of sequences are left out.
  std::vector<std::int64_t> rows_of_steps() const;

  void refuse(std::string key, std::string reason, std::string hint);
  std::vector<config::Problem> take_problems() { return std::move(problems_); }

 private:
  std::vector<config::Problem> problems_;
};

/// What a rule must know.
enum class RuleNeeds : std::uint8_t {
  kRecipe,  ///< the recipe alone
  kLayout,  ///< layout, model, sequence length, ranks and rows of a step
  kRun,     ///< everything
};

enum class Because : std::uint8_t {
  kDefinition,  ///< it has no meaning, or the mathematics would be another
  kNotBuilt,    ///< it could be built
};

struct Rule {
  std::string_view name;
  std::string_view refuses;  ///< in words, for the page of what works together
  std::string_view why;
  Because because;
  RuleNeeds needs;
  void (*look)(RuleContext& context);
};

/// In the order in which they are applied.
std::span<const Rule> rules();

struct Refusal {
  const Rule* rule = nullptr;
  config::Problem problem;
};

/// Every rule that `run` does not meet, among those that need at most and at least this.
std::vector<Refusal> find_refusals(RunSetup run, RuleNeeds least = RuleNeeds::kRecipe,
                                   RuleNeeds most = RuleNeeds::kRun);
std::vector<config::Problem> problems_of(const std::vector<Refusal>& refusals);

/// Rows of a micro-batch of a pipeline: train.micro_batch_size, or where it is not given one; of schedules that update
/// after every micro-batch all that a replica has of a step (0).
std::int64_t pipeline_micro_rows(const Recipe& recipe, const ScheduleTraits& schedule);
/// Entries that a model of this shape can be cut between: embedding, blocks (or segments of them) and head.
std::vector<std::string> chain_entries(const ModelShape& shape, RecomputeKind recompute);
/// Those that pipeline.split lists.
std::vector<std::string> split_entries(const std::string& split);
/// "size:2,1" and "time:2,1": a split by size or time between stages of these relative speeds. Anything else is as it
/// is written, without speeds.
struct SplitSpeeds {
  std::string how;
  std::vector<double> speeds;
};
SplitSpeeds split_speeds(const std::string& split);
/// "size:2,1;layers.1": a split for each virtual worker (HetPipe), which then cut the model at different entries. One
/// for all of them where there is no semicolon.
std::vector<std::string> worker_splits(const std::string& split);
/// That of one virtual worker.
std::string split_of_worker(const std::string& split, int worker);
/// Of the data-parallel ranks, those that experts are sharded over: what the inner of dp and cp leaves to it.
std::int64_t expert_share_of_dp(const LayoutConfig& layout, std::int64_t replicas);
/// Steps between flushes of a pipeline: pipeline.drain_every; where it is not given 1, and of asynchronous schedules
/// what divides the steps of evaluations, checkpoints and hashes.
std::int64_t steps_between_drains(const Recipe& recipe, bool asynchronous);

// One table a file.
std::span<const Rule> recipe_rules();
std::span<const Rule> layout_rules();
std::span<const Rule> expert_rules();
std::span<const Rule> pipeline_rules();
std::span<const Rule> run_rules();
std::span<const Rule> asynchronous_rules();
std::span<const Rule> parameter_rules();
std::span<const Rule> compress_rules();
std::span<const Rule> optim_rules();

}  // namespace trireme::spec
