#include "trireme/plan/check_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/text.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/plan/search.h"
#include "trireme/plan/sizes.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"
#include "trireme/spec/layout_check.h"

namespace trireme::plan {
namespace {

class Examination {
 public:
  Examination(const spec::Recipe& recipe, const CheckOptions& options) : recipe_(recipe), options_(options) {}

  Checkup run() {
    const auto shape = spec::shape_of(recipe_.model);
    if (!shape) {
      add("model.family",
          recipe_.model.init_from
              ? fmt::format("the shape stands in {}, which is read when the run starts", *recipe_.model.init_from)
              : "there is no model",
          "set model.family, for example to \"llama\"");
      return std::move(checkup_);
    }
    const std::int64_t rows = batch_rows(recipe_);
    if (rows == 0) add_broken_rows();
    const spec::LayoutTask task{.shape = *shape,
                                .sequence = recipe_.data.seq_len,
                                .batch_rows = std::max<std::int64_t>(1, rows),
                                .micro_batch_size = recipe_.train.micro_batch_size,
                                .ranks = options_.ranks};
    if (rows > 0) {
      for (config::Problem& problem : spec::find_layout_problems(recipe_.layout, recipe_.pipeline, task))
        checkup_.problems.push_back(std::move(problem));
    }
    if (!checkup_.problems.empty()) return std::move(checkup_);
    const Job job = job_of(recipe_, *shape);
    if (!schedule_is_known()) return std::move(checkup_);
    const Layout layout = layout_of(recipe_, job, options_.ranks);
    if (layout.pp > 1 && !prove(job, layout)) return std::move(checkup_);
    note(layout);
    estimate_it(job, layout);
    return std::move(checkup_);
  }

 private:
  void add(std::string key, std::string reason, std::string hint) {
    checkup_.problems.push_back(
        {.key = std::move(key), .reason = std::move(reason), .hint = std::move(hint), .where = {}});
  }

  void add_broken_rows() {
    const std::int64_t tokens = spec::batch_at(recipe_.lr_schedule, recipe_.batch, 0), length = recipe_.data.seq_len;
    const std::int64_t rows = std::max<std::int64_t>(1, tokens / length);
    add("batch.global_batch_tokens", fmt::format("{} tokens are no whole number of sequences of {}", tokens, length),
        recipe_.batch.kind == spec::BatchKind::kConstant
            ? fmt::format("set batch.global_batch_tokens = {} ({} sequences)", rows * length, rows)
            : fmt::format("set batch.multiple = {}, and batch.start and batch.global_batch_tokens to multiples of it",
                          length));
  }

  bool schedule_is_known() {
    const std::string& name = recipe_.pipeline.schedule;
    if (recipe_.layout.pp == 1 || name.starts_with("file:")) return true;
    std::vector<std::string> names;
    for (const schedule::Kind& kind : schedule::kinds()) {
      if (kind.name == name) return true;
      names.emplace_back(kind.name);
    }
    add("pipeline.schedule", fmt::format("\"{}\" is unknown{}", name, did_you_mean(name, names)),
        fmt::format("set pipeline.schedule = \"{}\"", closest(name, names).value_or("1f1b")));
    return false;
  }

