#include "trireme/experiment/trial_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <ranges>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/observe/run_reader.h"
#include "trireme/spec/recipe.h"

namespace trireme::experiment {
namespace {

namespace fs = std::filesystem;

constexpr int kTrainUsage = 2, kTrainInterrupted = 130;  // exit codes of `trireme train` and `trireme supervise`

std::vector<std::string> sets_of(const Experiment& experiment, const Setting& setting) {
  std::vector<std::string> sets = experiment.sets;
  for (const Assignment& assignment : setting) sets.push_back(assignment.key + "=" + assignment.value);
  return sets;
}

struct Pins {
  std::vector<std::string> sets;
  bool gpus = false;  // it trains on
};

/// What a run of fewer steps must be told to be the beginning of the whole one.
Pins pinned(const fs::path& recipe, std::vector<std::string> sets, std::int64_t max_steps, int threads) {
  sets.push_back(fmt::format("train.steps={}", max_steps));
  const spec::LoadedRecipe whole =
      spec::load_recipe({.file = recipe.string(), .environment = spec::recipe_environment(), .sets = std::move(sets)});
  std::vector<std::string> pins;
  const auto origin = whole.origins.find("lr_schedule.total");
  const bool derived = origin != whole.origins.end() && origin->second.starts_with("from ");
  if (derived) pins.push_back(fmt::format("lr_schedule.total={}", *whole.value.lr_schedule.total));
  // Without an interval a run has no validation data; with one it also evaluates at its end, which is the rung.
  if (whole.value.eval.every <= 0) pins.push_back(fmt::format("eval.every={}", max_steps));
  // Trials run beside each other: without this each would take all cores.
  if (threads > 0 && !whole.value.train.threads) pins.push_back(fmt::format("train.threads={}", threads));
  return {.sets = std::move(pins), .gpus = whole.value.run.device == spec::DeviceKind::kCuda};
}

/// What helps where slots are more than GPUs.
std::string fewer_slots(std::size_t gpus) {
  return fmt::format("give --slots {}, or name a GPU once for each slot that is to share it: CUDA_VISIBLE_DEVICES=0,0",
                     gpus);
}

/// The step of Slurm's in which a trial runs. On one node it is one process, whose ranks are threads as they are on
/// this machine.
launch::SlurmStep slurm_step_of(const TrialPlace& place, bool gpus) {
  const launch::Allocation::Node& first = place.nodes.front();
  const bool one = place.nodes.size() == 1;
  launch::SlurmStep step{.nodes = {},
                         .tasks = one ? 1 : static_cast<int>(place.nodes.size()) * first.slots,
                         .cores_per_task = one ? first.cores : first.cores / first.slots,
                         .megabytes_per_node = first.megabytes,
                         .gpus_per_task = !gpus ? 0
                                          : one ? first.slots
                                                : 1,
                         .mpi = one ? "none" : place.mpi};
  for (const launch::Allocation::Node& node : place.nodes) step.nodes.push_back(node.name);
  return step;
}

}  // namespace

std::string devices_of_slots(const std::vector<int>& slots, const std::optional<std::string>& visible) {
  if (!visible) return fmt::format("{}", fmt::join(slots, ","));
  const std::vector<std::string> devices = split(*visible, ',');
  std::vector<std::string> own;
  for (const int slot : slots) {
    if (static_cast<std::size_t>(slot) >= devices.size()) {
      throw ConfigError(fmt::format("slot {} has no GPU: CUDA_VISIBLE_DEVICES=\"{}\" names {}", slot, *visible,
                                    counted(devices.size(), "GPU")),
                        fewer_slots(devices.size()));
    }
    own.push_back(devices[static_cast<std::size_t>(slot)]);
  }
  return fmt::format("{}", fmt::join(own, ","));
}

GpusHere gpus_here() {
  GpusHere here{.visible = env("CUDA_VISIBLE_DEVICES")};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/dev", none)) {
    const std::string name = entry.path().filename().string();  // nvidia0, nvidia1; not nvidiactl or nvidia-uvm
    if (name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == std::string::npos)
      ++here.count;
  }
  return here;
}

