#include "trireme/train/run/saving.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/store.h"
#include "trireme/observe/run_reader.h"
#include "trireme/plan/goodput.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr double kDay = 24 * 3600;
constexpr double kFirstLook_s = 60;  // automatic: one is taken early, to know what they cost

checkpoint::SaverOptions options_of(const Saving::Parts& parts) {
  FaultInjector& faults = parts.faults;
  checkpoint::SaverOptions options{.background = parts.recipe.checkpoint.background,
                                   .threads = parts.recipe.checkpoint.threads};
  options.published = [&faults, folder = parts.folder.checkpoints(),
                       rules = formats::KeepRules{.last = parts.recipe.checkpoint.keep,
                                                  .every = parts.recipe.checkpoint.keep_every,
                                                  .best = parts.recipe.checkpoint.keep_best}](const fs::path& path) {
    if (const auto step = formats::checkpoint_step(path.filename().string())) faults.published(path, *step);
    formats::prune_checkpoints(folder, rules);
  };
  if (!faults.drill()) return options;
  options.on_phase = [&faults](checkpoint::SavePhase phase, std::int64_t step) { faults.on_phase(phase, step); };
  options.before_write = [&faults](std::uint64_t, std::uint64_t) { faults.before_write(); };
  return options;
}

}  // namespace

double observed_failures_s(const fs::path& run) {
  double trained_s = 0, failures = 0;
  bool lives = false;
  double born = 0, last = 0;
  try {
    for (const observe::EventRecord& event : observe::read_run(run, observe::Reading::kLenient).events) {
      if (event.kind == "start" || event.kind == "resumed") {
        if (lives) {  // the one before did not end in good order
          failures += 1;
          trained_s += std::max(0.0, last - born);  // clocks may have been set
        }
        lives = true;
        born = event.time;
      }
      last = event.time;
      if (event.kind == "stop" && lives) {
        trained_s += std::max(0.0, event.time - born);
        lives = false;
      }
    }
  } catch (const Error&) {  // a new run
    return kDay;
  }
  return failures > 0 ? std::max(1.0, trained_s / failures) : kDay;
}

void load_step(const checkpoint::RunFolder& folder, std::int64_t step, Trainer& trainer) {
  checkpoint::load(formats::CheckpointFolder(folder.checkpoints() / formats::checkpoint_name(step)), trainer.state(),
                   checkpoint::LoadScope::kEverything, trainer.recipe().checkpoint.threads);
  trainer.loaded();
}

Saving::Saving(const Parts& parts) : parts_(parts), saver_(parts.state, parts.world, options_of(parts)) {
  const auto& config = parts.recipe.checkpoint;
  if (config.automatic && parts.world.rank() == 0) {
    failures_s_ =
        config.mtbf ? std::chrono::duration<double>(*config.mtbf).count() : observed_failures_s(parts.folder.path);
    log_info("checkpoints follow their cost and failures every {} on average{}", short_seconds(failures_s_),
             config.mtbf ? "" : ", as seen so far");
  }
}

double Saving::interval_s() const {
  const auto& config = parts_.recipe.checkpoint;
  if (config.interval) return std::chrono::duration<double>(*config.interval).count();
  if (!config.automatic) return INFINITY;
  return cost_s_ ? plan::daly_interval(*cost_s_, failures_s_) : std::min(kFirstLook_s, failures_s_ / 10);
}

bool Saving::is_time() const { return seconds_since(last_) >= interval_s(); }

bool Saving::is_due(std::int64_t step) const {
  const auto& config = parts_.recipe.checkpoint;
  return !config.automatic && config.every > 0 && step % config.every == 0;
}

checkpoint::SaveRequest Saving::request(const spec::Position& position) const {
  return {.folder = parts_.folder.checkpoints(),
          .name = {},
          .step = position.step,
          .tokens = position.tokens,
          .metric = metric_ && std::isfinite(*metric_) ? metric_ : std::nullopt,
          .files = {{std::string(formats::kRecipeFile), config::to_toml(parts_.recipe)}}};
}

void Saving::begin(const spec::Position& position) {
  saved_step_ = position.step;
  last_ = Clock::now();
  saver_.begin(request(position));
  parts_.timeline.tell("saving", {{"step", position.step}});
  if (!parts_.recipe.checkpoint.background) after_step(true);
}

void Saving::after_step(bool all_written) {
  if (saver_.busy() && all_written) saver_.collect();
  while (const auto outcome = saver_.outcome()) tell(*outcome);
}

void Saving::settle() {
  if (saver_.busy()) saver_.collect();
  while (const auto outcome = saver_.outcome(/*wait=*/true)) tell(*outcome);
}

void Saving::now(const spec::Position& position) {
  settle();
  saved_step_ = position.step;
  last_ = Clock::now();
  const auto outcome = saver_.save(request(position));
  if (!outcome) return;
  tell(*outcome);
  if (outcome->why.empty()) return;
  const bool before = !formats::list_checkpoints(parts_.folder.checkpoints()).empty();
  throw IoError(outcome->why, before ? "free some space and resume: the checkpoint before is whole"
                                     : "free some space and train again: there is no checkpoint yet");
}

fs::path Saving::aside(const spec::Position& position, const std::string& name) {
  settle();
  checkpoint::SaveRequest aside = request(position);
  aside.folder = parts_.folder.path;
  aside.name = name;
  const auto outcome = saver_.save(aside);
  if (outcome && !outcome->why.empty()) log_warn("{} could not be written: {}", name, outcome->why);
  return parts_.folder.path / name;
}

std::string Saving::summary() const {
  if (saves_ == 0) return {};
  return fmt::format("{} stopped training for {} in all", counted(static_cast<std::size_t>(saves_), "checkpoint"),
                     short_seconds(blocked_s_));
}

void Saving::tell(const checkpoint::SaveOutcome& outcome) {
  if (outcome.why.empty()) {
    cost_s_ = cost_s_ ? 0.7 * *cost_s_ + 0.3 * outcome.blocked_s : outcome.blocked_s;
    cost_s_ = std::max(*cost_s_, 1e-4);
    ++saves_;
    blocked_s_ += outcome.blocked_s;
    parts_.timeline.tell("saved", {{"step", outcome.step}});
    log_debug("saved {}: {}, {} behind the run, {} lost", outcome.path.string(),
              short_bytes(static_cast<double>(outcome.bytes)), short_seconds(outcome.seconds),
              short_seconds(outcome.blocked_s));
    if (log_ == nullptr) return;
    log_->event("checkpoint", {{"step", outcome.step},
                               {"path", outcome.path.string()},
                               {"seconds", outcome.seconds},
                               {"blocked", outcome.blocked_s},
                               {"copy", outcome.copy_s},
                               {"write", outcome.write_s},
                               {"publish", outcome.publish_s},
                               {"bytes", outcome.bytes}});
    return;
  }
  parts_.timeline.tell("save_failed", {{"step", outcome.step}, {"why", outcome.why}});
  log_warn("the checkpoint of step {} could not be written; those that were stay as they are: {}", outcome.step,
           outcome.why);
  if (log_ != nullptr) log_->event("checkpoint_failed", {{"step", outcome.step}, {"why", outcome.why}});
}

}  // namespace trireme::train
