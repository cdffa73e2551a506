#include "trireme/spec/hyperparameters.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "trireme/base/error.h"

namespace trireme::spec {
namespace {

__extension__ using Wide = __int128;  // tokens times tokens

std::int64_t rounded_down(std::int64_t count, std::int64_t multiple) {
  return std::max(count / multiple * multiple, multiple);
}

/// The product of all factors whose boundary has been reached.
double decayed(const LrScheduleConfig& schedule, std::int64_t done) {
  double product = 1;
  for (std::size_t i = 0; i < std::min(schedule.boundaries.size(), schedule.factors.size()); ++i) {
    if (done >= schedule.boundaries[i]) product *= schedule.factors[i];
  }
  return product;
}

/// From 0 to 1 between two places.
double part(std::int64_t done, std::int64_t begin, std::int64_t end) {
  if (done >= end) return 1;
  if (done <= begin) return 0;
  return static_cast<double>(done - begin) / static_cast<double>(end - begin);
}

/// Half a cosine from 0 to 1.
double cosine_way(double way) { return (1 - std::cos(std::numbers::pi * way)) / 2; }
constexpr double kOneCycleDivisor = 25;  // fastai's and PyTorch's, of the peak at the first step

std::int64_t required(const std::optional<std::int64_t>& value, const char* key) {
  if (!value) throw ConfigError(fmt::format("{} is not given", key), fmt::format("set {}", key));
  return *value;
}

/// Of the peak, after warm-up. `done` does not count this step, `reached` does.
double shape(const LrScheduleConfig& schedule, std::int64_t done, std::int64_t reached) {
  const double minimum = schedule.minimum;
  switch (schedule.kind) {
    case LrScheduleKind::kConstant:
      return 1;
    case LrScheduleKind::kLinear:
      return 1 - (1 - minimum) * part(done, schedule.warmup, required(schedule.total, "lr_schedule.total"));
    case LrScheduleKind::kCosine: {
      const double way = part(done, schedule.warmup, required(schedule.total, "lr_schedule.total"));
      return minimum + (1 - minimum) * (1 + std::cos(std::numbers::pi * way)) / 2;
    }
    case LrScheduleKind::kInverseSqrt: {
      const auto warmup = static_cast<double>(std::max<std::int64_t>(schedule.warmup, 1));
      return std::max(minimum, std::sqrt(warmup / static_cast<double>(std::max<std::int64_t>(reached, 1))));
    }
    case LrScheduleKind::kWsd: {
      const std::int64_t total = required(schedule.total, "lr_schedule.total");
      return 1 - (1 - minimum) * part(done, total - required(schedule.decay, "lr_schedule.decay"), total);
    }
    case LrScheduleKind::kStep:
      return std::max(minimum, decayed(schedule, done));
    case LrScheduleKind::kOneCycle: {
      const double way = part(done, schedule.warmup, required(schedule.total, "lr_schedule.total"));
      return minimum + (1 - minimum) * (1 + std::cos(std::numbers::pi * way)) / 2;
    }
    case LrScheduleKind::kRangeTest: {
      const double way = part(done, schedule.warmup, required(schedule.total, "lr_schedule.total"));
      return std::pow(minimum, 1 - way);
    }
  }
  return 1;
}

double scaling_factor(const LrScheduleConfig& schedule, std::int64_t batch) {
  if (schedule.scaling == LrScaling::kNone) return 1;
  const double times = static_cast<double>(batch) /
                       static_cast<double>(required(schedule.reference_batch, "lr_schedule.reference_batch"));
  return schedule.scaling == LrScaling::kLinear ? times : std::sqrt(times);
}

/// The last restart that has been reached, in the schedule's unit; null before the first.
const LrRestart* restart_at(const LrScheduleConfig& schedule, std::int64_t done) {
  const LrRestart* found = nullptr;
  for (const LrRestart& restart : schedule.restarts) {
    if (done >= restart.at) found = &restart;
  }
  return found;
}

/// The batch that restarts leave, by tokens.
std::int64_t batch_of_stage(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t tokens) {
  std::int64_t size = batch.global_batch_tokens;
  for (const LrRestart& restart : schedule.restarts) {
    if (tokens >= restart.at && restart.global_batch_tokens) size = *restart.global_batch_tokens;
  }
  return size;
}

/// From the start until `tokens` or `steps` are reached, whichever comes first.
Position advance(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t tokens, std::int64_t steps) {
  Position position;
  while (position.tokens < tokens && position.step < steps) {
    const std::int64_t size = batch_at(schedule, batch, position.tokens);
    const std::int64_t until = std::min(tokens, next_change(schedule, batch, position.tokens).value_or(tokens));
    // The batch is decided where a step begins, so the last step of a stretch may reach beyond it.
    const std::int64_t left = until - position.tokens;
    const std::int64_t count = std::min(left / size + (left % size != 0 ? 1 : 0), steps - position.step);
    position.step += count;
    position.tokens += count * size;
  }
  return position;
}

}  // namespace

double peak_rate(const OptimConfig& optim, const LrScheduleConfig& schedule, const BatchConfig& batch) {
  return optim.learning_rate * scaling_factor(schedule, batch.global_batch_tokens);
}

std::int64_t batch_at(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t tokens) {
  switch (batch.kind) {
    case BatchKind::kConstant:
      return batch_of_stage(schedule, batch, tokens);
    case BatchKind::kNoise:
      return batch.global_batch_tokens;
    case BatchKind::kRamp: {
      const std::int64_t start = required(batch.start, "batch.start"), over = required(batch.over, "batch.over");
      if (tokens >= over) return batch.global_batch_tokens;
      const auto grown =
          start + static_cast<std::int64_t>(static_cast<Wide>(batch.global_batch_tokens - start) * tokens / over);
      return rounded_down(grown, batch.multiple);
    }
    case BatchKind::kIncrease: {
      const std::int64_t maximum = required(batch.maximum, "batch.maximum");
      // In double the quotient of what is a whole number in the recipe (5 times 0.2) may fall just short of it.
      const double wanted = static_cast<double>(batch.global_batch_tokens) / decayed(schedule, tokens) * (1 + 1e-12);
      if (wanted >= static_cast<double>(maximum)) return rounded_down(maximum, batch.multiple);
      return rounded_down(static_cast<std::int64_t>(wanted), batch.multiple);
    }
  }
  return batch.global_batch_tokens;
}

Hyperparameters hyperparameters_at(const OptimConfig& optim, const LrScheduleConfig& schedule, const BatchConfig& batch,
                                   Position position) {
  Hyperparameters hyperparameters{.batch = batch_at(schedule, batch, position.tokens)};
  if (batch.kind == BatchKind::kNoise && position.batch > 0) hyperparameters.batch = position.batch;
  const bool by_steps = schedule.unit == LrScheduleUnit::kSteps;
  std::int64_t done = by_steps ? position.step : position.tokens;
  LrScheduleConfig stage = schedule;
  double peak = optim.learning_rate;
  if (const LrRestart* restart = restart_at(schedule, done)) {
    stage.warmup = restart->warmup;
    stage.total = restart->total;
    peak *= restart->rate;
    done -= restart->at;
  }
  peak *= scaling_factor(schedule, batch.kind == BatchKind::kConstant || batch.kind == BatchKind::kNoise
                                       ? hyperparameters.batch
                                       : batch.global_batch_tokens);
  const std::int64_t reached = done + (by_steps ? 1 : hyperparameters.batch);
  if (done < stage.warmup) {
    double from = stage.warmup_from.value_or(stage.scaling == LrScaling::kNone ? 0 : optim.learning_rate);
    if (stage.kind == LrScheduleKind::kOneCycle) from = stage.warmup_from.value_or(peak / kOneCycleDivisor);
    // From a rate the first step has that rate (Goyal et al., section 2.2). From zero it counts itself, as a step at
    // rate zero would be wasted: the original Transformer's rule.
    const double way = part(from > 0 ? done : reached, 0, stage.warmup);
    hyperparameters.learning_rate =
        from + (peak - from) * (stage.kind == LrScheduleKind::kOneCycle ? cosine_way(way) : way);
  } else {
    hyperparameters.learning_rate = peak * shape(stage, done, reached);
  }
  // Noise goes as rate / batch (Smith et al., equation 5): what the batch has grown is not taken from the rate.
  if (batch.kind == BatchKind::kIncrease) {
    hyperparameters.learning_rate *=
        static_cast<double>(hyperparameters.batch) / static_cast<double>(batch.global_batch_tokens);
  }
  return hyperparameters;
}

std::int64_t batch_for_noise(const BatchConfig& batch, double noise_scale) {
  const std::int64_t maximum = required(batch.maximum, "batch.maximum");
  const double wanted = batch.noise_factor * noise_scale;
  std::int64_t size = batch.global_batch_tokens;
  while (size <= maximum / 2 && static_cast<double>(2 * size) <= wanted) size *= 2;
  return size;
}

Position after(Position position, const Hyperparameters& hyperparameters) {
  return {.step = position.step + 1,
          .tokens = position.tokens + hyperparameters.batch,
          .skipped = position.skipped,
          .batch = position.batch};
}

std::optional<std::int64_t> next_change(const LrScheduleConfig& schedule, const BatchConfig& batch,
                                        std::int64_t tokens) {
  if (batch.kind == BatchKind::kRamp) {
    const std::int64_t start = required(batch.start, "batch.start"), over = required(batch.over, "batch.over");
    if (tokens >= over) return std::nullopt;
    const std::int64_t next = batch_at(schedule, batch, tokens) + batch.multiple;
    if (next > batch.global_batch_tokens) return over;
    // The least t with start + (size - start) t / over >= next.
    const Wide span = batch.global_batch_tokens - start;
    const auto at = static_cast<std::int64_t>((static_cast<Wide>(next - start) * over + span - 1) / span);
    return std::min(std::max(at, tokens + 1), over);
  }
  if (batch.kind == BatchKind::kIncrease) {
    std::optional<std::int64_t> next;
    for (const std::int64_t boundary : schedule.boundaries) {
      if (boundary > tokens && (!next || boundary < *next)) next = boundary;
    }
    return next;
  }
  for (const LrRestart& restart : schedule.restarts) {
    if (restart.global_batch_tokens && restart.at > tokens) return restart.at;
  }
  return std::nullopt;
}

Position position_at(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t tokens) {
  return advance(schedule, batch, tokens, std::numeric_limits<std::int64_t>::max());
}

Position position_at_step(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t step) {
  return advance(schedule, batch, std::numeric_limits<std::int64_t>::max(), step);
}

}  // namespace trireme::spec
