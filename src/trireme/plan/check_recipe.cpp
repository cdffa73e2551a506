#include "trireme/plan/check_recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/plan/asynchronous/downpour_price.h"
#include "trireme/plan/compress_price.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/plan/run_setup.h"
#include "trireme/plan/search.h"
#include "trireme/plan/sizes.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"
#include "trireme/spec/rules.h"
#include "trireme/spec/server_updates.h"

namespace trireme::plan {
namespace {

class Examination {
 public:
  Examination(const spec::Recipe& recipe, const CheckOptions& options) : recipe_(recipe), options_(options) {}

  Checkup run() {
    const auto shape = options_.shape ? options_.shape : spec::shape_of(recipe_.model);
    if (!shape) {
      add("model.family", "there is no model", "set model.family = \"llama\", or another of `trireme recipe docs`");
      return std::move(checkup_);
    }
    setup_ = run_setup(recipe_, *shape, {.ranks = options_.ranks, .rank_kind = options_.rank_kind});
    checkup_.problems = spec::problems_of(spec::find_refusals(setup_, spec::RuleNeeds::kLayout));
    if (!checkup_.problems.empty() || !options_.estimates) return std::move(checkup_);
    const Job job = job_of(recipe_, *shape);
    const ParallelConfig config = config_of(recipe_, job, options_.ranks);
    if (config.layout.pp > 1 && !prove(job, config)) return std::move(checkup_);
    note(config);
    estimate_it(job, config);
    return std::move(checkup_);
  }

