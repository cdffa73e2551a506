#include "trireme/train/diagnose/profile_window.h"

#include <fmt/format.h>

#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"

namespace trireme::train {

ProfileWindow::ProfileWindow(std::int64_t count, std::int64_t last, Trainer& trainer, std::filesystem::path trace)
    : count_(count), trainer_(trainer), trace_(std::move(trace)) {
  constexpr std::int64_t kWarmSteps = 3;  // libraries choose kernels and memory settles
  if (count_ <= 0) return;
  const std::int64_t step = trainer.position().step;
  first_ = step + kWarmSteps;
  if (trainer.recipe().run.device == spec::DeviceKind::kCpu) {
    throw ConfigError("--profile shows what a GPU does, but run.device is \"cpu\"", "leave it out");
  }
  if (first_ + count_ > last) {
    throw ConfigError(
        fmt::format("--profile {} begins after {} steps, but {} are left", count_, kWarmSteps, last - step),
        fmt::format("set train.steps = {}", first_ + count_));
  }
}

void ProfileWindow::before_step() {
  if (count_ <= 0 || profile_ || trainer_.position().step != first_) return;
  profile_ = std::make_unique<StepProfile>(trainer_.device());
  profile_->start();
  began_ = std::chrono::steady_clock::now();
}

void ProfileWindow::after_step() {
  if (!profile_ || trainer_.position().step != first_ + count_) return;
  const spec::Recipe& recipe = trainer_.recipe();
  const std::int64_t parameters = spec::count_parameters(trainer_.shape()).total();
  // Norm and update read the gradient each; masters and moments are read and written, 16-bit weights written.
  const std::int64_t gradient = spec::has_narrow_gradients(recipe.precision) ? 2 : 4;
  const std::int64_t streams = 2 * gradient + 8 + 8 * spec::moments_of(recipe.optim) + 2;
  log_info("{}", profile_->stop({.steps = count_,
                                 .tokens = static_cast<double>(
                                     spec::batch_at(recipe.lr_schedule, recipe.batch, trainer_.position().tokens)),
                                 .sequence = recipe.data.seq_len,
                                 .seconds = seconds_since(began_),
                                 .parameter_bytes = parameters * streams},
                                trainer_.shape(), trace_));
  profile_.reset();
  first_ = -1;
}

}  // namespace trireme::train
