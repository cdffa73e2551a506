// spec/hyperparameters.h -- the learning rate and the global batch size of every step, as functions of its position.
//
//   [lr_schedule]          [batch]                        for (Position at; at.tokens < end; at = after(at, now))
//   kind = "cosine"        kind = "ramp"                    now = hyperparameters_at(optim, schedule, batch, at);
//   unit = "tokens"        global_batch_tokens = "3.2M"
//   warmup = "375M"        start = "32k"
//   total = "260G"         over = "12G"
//
// There is no state: the values follow from the steps and tokens done, so a run resumes anywhere and the planner asks
// what the trainer will do. Batches are counted in tokens; a model without tokens counts samples.
// Depends on: base (config), optim.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/spec/optim.h"

namespace trireme::spec {

/// The learning rate after warm-up. w: warm-up; t: total; both in the schedule's unit.
enum class LrScheduleKind : std::uint8_t {
  kConstant,
  kLinear,       ///< from the peak to the minimum at t
  kCosine,       ///< half a cosine, from the peak to the minimum at t
  kInverseSqrt,  ///< peak * sqrt(w / s), s counting this step too (Vaswani et al. 2017)
  kWsd,          ///< warm-up, stable, decay: the peak until t - decay, then linear to the minimum
  kStep,         ///< multiplied by factors[i] from boundaries[i] on
  kOneCycle,     ///< half a cosine from peak / 25 up to the peak at warm-up's end, another down to the minimum at t
  kRangeTest,    ///< geometric from the minimum to the peak at t: a learning-rate range test (Smith 2015)
};
/// In what a schedule's lengths are given.
enum class LrScheduleUnit : std::uint8_t { kSteps, kTokens };
/// How optim.learning_rate, meant for lr_schedule.reference_batch, becomes the peak for batch.global_batch_tokens.
enum class LrScaling : std::uint8_t {
  kNone,
  kLinear,      ///< times batch / reference (Goyal et al. 2017)
  kSquareRoot,  ///< times the root of that (You et al. 2019, for LAMB)
};
enum class BatchKind : std::uint8_t {
  kConstant,
  kRamp,  ///< linear in tokens from `start` to `global_batch_tokens` over the first `over` tokens (Brown et al. 2020)
  kIncrease,  ///< grows where a step schedule would lower the rate (Smith et al. 2017)
  kNoise,     ///< follows the gradient noise scale, up to `maximum` (McCandlish et al. 2018): Position::batch
};
std::span<const Named<LrScheduleKind>> enum_names(std::type_identity<LrScheduleKind>);
std::span<const Named<LrScheduleUnit>> enum_names(std::type_identity<LrScheduleUnit>);
std::span<const Named<LrScaling>> enum_names(std::type_identity<LrScaling>);
std::span<const Named<BatchKind>> enum_names(std::type_identity<BatchKind>);

/// [[lr_schedule.restarts]]: the schedule begins anew, warm-up included (You et al. 2019: BERT's second stage).
struct LrRestart {
  std::int64_t at = 1;  ///< in the schedule's unit
  std::int64_t warmup = 0;
  std::optional<std::int64_t> total;                ///< from `at` on
  double rate = 1;                                  ///< the peak is multiplied by it
  std::optional<std::int64_t> global_batch_tokens;  ///< from there on; unset: as before
  bool operator==(const LrRestart&) const = default;
};

/// [lr_schedule]
struct LrScheduleConfig {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  LrScheduleUnit unit = LrScheduleUnit::kSteps;
  std::int64_t warmup = 0;
  std::optional<double> warmup_from;  ///< a rate; unset: 0, with a scaling optim.learning_rate itself
  std::optional<std::int64_t> total;
  double minimum = 0;  ///< as a part of the peak
  std::optional<std::int64_t> decay;
  std::vector<std::int64_t> boundaries;
  std::vector<double> factors;
  LrScaling scaling = LrScaling::kNone;
  std::optional<std::int64_t> reference_batch;
  std::vector<LrRestart> restarts;
  bool operator==(const LrScheduleConfig&) const = default;
};

/// [batch]
struct BatchConfig {
  BatchKind kind = BatchKind::kConstant;
  std::int64_t global_batch_tokens = 65536;
  std::int64_t multiple = 1;
  std::optional<std::int64_t> start, over;
  std::optional<std::int64_t> maximum;
  double noise_factor = 1;        ///< the batch is this times the noise scale
  std::int64_t noise_every = 50;  ///< steps between changes
  bool operator==(const BatchConfig&) const = default;
};

void describe(config::Section<LrRestart>& section);
void describe(config::Section<LrScheduleConfig>& section);
void describe(config::Section<BatchConfig>& section);
std::vector<config::Problem> find_problems(const LrScheduleConfig& schedule, const BatchConfig& batch);

/// What was done before a step.
struct Position {
  std::int64_t step = 0, tokens = 0;
  std::int64_t skipped = 0;  ///< tokens of the data that were skipped; schedules do not count them
  std::int64_t batch = 0;    ///< batch.kind = "noise": the global batch from here on; 0: batch.global_batch_tokens
  bool operator==(const Position&) const = default;
};
struct Hyperparameters {
  double learning_rate = 0;
  std::int64_t batch = 0;
  bool operator==(const Hyperparameters&) const = default;
};

/// The rate that the schedule's shape multiplies: optim.learning_rate, scaled to batch.global_batch_tokens.
double peak_rate(const OptimConfig& optim, const LrScheduleConfig& schedule, const BatchConfig& batch);
std::int64_t batch_at(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t tokens);
Hyperparameters hyperparameters_at(const OptimConfig& optim, const LrScheduleConfig& schedule, const BatchConfig& batch,
                                   Position position);
/// What a noise scale, in tokens, makes of the batch: the largest power of two times batch.global_batch_tokens that
/// noise_factor times it allows, up to the maximum, and at least batch.global_batch_tokens.
std::int64_t batch_for_noise(const BatchConfig& batch, double noise_scale);
Position after(Position position, const Hyperparameters& hyperparameters);

/// The first token count above `tokens` at which another batch may be due; nothing when it stays for ever.
std::optional<std::int64_t> next_change(const LrScheduleConfig& schedule, const BatchConfig& batch,
                                        std::int64_t tokens);
/// Where a run stands after the step that reaches `tokens`. By stretches of equal batches, not step by step.
Position position_at(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t tokens);
/// Where it stands after so many steps.
Position position_at_step(const LrScheduleConfig& schedule, const BatchConfig& batch, std::int64_t step);

}  // namespace trireme::spec