 private:
  void add(std::string key, std::string reason, std::string hint) {
    checkup_.problems.push_back(
        {.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  }

  /// Builds the very table that the run would execute and has it checked.
  bool prove(const Job& job, const ParallelConfig& config) {
    try {
      const schedule::Schedule table = schedule::complete(stage_plan(job, config, config.micros(job.batch)).table);
      const schedule::Report report = schedule::check(table);
      for (const std::string& fault : report.faults)
        add("pipeline.schedule", fault, "set pipeline.schedule = \"1f1b\"");
      ScheduleProof proof{
          .kind = table.name, .ranks = config.layout.pp, .chunks = table.chunks(), .micros = table.micros};
      proof.slots = report.slots;
      for (const auto& list : table.ranks) {
        for (const schedule::Instruction& instruction : list) {
          if (schedule::is_pass(instruction.op)) ++proof.passes;
          if (schedule::is_send(instruction.op)) ++proof.messages;
        }
      }
      checkup_.proof = proof;
      return report.fine();
    } catch (const ConfigError& error) {  // a file that is not there or does not fit
      add("pipeline.schedule", error.what(), "set pipeline.schedule = \"1f1b\"");
      return false;
    }
  }

  void note(const ParallelConfig& config) {
    if (recipe_.precision.compute == spec::Precision::kFp64)
      checkup_.notes.emplace_back("precision: figures are for fp32; the planner knows no fp64");
    if (is_asynchronous(config))
      checkup_.notes.push_back(fmt::format(
          "pipeline.schedule: {} updates while micro-batches are in flight; time is between two steps, once it is full",
          config.pipeline.schedule));
    const std::string& split = config.pipeline.split;
    if (config.layout.pp > 1 && (split == "time" || split == "pipedream"))
      checkup_.notes.push_back(fmt::format(
          "pipeline.split: stages are cut by counted FLOPs here, by measured times when the run starts ({}{})", split,
          split == "pipedream" ? ", which may put a stage on several ranks" : ""));
    if (config.recompute == spec::RecomputeKind::kBudget)
      checkup_.notes.emplace_back(
          "train.recompute: figures let a block run again at most once; the run plans segments within the budget");
    if (recipe_.batch.kind != spec::BatchKind::kConstant)
      checkup_.notes.emplace_back("batch: it changes during the run; this is its first step");
  }

  void estimate_it(const Job& job, const ParallelConfig& config) {
    if (options_.hardware.peak(job.arithmetic()) <= 0) {
      try {
        require_arithmetic(options_.hardware, job);
      } catch (const ConfigError& error) {
        const bool fp8 = job.precision.gemm != spec::GemmPrecision::kSame;
        if (options_.judge_memory) {
          add(fp8 ? "precision.gemm" : "precision.compute", error.what(),
              fp8 ? "set precision.gemm = \"same\"" : fmt::format("set precision.compute = \"{}\"", widest_name()));
        } else {
          checkup_.notes.push_back(fmt::format("precision: {}, so there are no figures", error.what()));
        }
      }
      return;
    }
    checkup_.job = job;
    checkup_.stages = stage_memories(options_.hardware, job, config);
    checkup_.estimate = estimate(options_.hardware, job, config);
    // What it saves and from which bandwidth on it pays, on the network of the recipe or the hardware.
    if (const auto there =
            compression_there(recipe_, job.shape, config, options_.hardware, checkup_.estimate->time.work.total()))
      checkup_.notes.push_back(to_text(*there, recipe_.compress.kind));
    if (recipe_.train.mode != spec::TrainMode::kSynchronous) note_servers(job, config);
    if (options_.judge_memory && !checkup_.estimate->memory.fits) add_too_full(job, config);
  }

  /// Messages to servers in place of the all-reduce that the estimate has.
  void note_servers(const Job& job, const ParallelConfig& config) {
    const bool one_node = options_.ranks <= options_.hardware.cluster.gpus_per_node;
    const DownpourTask task{
        .replicas = config.dp(),
        .compute_s = checkup_.estimate->time.work.total(),
        .bytes_per_second = one_node ? options_.hardware.link_bandwidth() : options_.hardware.network_bandwidth()};
    const auto parameters = static_cast<double>(spec::count_parameters(job.shape).total());
    if (recipe_.train.mode == spec::TrainMode::kDownpour) {
      checkup_.notes.push_back(fmt::format("downpour: {}", to_text(price_downpour(recipe_, parameters, task), task)));
      return;
    }
    const std::int64_t rows = recipe_.batch.global_batch_tokens / job.seq_len,
                       all = std::int64_t{spec::kSandblasterPortions} * task.replicas;
    const std::int64_t portions =
        std::min(rows, recipe_.train.micro_batch_size ? rows / *recipe_.train.micro_batch_size : all);
    const auto price = price_sandblaster(parameters, portions, spec::kSandblasterVectors, task);
    checkup_.notes.push_back(fmt::format("sandblaster: {}; L-BFGS takes the place of [optim]", to_text(price, task)));
  }

  std::string widest_name() const {
    for (const auto& [name, value] : {std::pair{"bf16", cost::Arithmetic::kBf16},
                                      {"fp16", cost::Arithmetic::kFp16},
                                      {"fp32", cost::Arithmetic::kFp32}}) {
      if (options_.hardware.peak(value) > 0) return name;
    }
    return "fp32";
  }

  /// Which keys to change so that it fits on the same ranks, as the search would.
  void add_too_full(const Job& job, const ParallelConfig& config) {
    const Memory& memory = checkup_.estimate->memory;
    const std::string reason = fmt::format("rank {} needs {:.1f} GiB, but a device has {:.1f}: {}",
                                           memory.fullest.stage * options_.ranks / config.layout.pp,
                                           memory.peak() / 1073741824.0, memory.device / 1073741824.0, memory.why());
    const auto found = nearest_fit(job, config);
    if (found) return add("layout", reason, changes(config, *found));
    const auto larger = nearest_that_fits(options_.hardware, job, options_.ranks, {.top = 1, .replay = false});
    add("layout", reason,
        larger ? fmt::format("no layout of {} ranks fits; {} do, with {}", options_.ranks, larger->gpus,
                             to_text(larger->found.best.front().config))
               : "take devices with more memory, or a smaller model, length or batch");
  }

  /// How many keys of a recipe differ.
  static int difference(const ParallelConfig& a, const ParallelConfig& b) {
    const spec::LayoutConfig &one = a.layout, &other = b.layout;
    return (one.tp != other.tp) + (one.pp != other.pp) + (one.cp != other.cp) + (one.zero != other.zero) +
           (one.zero_group != other.zero_group) + (one.sequence_parallel != other.sequence_parallel) +
           (one.offload != other.offload) + (a.pipeline.schedule != b.pipeline.schedule) +
           (a.pipeline.virtual_stages != b.pipeline.virtual_stages) + (a.pipeline.split != b.pipeline.split) +
           (a.micro_batch_size != b.micro_batch_size) + (a.recompute != b.recompute);
  }

  /// Whether the rules let the recipe run so.
  bool is_allowed(const ParallelConfig& config) const {
    spec::Recipe changed = recipe_;
    spec::apply(config, changed);
    return spec::find_refusals(
               run_setup(changed, setup_.shape, {.ranks = options_.ranks, .rank_kind = options_.rank_kind}))
        .empty();
  }

  /// Among what fits and is allowed, the configuration with the fewest differing keys, and of those the fastest.
  std::optional<ParallelConfig> nearest_fit(const Job& job, const ParallelConfig& config) const {
    std::optional<ParallelConfig> best;
    double best_seconds = 0;
    int fewest = 0;
    ScheduleCache schedules(job);
    const auto look = [&](const ParallelConfig& candidate, bool) {
      const int differ = difference(candidate, config);
      if (best && differ > fewest) return;
      if (!estimate_memory(options_.hardware, job, candidate, schedules).fits) return;
      const double seconds = estimate_step(options_.hardware, job, candidate, Pipeline::kClosedForm, schedules).total();
      if (best && differ == fewest && seconds >= best_seconds) return;
      if (!is_allowed(candidate)) return;
      best = candidate, best_seconds = seconds, fewest = differ;
    };
    // What the run can be told by few keys: its own schedule, or the plain ones.
    Choices given{.split = config.pipeline.split, .cp_kind = config.layout.cp_kind, .base = config};
    given.schedules = {"1f1b", "interleaved"};
    if (config.layout.pp > 1) given.schedules.push_back(config.pipeline.schedule);
    try {
      for_each_config(options_.hardware, job, options_.ranks, given, look);
    } catch (const config::ProblemsError&) {
      return std::nullopt;  // these rows cannot be cut otherwise
    }
    return best;
  }

  static std::string changes(const ParallelConfig& from, const ParallelConfig& to) {
    std::string out;
    const auto change = [&out](const char* key, const auto& before, const auto& after) {
      if (before != after) out += fmt::format("{} {} = {}", out.empty() ? "set" : ",", key, after);
    };
    const auto quoted = [](std::string_view text) { return fmt::format("\"{}\"", text); };
    change("layout.tp", from.layout.tp, to.layout.tp);
    change("layout.pp", from.layout.pp, to.layout.pp);
    change("layout.cp", from.layout.cp, to.layout.cp);
    change("layout.dp", from.dp(), to.dp());
    change("layout.zero", from.layout.zero, to.layout.zero);
    if (to.layout.zero_group) change("layout.zero_group", from.layout.zero_group.value_or(0), *to.layout.zero_group);
    change("layout.sequence_parallel", from.layout.sequence_parallel, to.layout.sequence_parallel);
    const auto offloads = spec::enum_names(std::type_identity<spec::OffloadKind>{});
    change("layout.offload", quoted(name_in(offloads, from.layout.offload)),
           quoted(name_in(offloads, to.layout.offload)));
    if (to.layout.pp > 1) change("pipeline.schedule", quoted(from.pipeline.schedule), quoted(to.pipeline.schedule));
    change("pipeline.virtual_stages", from.pipeline.virtual_stages, to.pipeline.virtual_stages);
    change("train.micro_batch_size", from.micro_batch_size, to.micro_batch_size);
    const auto names = spec::enum_names(std::type_identity<spec::RecomputeKind>{});
    change("train.recompute", quoted(name_in(names, from.recompute)), quoted(name_in(names, to.recompute)));
    return out;
  }

  const spec::Recipe& recipe_;
  const CheckOptions& options_;
  spec::RunSetup setup_;
  Checkup checkup_;
};

}  // namespace

Checkup check_recipe(const spec::Recipe& recipe, const CheckOptions& options) {
  return Examination(recipe, options).run();
}

}  // namespace trireme::plan