  /// Builds the very table that the run would walk and has it checked.
  bool prove(const Job& job, const Layout& layout) {
    const schedule::Shape shape{.ranks = layout.pp,
                                .micros = static_cast<int>(micros_of(job, layout)),
                                .chunks_per_rank = layout.virtual_stages};
    if (!layout.schedule.starts_with("file:")) {
      if (const std::string why = schedule::find_kind(layout.schedule).refuses(shape); !why.empty()) {
        add("pipeline.schedule", fmt::format("{}: {}", layout.schedule, why), takes(layout.schedule, shape));
        return false;
      }
    }
    try {
      const schedule::Schedule table = schedule::complete(schedule::build(layout.schedule, shape));
      const schedule::Report report = schedule::check(table);
      for (const std::string& fault : report.faults)
        add("pipeline.schedule", fault, "set pipeline.schedule = \"1f1b\"");
      ScheduleProof proof{.kind = table.name, .ranks = layout.pp, .chunks = table.chunks(), .micros = table.micros};
      proof.slots = report.slots;
      for (const auto& list : table.ranks) {
        for (const schedule::Instruction& instruction : list) {
          if (instruction.op <= schedule::Op::kForwardBackward) ++proof.passes;
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

  /// What this kind takes, or else the plainest.
  std::string takes(const std::string& kind, schedule::Shape shape) const {
    const auto accepted = [&] { return schedule::find_kind(kind).refuses(shape).empty(); };
    const int wanted = shape.chunks_per_rank;
    for (shape.chunks_per_rank = 1; shape.chunks_per_rank <= 4; ++shape.chunks_per_rank) {
      if (accepted()) return fmt::format("set pipeline.virtual_stages = {}", shape.chunks_per_rank);
    }
    shape.chunks_per_rank = wanted;
    const std::int64_t length = recipe_.data.seq_len, rows = batch_rows(recipe_);
    const int before = shape.micros;
    for (++shape.micros; shape.micros <= 4 * shape.ranks + before; ++shape.micros) {
      if (!accepted() || rows * shape.micros % before != 0) continue;
      const std::int64_t more = rows * shape.micros / before;
      return fmt::format("set batch.global_batch_tokens = {} ({} sequences, {} micro-batches)", more * length, more,
                         shape.micros);
    }
    return "set pipeline.schedule = \"1f1b\" and pipeline.virtual_stages = 1";
  }

  void note(const Layout& layout) {
    for (const auto* sources : {&recipe_.data.sources, &recipe_.data.validation}) {
      for (const spec::DataSource& source : *sources) {
        if (!std::filesystem::exists(source.path))
          checkup_.notes.push_back(fmt::format("data: {} is not here (trireme tokenize makes it)", source.path));
      }
    }
    if (!spec::has_data(recipe_.data)) checkup_.notes.emplace_back("data: there is none to train on yet");
    if (recipe_.precision.compute == spec::Precision::kFp64)
      checkup_.notes.emplace_back("precision: figures are for fp32; the planner knows no fp64");
    const auto recompute = recipe_.train.recompute;
    if (recompute == spec::RecomputeKind::kEvery || recompute == spec::RecomputeKind::kSqrt)
      checkup_.notes.emplace_back("train.recompute: figures are for full, the nearest that the planner knows");
    if (layout.schedule.starts_with("file:"))
      checkup_.notes.emplace_back(
          "pipeline.schedule: time and memory are 1f1b's; a file's are seen by `schedule draw`");
    else if (layout.pp > 1 && schedule::find_kind(layout.schedule).asynchronous)
      checkup_.notes.push_back(fmt::format(
          "pipeline.schedule: {} updates while micro-batches are in flight; time is of one step from an empty pipeline",
          layout.schedule));
    if (recipe_.batch.kind != spec::BatchKind::kConstant)
      checkup_.notes.emplace_back("batch: it changes during the run; this is its first step");
  }

  void estimate_it(const Job& job, Layout layout) {
    if (layout.schedule.starts_with("file:")) layout.schedule = "1f1b";
    if (options_.hardware.peak(job.arithmetic) <= 0) {
      try {
        require_arithmetic(options_.hardware, job);
      } catch (const ConfigError& error) {
        add("precision.compute", error.what(), fmt::format("set precision.compute = \"{}\"", widest_name()));
      }
      return;
    }
    checkup_.job = job;
    checkup_.stages = stage_memories(options_.hardware, job, layout);
    checkup_.estimate = estimate(options_.hardware, job, layout);
    if (options_.judge_memory && !checkup_.estimate->memory.fits) add_too_full(job, layout);
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
  void add_too_full(const Job& job, const Layout& layout) {
    const Memory& memory = checkup_.estimate->memory;
    const std::string reason =
        fmt::format("rank {} needs {:.1f} GiB, but a device has {:.1f}: {}", memory.stage * options_.ranks / layout.pp,
                    memory.peak() / 1073741824.0, memory.device / 1073741824.0, memory.why());
    const auto found = nearest_fit(job, layout);
    if (found) return add("layout", reason, changes(layout, *found));
    const auto larger = nearest_that_fits(options_.hardware, job, options_.ranks, {.top = 1, .replay = false});
    add("layout", reason,
        larger ? fmt::format("no layout of {} ranks fits; {} do, with {}", options_.ranks, larger->gpus,
                             to_text(larger->found.best.front().layout))
               : "take devices with more memory, or a smaller model, length or batch");
  }

  std::vector<Layout> candidates(const Job& job, const Layout& layout) const {
    try {
      std::vector<Layout> all =
          all_layouts(options_.hardware, job, options_.ranks, {.sequence_parallel = layout.sequence_parallel});
      for (Layout& one : all) one.sequence_parallel = one.sequence_parallel && one.tp > 1;
      return all;
    } catch (const config::ProblemsError&) {
      return {};  // these rows cannot be cut otherwise
    }
  }

  /// Among what fits, the layout with the fewest differing keys, and of those the fastest.
  std::optional<Layout> nearest_fit(const Job& job, const Layout& layout) const {
    std::optional<Estimate> best;
    int fewest = 0;
    for (Layout candidate : candidates(job, layout)) {
      const int differ = (candidate.tp != layout.tp) + (candidate.pp != layout.pp) + (candidate.cp != layout.cp) +
                         (candidate.virtual_stages != layout.virtual_stages) +
                         (candidate.micro_batch_size != layout.micro_batch_size) + (candidate.zero != layout.zero) +
                         (candidate.recompute != layout.recompute);
      if (best && differ > fewest) continue;
      if (!estimate_memory(options_.hardware, job, candidate).fits) continue;
      const Estimate timed = estimate(options_.hardware, job, candidate, Pipeline::kClosedForm);
      if (best && differ == fewest && timed.step_seconds() >= best->step_seconds()) continue;
      best = timed, fewest = differ;
    }
    if (!best) return std::nullopt;
    return best->layout;
  }

  static std::string changes(const Layout& from, const Layout& to) {
    std::string out;
    const auto change = [&out](const char* key, const auto& before, const auto& after) {
      if (before != after) out += fmt::format("{} {} = {}", out.empty() ? "set" : ",", key, after);
    };
    change("layout.tp", from.tp, to.tp);
    change("layout.pp", from.pp, to.pp);
    change("layout.cp", from.cp, to.cp);
    if (from.dp != to.dp) change("layout.dp", from.dp, to.dp);
    change("layout.zero", from.zero, to.zero);
    change("layout.sequence_parallel", from.sequence_parallel, to.sequence_parallel);
    if (to.pp > 1 && from.schedule != to.schedule)
      change("pipeline.schedule", from.schedule, fmt::format("\"{}\"", to.schedule));
    change("pipeline.virtual_stages", from.virtual_stages, to.virtual_stages);
    change("train.micro_batch_size", from.micro_batch_size, to.micro_batch_size);
    const auto names = enum_names(std::type_identity<Recompute>{});
    change("train.recompute", fmt::format("\"{}\"", name_in(names, from.recompute)),
           fmt::format("\"{}\"", name_in(names, to.recompute)));
    return out;
  }

  const spec::Recipe& recipe_;
  const CheckOptions& options_;
  Checkup checkup_;
};

}  // namespace

Checkup check_recipe(const spec::Recipe& recipe, const CheckOptions& options) {
  return Examination(recipe, options).run();
}

}  // namespace trireme::plan
