#include "trireme/train/run/anomaly_handler.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/run_folder.h"

namespace trireme::train {

namespace fs = std::filesystem;

AnomalyHandler::AnomalyHandler(const Parts& parts) : parts_(parts) {
  const spec::HealthConfig& health = parts.recipe.health;
  TRIREME_CHECK(parts.trainer.driver().looks_before_update() ||
                    (health.spike == spec::AnomalyPolicy::kIgnore && health.non_finite == spec::AnomalyPolicy::kStop),
                "weights are updated before the loss of a step is known, so no step can be left out");
  if (health.spike == spec::AnomalyPolicy::kIgnore) return;
  watch_ = std::make_unique<LossWatch>(health);
  watch_->add_state(parts.trainer.state());
  parts_.trainer.on_loss([this](double loss) { return judge(loss); });
}

bool AnomalyHandler::judge(double loss) {
  const std::string why = watch_->judge(loss);
  if (why.empty()) return true;
  const std::int64_t step = parts_.trainer.position().step + 1;
  LossSpike spike(fmt::format("at step {} {}", step, why), "health.spike = \"rewind\" goes back and skips the data");
  if (parts_.recipe.health.spike != spec::AnomalyPolicy::kSkip) throw spike;
  count_skip(spike);
  return false;
}

AnomalyHandler::Course AnomalyHandler::handle(spec::AnomalyPolicy policy, Error& error, std::int64_t step) {
  switch (policy) {
    case spec::AnomalyPolicy::kSkip:
      count_skip(error);
      parts_.trainer.skip_step();
      return Course::kPassed;
    case spec::AnomalyPolicy::kRewind:
      rewind(error, step);
      return Course::kRewound;
    case spec::AnomalyPolicy::kIgnore:
    case spec::AnomalyPolicy::kStop:
      break;
  }
  stop_for(error, step);
}

void AnomalyHandler::count_skip(const Error& error) {
  const std::int64_t step = parts_.trainer.position().step + 1;
  const std::int64_t most = parts_.recipe.health.max_skips;
  if (++skips_ > most) {
    throw Error(fmt::format("{}; that was number {}, and health.max_skips is {}", error.message(), skips_, most),
                "look at the data and the learning rate around that step");
  }
  if (parts_.world.rank() == 0) log_warn("{}: its update is left out", error.message());
  parts_.files.event("skipped", {{"step", step}, {"why", error.message()}});
}

void AnomalyHandler::stop_for(Error& error, std::int64_t step) {
  const fs::path path = parts_.saving.aside(parts_.trainer.position(), fmt::format("diverged-step-{:08}", step));
  parts_.files.event("diverged", {{"step", step}, {"why", error.message()}, {"path", path.string()}});
  error.add_context(fmt::format("the state before that step is in {}", path.string()));
  throw;  // the error that is being handled
}

void AnomalyHandler::rewind(Error& error, std::int64_t step) {
  Trainer& trainer = parts_.trainer;
  const spec::HealthConfig& health = parts_.recipe.health;
  parts_.saving.settle();
  if (++skips_ > health.max_skips) stop_for(error, step);
  std::vector<formats::DamagedCheckpoint> damaged;
  const std::int64_t to = checkpoint::newest_whole(parts_.folder.checkpoints(), parts_.world, damaged,
                                                   std::max<std::int64_t>(0, step - 1 - health.rewind));
  if (to < 0) {
    error.add_context(fmt::format("no checkpoint is {} older, so the run cannot be rewound",
                                  counted(static_cast<std::size_t>(health.rewind), "step")));
    stop_for(error, step);
  }
  trainer.skip_step();
  const std::int64_t data = trainer.position().tokens + trainer.position().skipped;
  load_step(parts_.folder, to, trainer);
  trainer.skip_data_to(data);
  parts_.files.cut_after(to);
  if (parts_.world.rank() == 0) {
    log_warn("{}: back to step {}, and on with the data after that batch", error.message(), to);
  }
  parts_.files.event("rewound", {{"step", to}, {"from", step}, {"why", error.message()}});
  parts_.timeline.tell("rewound", {{"step", to}, {"from", step}});
  trainer.state();                        // waits for updates that are still on their way
  parts_.saving.now(trainer.position());  // with what is skipped: a run that dies now goes on the same way
}

}  // namespace trireme::train