void check_gpus_of_slots(const fs::path& recipe, const std::vector<std::string>& sets, int slots,
                         const GpusHere& gpus) {
  const spec::Recipe value =
      spec::load_recipe({.file = recipe.string(), .environment = spec::recipe_environment(), .sets = sets}).value;
  if (value.run.device != spec::DeviceKind::kCuda) return;
  if (gpus.visible) {
    devices_of_slots({slots - 1}, gpus.visible);
  } else if (gpus.count > 0 && slots > gpus.count) {
    throw ConfigError(fmt::format("slot {} has no GPU: this machine has {}", slots - 1,
                                  counted(static_cast<std::size_t>(gpus.count), "GPU")),
                      fewer_slots(static_cast<std::size_t>(gpus.count)));
  }
}

std::int64_t max_steps_of(const fs::path& recipe, const std::vector<std::string>& sets) {
  const spec::Recipe value =
      spec::load_recipe({.file = recipe.string(), .environment = spec::recipe_environment(), .sets = sets}).value;
  if (!value.train.steps) {
    throw ConfigError("the recipe does not say how many steps a whole training has",
                      "give --steps N, or set train.steps");
  }
  return *value.train.steps;
}

TrialCommand trial_command(const ExperimentFolder& folder, const Experiment& experiment, const Job& job,
                           const TrialProgram& program, const TrialPlace& place) {
  const fs::path recipe = fs::absolute(folder.recipe());
  std::vector<std::string> sets = sets_of(experiment, job.setting);
  Pins pins;
  try {
    pins = pinned(recipe, sets, experiment.options.max_steps, program.threads);
  } catch (const ConfigError& error) {
    return {.words = {}, .why = error.message()};
  }
  sets.insert(sets.end(), pins.sets.begin(), pins.sets.end());
  sets.push_back(fmt::format("train.steps={}", job.until));
  std::vector<std::string> words;
  if (pins.gpus && place.nodes.empty() && !place.slots.empty()) {
    words = {"env", "CUDA_VISIBLE_DEVICES=" + devices_of_slots(place.slots, env("CUDA_VISIBLE_DEVICES"))};
  }
  words.insert(words.end(), {program.program, "supervise", "--restarts", std::to_string(program.restarts), "--"});
  if (!place.nodes.empty()) {
    const launch::SlurmStep step = slurm_step_of(place, pins.gpus);
    for (std::string& word : srun_words(step)) words.push_back(std::move(word));
    // srun says who the process is; with one task the ranks are within it all the same.
    if (step.tasks == 1) sets.emplace_back("comm.transport=threads");
  }
  words.insert(words.end(), {program.program, "train", recipe.string()});
  for (std::string& assignment : sets) words.insert(words.end(), {"--set", std::move(assignment)});
  if (experiment.slots_per_trial > 1)
    words.insert(words.end(), {"--ranks", std::to_string(experiment.slots_per_trial)});
  words.insert(words.end(), {"--out", fs::absolute(folder.run(job.trial, job.draw)).string(), "--resume"});
  return {.words = std::move(words), .why = {}};
}

void copy_run(const fs::path& from, const fs::path& to) {
  if (fs::exists(to / "metrics.jsonl")) return;  // it was copied, and has begun
  const fs::path half = to.string() + ".copy";   // appears whole: a crash leaves none that looks like one
  fs::remove_all(half);
  fs::remove_all(to);
  fs::copy(from, half, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  for (const char* own : {"lock", "stop", "heartbeat.json", "tensorboard"}) fs::remove_all(half / own);
  fs::rename(half, to);
}

std::optional<Result> result_of(const ExperimentFolder& folder, const Job& job, int status) {
  const fs::path run = folder.run(job.trial, job.draw);
  if (status == kTrainInterrupted) return std::nullopt;
  const bool began = fs::exists(run / "metrics.jsonl") && fs::file_size(run / "metrics.jsonl") > 0;
  if (status != 0) {
    const bool refused = status == kTrainUsage && !began;
    log_warn("trial {}: {}, see {}", job.trial, refused ? "cannot be trained" : "failed",
             folder.log(job.trial, job.draw).string());
    return Result{.trial = job.trial, .step = job.from, .end = refused ? Result::End::kInvalid : Result::End::kFailed};
  }
  const observe::RunFiles files = observe::read_run(run, observe::Reading::kLenient);
  for (const observe::EventRecord* event : files.events_of("eval")) {
    if (event->step() != job.until) continue;
    return Result{.trial = job.trial,
                  .step = job.until,
                  .value = event->number_of("loss").value_or(std::numeric_limits<double>::quiet_NaN())};
  }
  log_warn("trial {}: {} has no evaluation at step {}", job.trial, (run / "events.jsonl").string(), job.until);
  return Result{.trial = job.trial, .step = job.until, .end = Result::End::kFailed};
}

}  // namespace trireme::experiment
