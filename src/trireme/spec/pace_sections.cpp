// The keys of [schedule] and [batch], and which values of them do not go together.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/spec/pace.h"

namespace trireme::spec {
namespace {

constexpr Named<ScheduleKind> kSchedules[] = {
    {"constant", ScheduleKind::kConstant},        {"linear", ScheduleKind::kLinear}, {"cosine", ScheduleKind::kCosine},
    {"inverse-sqrt", ScheduleKind::kInverseSqrt}, {"wsd", ScheduleKind::kWsd},       {"step", ScheduleKind::kStep},
};
constexpr Named<ScheduleUnit> kUnits[] = {{"steps", ScheduleUnit::kSteps}, {"tokens", ScheduleUnit::kTokens}};
constexpr Named<RateScaling> kRateScalings[] = {
    {"none", RateScaling::kNone}, {"linear", RateScaling::kLinear}, {"square-root", RateScaling::kSquareRoot}};
constexpr Named<BatchKind> kBatches[] = {
    {"constant", BatchKind::kConstant}, {"ramp", BatchKind::kRamp}, {"increase", BatchKind::kIncrease}};

using Problems = std::vector<config::Problem>;

// Far beyond every run, and small enough to be multiplied by a thousand.
constexpr std::int64_t kMost = 1'000'000'000'000'000;

bool needs_total(ScheduleKind kind) {
  return kind == ScheduleKind::kLinear || kind == ScheduleKind::kCosine || kind == ScheduleKind::kWsd;
}

void add_missing_or_unused(Problems& problems, std::string key, bool given, bool needed, const std::string& why,
                           std::string hint) {
  if (given == needed) return;
  problems.push_back({.key = std::move(key),
                      .reason = fmt::format("{}, but {} {}", given ? "is given" : "is not given", why,
                                            given ? "does not use it" : "needs it"),
                      .hint = given ? "leave it out" : std::move(hint)});
}

void add_schedule_problems(const ScheduleConfig& schedule, Problems& problems) {
  const std::string kind = fmt::format("schedule.kind = \"{}\"", name_in<ScheduleKind>(kSchedules, schedule.kind));
  const std::int64_t after_warmup = std::max<std::int64_t>(2 * schedule.warmup, 1000);
  add_missing_or_unused(problems, "schedule.total", schedule.total.has_value(), needs_total(schedule.kind), kind,
                        fmt::format("set schedule.total = {}", after_warmup));
  add_missing_or_unused(problems, "schedule.decay", schedule.decay.has_value(), schedule.kind == ScheduleKind::kWsd,
                        kind, "set schedule.decay = 100");
  add_missing_or_unused(problems, "schedule.boundaries", !schedule.boundaries.empty(),
                        schedule.kind == ScheduleKind::kStep, kind,
                        "set schedule.boundaries = [100] and schedule.factors = [0.1]");
  if (schedule.boundaries.size() != schedule.factors.size()) {
    problems.push_back({.key = "schedule.factors",
                        .reason = fmt::format("has {} for {}", counted(schedule.factors.size(), "value"),
                                              schedule.boundaries.size() == 1
                                                  ? std::string("1 boundary")
                                                  : fmt::format("{} boundaries", schedule.boundaries.size())),
                        .hint = "give one factor for each of schedule.boundaries"});
  }
  if (!std::ranges::is_sorted(schedule.boundaries, std::less_equal<>())) {
    problems.push_back({.key = "schedule.boundaries", .reason = "must rise", .hint = "sort them"});
  }
  if (schedule.total && *schedule.total <= schedule.warmup) {
    problems.push_back({.key = "schedule.total",
                        .reason = fmt::format("is {}, within the warm-up of {}", *schedule.total, schedule.warmup),
                        .hint = fmt::format("set schedule.total = {}", after_warmup)});
  } else if (schedule.total && schedule.decay && *schedule.decay > *schedule.total - schedule.warmup) {
    problems.push_back({.key = "schedule.decay",
                        .reason = fmt::format("is {}, but only {} are left after the warm-up", *schedule.decay,
                                              *schedule.total - schedule.warmup),
                        .hint = fmt::format("set schedule.decay = {}", *schedule.total - schedule.warmup)});
  }
  if (schedule.warmup_from && schedule.warmup == 0) {
    problems.push_back({.key = "schedule.warmup_from",
                        .reason = "is given, but there is no warm-up",
                        .hint = "set schedule.warmup, or leave it out"});
  }
  if (schedule.kind == ScheduleKind::kConstant && schedule.minimum != 0) {
    problems.push_back({.key = "schedule.minimum",
                        .reason = fmt::format("is given, but {} does not use it", kind),
                        .hint = "leave it out"});
  }
  add_missing_or_unused(problems, "schedule.reference_batch", schedule.reference_batch.has_value(),
                        schedule.scaling != RateScaling::kNone,
                        fmt::format("schedule.scaling = \"{}\"", name_in<RateScaling>(kRateScalings, schedule.scaling)),
                        "set schedule.reference_batch to the batch that optim.learning_rate is meant for");
}

void add_multiple_problem(const char* key, std::int64_t size, std::int64_t multiple, Problems& problems) {
  if (size % multiple == 0) return;
  problems.push_back({.key = key,
                      .reason = fmt::format("is {}, no multiple of batch.multiple = {}", size, multiple),
                      .hint = fmt::format("set {} = {}", key, (size / multiple + 1) * multiple)});
}

void add_batch_problems(const ScheduleConfig& schedule, const BatchConfig& batch, Problems& problems) {
  const std::string kind = fmt::format("batch.kind = \"{}\"", name_in<BatchKind>(kBatches, batch.kind));
  const bool ramp = batch.kind == BatchKind::kRamp, increase = batch.kind == BatchKind::kIncrease;
  add_missing_or_unused(problems, "batch.start", batch.start.has_value(), ramp, kind,
                        fmt::format("set batch.start = {}", batch.multiple));
  add_missing_or_unused(problems, "batch.over", batch.over.has_value(), ramp, kind,
                        fmt::format("set batch.over = {}", 1000 * batch.size));
  add_missing_or_unused(problems, "batch.maximum", batch.maximum.has_value(), increase, kind,
                        fmt::format("set batch.maximum = {}", 10 * batch.size));
  add_multiple_problem("batch.size", batch.size, batch.multiple, problems);
  if (ramp && batch.start && *batch.start > batch.size) {
    problems.push_back({.key = "batch.start",
                        .reason = fmt::format("is {}, above batch.size = {}", *batch.start, batch.size),
                        .hint = fmt::format("set batch.start = {}", batch.size)});
  }
  if (increase && batch.maximum && *batch.maximum < batch.size) {
    problems.push_back({.key = "batch.maximum",
                        .reason = fmt::format("is {}, below batch.size = {}", *batch.maximum, batch.size),
                        .hint = fmt::format("set batch.maximum = {}", batch.size)});
  }
  if (increase && (schedule.kind != ScheduleKind::kStep || schedule.unit != ScheduleUnit::kTokens)) {
    problems.push_back({.key = "batch.kind",
                        .reason =
                            "\"increase\" grows the batch where a step schedule over tokens would lower the rate; "
                            "steps would come later, as there are fewer of them",
                        .hint = "set schedule.kind = \"step\" and schedule.unit = \"tokens\""});
  }
  if (increase && schedule.minimum != 0) {
    problems.push_back({.key = "schedule.minimum",
                        .reason = fmt::format("would raise the noise again where {} has lowered it", kind),
                        .hint = "leave it out"});
  }
}

}  // namespace

std::span<const Named<ScheduleKind>> enum_names(std::type_identity<ScheduleKind>) { return kSchedules; }
std::span<const Named<ScheduleUnit>> enum_names(std::type_identity<ScheduleUnit>) { return kUnits; }
std::span<const Named<RateScaling>> enum_names(std::type_identity<RateScaling>) { return kRateScalings; }
std::span<const Named<BatchKind>> enum_names(std::type_identity<BatchKind>) { return kBatches; }

void describe(config::Section<ScheduleConfig>& section) {
  section.meaning("how the learning rate changes while training");
  section.field("kind", &ScheduleConfig::kind,
                "its shape after warm-up; wsd: warm-up, stable, decay; step: times a factor at each boundary");
  section.field("unit", &ScheduleConfig::unit, "in what lengths are given: steps, or tokens trained on");
  section.field("warmup", &ScheduleConfig::warmup, "the rate rises linearly over it")
      .unit(Unit::kCount)
      .range(0, kMost);
  section
      .field("warmup_from", &ScheduleConfig::warmup_from,
             "the rate of the first step; unset: 0, or optim.learning_rate itself where it is scaled to the batch")
      .at_least(0);
  section.field("total", &ScheduleConfig::total, "linear, cosine, wsd: where the minimum is reached, warm-up included")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("minimum", &ScheduleConfig::minimum, "the rate does not fall below this part of its peak").range(0, 1);
  section.field("decay", &ScheduleConfig::decay, "wsd: length of the last part, which ends at the total")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("boundaries", &ScheduleConfig::boundaries, "step: where the rate changes, rising")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("factors", &ScheduleConfig::factors, "step: by what it is multiplied at each boundary").above(0);
  section.field("scaling", &ScheduleConfig::scaling,
                "linear: the peak is optim.learning_rate times batch.size / reference_batch; square-root: its root");
  section.field("reference_batch", &ScheduleConfig::reference_batch, "the batch that optim.learning_rate is meant for")
      .unit(Unit::kCount)
      .range(1, kMost);
}

void describe(config::Section<BatchConfig>& section) {
  section.meaning("how much one update is computed from");
  section.field("kind", &BatchConfig::kind,
                "ramp: grows linearly at first; increase: grows where a step schedule would lower the rate, until its "
                "maximum, and only then lowers the rate");
  section.field("size", &BatchConfig::size, "tokens (samples for models without) of one update; increase: at first")
      .unit(Unit::kCount)
      .range(1, kMost);
  section
      .field("multiple", &BatchConfig::multiple,
             "a changing batch is rounded down to a multiple of this: tokens of a microbatch times replicas")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("start", &BatchConfig::start, "ramp: the first batch").unit(Unit::kCount).range(1, kMost);
  section.field("over", &BatchConfig::over, "ramp: tokens until batch.size is reached")
      .unit(Unit::kCount)
      .range(1, kMost);
  section.field("maximum", &BatchConfig::maximum, "increase: the largest batch").unit(Unit::kCount).range(1, kMost);
}

std::vector<config::Problem> find_problems(const ScheduleConfig& schedule, const BatchConfig& batch) {
  Problems problems;
  add_schedule_problems(schedule, problems);
  add_batch_problems(schedule, batch, problems);
  return problems;
}

}  // namespace trireme::spec
