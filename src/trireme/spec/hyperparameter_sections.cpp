// The keys of [lr_schedule] and [batch], and which values of them do not go together.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/spec/hyperparameters.h"

namespace trireme::spec {
namespace {

constexpr Named<LrScheduleKind> kSchedules[] = {
    {"constant", LrScheduleKind::kConstant},
    {"linear", LrScheduleKind::kLinear},
    {"cosine", LrScheduleKind::kCosine},
    {"inverse-sqrt", LrScheduleKind::kInverseSqrt},
    {"wsd", LrScheduleKind::kWsd},
    {"step", LrScheduleKind::kStep},
    {"one-cycle", LrScheduleKind::kOneCycle},
    {"range-test", LrScheduleKind::kRangeTest},
};
constexpr Named<LrScheduleUnit> kUnits[] = {{"steps", LrScheduleUnit::kSteps}, {"tokens", LrScheduleUnit::kTokens}};
constexpr Named<LrScaling> kLrScalings[] = {
    {"none", LrScaling::kNone}, {"linear", LrScaling::kLinear}, {"square-root", LrScaling::kSquareRoot}};
constexpr Named<BatchKind> kBatches[] = {{"constant", BatchKind::kConstant},
                                         {"ramp", BatchKind::kRamp},
                                         {"increase", BatchKind::kIncrease},
                                         {"noise", BatchKind::kNoise}};

using Problems = std::vector<config::Problem>;

// Far beyond every run, and small enough to be multiplied by a thousand.
constexpr std::int64_t kMost = 1'000'000'000'000'000;

bool needs_total(LrScheduleKind kind) {
  return kind == LrScheduleKind::kLinear || kind == LrScheduleKind::kCosine || kind == LrScheduleKind::kWsd ||
         kind == LrScheduleKind::kOneCycle || kind == LrScheduleKind::kRangeTest;
}

void add_missing_or_unused(Problems& problems, std::string key, bool given, bool needed, const std::string& why,
                           std::string hint) {
  if (given == needed) return;
  problems.push_back({.key = std::move(key),
                      .reason = fmt::format("{}, but {} {}", given ? "is given" : "is not given", why,
                                            given ? "does not use it" : "needs it"),
                      .hint = given ? "leave it out" : std::move(hint)});
}

void add_schedule_problems(const LrScheduleConfig& schedule, Problems& problems) {
  const std::string kind = fmt::format("lr_schedule.kind = \"{}\"", name_in<LrScheduleKind>(kSchedules, schedule.kind));
  const std::int64_t after_warmup = std::max<std::int64_t>(2 * schedule.warmup, 1000);
  add_missing_or_unused(problems, "lr_schedule.total", schedule.total.has_value(), needs_total(schedule.kind), kind,
                        fmt::format("set lr_schedule.total = {}, or train.steps, with which it ends", after_warmup));
  add_missing_or_unused(problems, "lr_schedule.decay", schedule.decay.has_value(),
                        schedule.kind == LrScheduleKind::kWsd, kind, "set lr_schedule.decay = 100");
  add_missing_or_unused(problems, "lr_schedule.boundaries", !schedule.boundaries.empty(),
                        schedule.kind == LrScheduleKind::kStep, kind,
                        "set lr_schedule.boundaries = [100] and lr_schedule.factors = [0.1]");
  if (schedule.boundaries.size() != schedule.factors.size()) {
    problems.push_back({.key = "lr_schedule.factors",
                        .reason = fmt::format("has {} for {}", counted(schedule.factors.size(), "value"),
                                              schedule.boundaries.size() == 1
                                                  ? std::string("1 boundary")
                                                  : fmt::format("{} boundaries", schedule.boundaries.size())),
                        .hint = "give one factor for each of lr_schedule.boundaries"});
  }
  if (!std::ranges::is_sorted(schedule.boundaries, std::less_equal<>())) {
    problems.push_back({.key = "lr_schedule.boundaries", .reason = "must be ascending", .hint = "sort them"});
  }
  if (schedule.total && *schedule.total <= schedule.warmup) {
    problems.push_back({.key = "lr_schedule.total",
                        .reason = fmt::format("is {}, within the warm-up of {}", *schedule.total, schedule.warmup),
                        .hint = fmt::format("set lr_schedule.total = {}", after_warmup)});
  } else if (schedule.total && schedule.decay && *schedule.decay > *schedule.total - schedule.warmup) {
    problems.push_back({.key = "lr_schedule.decay",
                        .reason = fmt::format("is {}, but only {} are left after the warm-up", *schedule.decay,
                                              *schedule.total - schedule.warmup),
                        .hint = fmt::format("set lr_schedule.decay = {}", *schedule.total - schedule.warmup)});
  }
  if (schedule.warmup_from && schedule.warmup == 0) {
    problems.push_back({.key = "lr_schedule.warmup_from",
                        .reason = "is given, but there is no warm-up",
                        .hint = "set lr_schedule.warmup, or leave it out"});
  }
  if (schedule.kind == LrScheduleKind::kConstant && schedule.minimum != 0) {
    problems.push_back({.key = "lr_schedule.minimum",
                        .reason = fmt::format("is given, but {} does not use it", kind),
                        .hint = "leave it out"});
  }
  if (schedule.kind == LrScheduleKind::kOneCycle && schedule.warmup == 0) {
    problems.push_back({.key = "lr_schedule.warmup",
                        .reason = fmt::format("is not given, but {} rises before it falls", kind),
                        .hint = "set lr_schedule.warmup to about 0.3 of the run's steps"});
  }
  if (schedule.kind == LrScheduleKind::kRangeTest && schedule.minimum == 0) {
    problems.push_back({.key = "lr_schedule.minimum",
                        .reason = fmt::format("is 0, but {} multiplies the rate from there up to the peak", kind),
                        .hint = "set lr_schedule.minimum = 1e-5"});
  }
  add_missing_or_unused(problems, "lr_schedule.reference_batch", schedule.reference_batch.has_value(),
                        schedule.scaling != LrScaling::kNone,
                        fmt::format("lr_schedule.scaling = \"{}\"", name_in<LrScaling>(kLrScalings, schedule.scaling)),
                        "set lr_schedule.reference_batch to the batch size that optim.learning_rate was tuned for");
}

std::string restart_key(std::size_t index, const char* key) {
  return fmt::format("lr_schedule.restarts.{}.{}", index, key);
}

void add_restart_problems(const LrScheduleConfig& schedule, const BatchConfig& batch, Problems& problems) {
  const std::string kind = fmt::format("lr_schedule.kind = \"{}\"", name_in<LrScheduleKind>(kSchedules, schedule.kind));
  if (!schedule.restarts.empty() && schedule.kind == LrScheduleKind::kStep) {
    problems.push_back(
        {.key = "lr_schedule.restarts",
         .reason = fmt::format("begin a schedule anew, but the boundaries of {} count from the start", kind),
         .hint = "give the rates as lr_schedule.factors, or choose another kind"});
  }
  std::int64_t before = 0;
  for (std::size_t i = 0; i < schedule.restarts.size(); ++i) {
    const LrRestart& restart = schedule.restarts[i];
    if (restart.at <= before) {
      problems.push_back({.key = restart_key(i, "at"),
                          .reason = fmt::format("is {}, not after {}", restart.at, before),
                          .hint = fmt::format("set {} = {}", restart_key(i, "at"), before + 1)});
    }
    before = std::max(before, restart.at);
    add_missing_or_unused(problems, restart_key(i, "total"), restart.total.has_value(), needs_total(schedule.kind),
                          kind, fmt::format("set {} = {}", restart_key(i, "total"), 2 * restart.warmup + 1000));
    if (restart.total && *restart.total <= restart.warmup) {
      problems.push_back({.key = restart_key(i, "total"),
                          .reason = fmt::format("is {}, within the warm-up of {}", *restart.total, restart.warmup),
                          .hint = fmt::format("set {} = {}", restart_key(i, "total"), 2 * restart.warmup + 1000)});
    }
    if (restart.total && schedule.decay && *schedule.decay > *restart.total - restart.warmup) {
      problems.push_back(
          {.key = restart_key(i, "total"),
           .reason = fmt::format("leaves {} after its warm-up, less than lr_schedule.decay = {}",
                                 *restart.total - restart.warmup, *schedule.decay),
           .hint = fmt::format("set {} = {}", restart_key(i, "total"), restart.warmup + *schedule.decay)});
    }
    if (!restart.global_batch_tokens) continue;
    if (schedule.unit != LrScheduleUnit::kTokens || batch.kind != BatchKind::kConstant) {
      problems.push_back({.key = restart_key(i, "global_batch_tokens"),
                          .reason = "changes the batch at a number of tokens, from one that is constant until then",
                          .hint = "set lr_schedule.unit = \"tokens\" and batch.kind = \"constant\", or leave it out"});
    }
    if (*restart.global_batch_tokens % batch.multiple != 0) {
      problems.push_back({.key = restart_key(i, "global_batch_tokens"),
                          .reason = fmt::format("is {}, no multiple of batch.multiple = {}",
                                                *restart.global_batch_tokens, batch.multiple),
                          .hint = fmt::format("set {} = {}", restart_key(i, "global_batch_tokens"),
                                              (*restart.global_batch_tokens / batch.multiple + 1) * batch.multiple)});
    }
  }
}

void add_multiple_problem(const char* key, std::int64_t size, std::int64_t multiple, Problems& problems) {
  if (size % multiple == 0) return;
  problems.push_back({.key = key,
                      .reason = fmt::format("is {}, no multiple of batch.multiple = {}", size, multiple),
                      .hint = fmt::format("set {} = {}", key, (size / multiple + 1) * multiple)});
}

void add_batch_problems(const LrScheduleConfig& schedule, const BatchConfig& batch, Problems& problems) {
  const std::string kind = fmt::format("batch.kind = \"{}\"", name_in<BatchKind>(kBatches, batch.kind));
  const bool ramp = batch.kind == BatchKind::kRamp, increase = batch.kind == BatchKind::kIncrease;
  const bool noise = batch.kind == BatchKind::kNoise;
  const BatchConfig defaults;
  add_missing_or_unused(problems, "batch.noise_factor", batch.noise_factor != defaults.noise_factor,
                        noise && batch.noise_factor != defaults.noise_factor, kind, "");
  add_missing_or_unused(problems, "batch.noise_every", batch.noise_every != defaults.noise_every,
                        noise && batch.noise_every != defaults.noise_every, kind, "");
  add_missing_or_unused(problems, "batch.start", batch.start.has_value(), ramp, kind,
                        fmt::format("set batch.start = {}", batch.multiple));
  add_missing_or_unused(problems, "batch.over", batch.over.has_value(), ramp, kind,
                        fmt::format("set batch.over = {}", 1000 * batch.global_batch_tokens));
  add_missing_or_unused(problems, "batch.maximum", batch.maximum.has_value(), increase || noise, kind,
                        fmt::format("set batch.maximum = {}", 10 * batch.global_batch_tokens));
  add_multiple_problem("batch.global_batch_tokens", batch.global_batch_tokens, batch.multiple, problems);
  if (ramp && batch.start && *batch.start > batch.global_batch_tokens) {
    problems.push_back(
        {.key = "batch.start",
         .reason = fmt::format("is {}, above batch.global_batch_tokens = {}", *batch.start, batch.global_batch_tokens),
         .hint = fmt::format("set batch.start = {}", batch.global_batch_tokens)});
  }
  if ((increase || noise) && batch.maximum && *batch.maximum < batch.global_batch_tokens) {
    problems.push_back({.key = "batch.maximum",
                        .reason = fmt::format("is {}, below batch.global_batch_tokens = {}", *batch.maximum,
                                              batch.global_batch_tokens),
                        .hint = fmt::format("set batch.maximum = {}", batch.global_batch_tokens)});
  }
  if (increase && (schedule.kind != LrScheduleKind::kStep || schedule.unit != LrScheduleUnit::kTokens)) {
    problems.push_back({.key = "batch.kind",
                        .reason =
                            "\"increase\" grows the batch where a step schedule over tokens would lower the rate; "
                            "steps would come later, as there are fewer of them",
                        .hint = "set lr_schedule.kind = \"step\" and lr_schedule.unit = \"tokens\""});
  }
  if (increase && schedule.minimum != 0) {
    problems.push_back({.key = "lr_schedule.minimum",
                        .reason = fmt::format("would raise the gradient noise again where {} has lowered it", kind),
                        .hint = "leave it out"});
  }
}

}  // namespace

std::span<const Named<LrScheduleKind>> enum_names(std::type_identity<LrScheduleKind>) { return kSchedules; }
std::span<const Named<LrScheduleUnit>> enum_names(std::type_identity<LrScheduleUnit>) { return kUnits; }
std::span<const Named<LrScaling>> enum_names(std::type_identity<LrScaling>) { return kLrScalings; }
std::span<const Named<BatchKind>> enum_names(std::type_identity<BatchKind>) { return kBatches; }

void describe(config::Section<LrRestart>& section) {
  section.meaning("where the schedule begins anew, with its own warm-up (BERT's second stage)");
  section.field("at", &LrRestart::at, "where it begins, in lr_schedule.unit")
      .unit(Unit::kCount)
      .range(1, kMost)
      .required();
  section.field("warmup", &LrRestart::warmup, "length of its linear warm-up; 0: none")
      .unit(Unit::kCount)
      .range(0, kMost);
  section
      .field("total", &LrRestart::total,
             "linear, cosine, wsd: where its minimum is reached, counted from `at`, warm-up included")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("rate", &LrRestart::rate, "factor on the peak learning rate").above(0);
  section
      .field("global_batch_tokens", &LrRestart::global_batch_tokens,
             "global batch size from there on; with lr_schedule.scaling the peak follows it; unset: as before")
      .unit(Unit::kCount)
      .range(1, kMost);
}

void describe(config::Section<LrScheduleConfig>& section) {
  section.meaning("learning rate schedule");
  section.field(
      "kind", &LrScheduleConfig::kind,
      "decay after warm-up; wsd: warm-up, stable, decay; step: multiplied by a factor at each boundary; one-cycle: "
      "half a cosine from a 25th of the peak up to it at the end of warm-up, another down to the minimum (the "
      "rate alone; momentum stays); range-test: geometric from the minimum up to the peak, to find a learning "
      "rate");
  section.field("unit", &LrScheduleConfig::unit,
                "what warmup, total, decay and boundaries count: optimizer steps, or tokens trained on");
  section.field("warmup", &LrScheduleConfig::warmup, "length of the linear warm-up, in lr_schedule.unit; 0: none")
      .unit(Unit::kCount)
      .range(0, kMost);
  section
      .field("warmup_from", &LrScheduleConfig::warmup_from,
             "learning rate that warm-up starts from; unset: 0, or optim.learning_rate itself where scaling is used; "
             "one-cycle: a 25th of the peak")
      .at_least(0);
  section
      .field(
          "total", &LrScheduleConfig::total,
          "linear, cosine, wsd, one-cycle: where the minimum is reached (range-test: the peak), warm-up included, in "
          "lr_schedule.unit; unset: at the end of the run, train.steps or train.tokens")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("minimum", &LrScheduleConfig::minimum, "lowest learning rate, as a fraction of the peak").range(0, 1);
  section.field("decay", &LrScheduleConfig::decay, "wsd: length of the final decay, in lr_schedule.unit")
      .unit(Unit::kCount)
      .range(1, kMost);
  section
      .field("boundaries", &LrScheduleConfig::boundaries,
             "step: where the rate changes, ascending, in lr_schedule.unit")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("factors", &LrScheduleConfig::factors, "step: what the rate is multiplied by at each boundary")
      .above(0);
  section.field("scaling", &LrScheduleConfig::scaling,
                "scale the peak with the batch size; linear: optim.learning_rate * batch.global_batch_tokens / "
                "reference_batch; square-root: * sqrt of that ratio");
  section
      .field("reference_batch", &LrScheduleConfig::reference_batch,
             "with scaling: the batch size in tokens that optim.learning_rate was tuned for")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.tables("restarts", &LrScheduleConfig::restarts);
}

void describe(config::Section<BatchConfig>& section) {
  section.meaning("global batch size and how it changes during training");
  section.field(
      "kind", &BatchConfig::kind,
      "constant; ramp: batch size warm-up, linear in tokens from batch.start; increase: grows where a step "
      "schedule would lower the learning rate, up to batch.maximum, and only then lowers the rate; noise: follows "
      "the measured gradient noise scale in powers of two from batch.global_batch_tokens to batch.maximum, with "
      "the rate of lr_schedule.scaling");
  section
      .field("global_batch_tokens", &BatchConfig::global_batch_tokens,
             "global batch size in tokens: what one optimizer step is computed from over all ranks and micro-batches "
             "(samples for models without tokens); increase: the first one")
      .unit(Unit::kCount)
      .range(1, kMost);
  section
      .field("multiple", &BatchConfig::multiple,
             "a changing batch size is rounded down to a multiple of this many tokens: those of a micro-batch times "
             "the data-parallel size")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("start", &BatchConfig::start, "ramp: first batch size, in tokens").unit(Unit::kCount).range(1, kMost);
  section.field("over", &BatchConfig::over, "ramp: tokens trained on until batch.global_batch_tokens is reached")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("maximum", &BatchConfig::maximum, "increase, noise: largest batch size, in tokens")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("noise_factor", &BatchConfig::noise_factor, "noise: the batch is at most this times the noise scale")
      .above(0);
  section.field("noise_every", &BatchConfig::noise_every, "noise: steps between changes of the batch")
      .unit(Unit::kCount)
      .at_least(1);
  section.retired("size", "global_batch_tokens");
}

std::vector<config::Problem> find_problems(const LrScheduleConfig& schedule, const BatchConfig& batch) {
  Problems problems;
  add_schedule_problems(schedule, problems);
  add_restart_problems(schedule, batch, problems);
  add_batch_problems(schedule, batch, problems);
  return problems;
}

}  // namespace trireme::spec
