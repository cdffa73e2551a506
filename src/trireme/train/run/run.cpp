#include "trireme/train/run/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/cores.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/memory_snapshots.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/salvage.h"
#include "trireme/checkpoint/texts.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/vocab_size.h"
#include "trireme/kernels/autotune.h"
#include "trireme/observe/contention.h"
#include "trireme/observe/heartbeat.h"
#include "trireme/observe/machine.h"
#include "trireme/observe/timeline.h"
#include "trireme/train/diagnose/call_trace.h"
#include "trireme/train/diagnose/explain.h"
#include "trireme/train/diagnose/host_memory.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/diagnose/profile.h"
#include "trireme/train/engine/require_rules.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/run/anomaly_handler.h"
#include "trireme/train/run/evaluate.h"
#include "trireme/train/run/fault_injector.h"
#include "trireme/train/run/interrupt.h"
#include "trireme/train/run/rank_watch.h"
#include "trireme/train/run/run_files.h"
#include "trireme/train/run/saving.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::RunFolder;
using Clock = std::chrono::steady_clock;

class TrainingRun {
 public:
  TrainingRun(const RunRequest& request, comm::Rank& rank)
      : request_(request), rank_(rank), world_(rank.world()), folder_{request.folder} {}

  RunResult go();

 private:
  bool leads() const { return world_.rank() == 0; }
  StepStatus gather_news();
  std::int64_t find_checkpoint();
  std::int64_t find_snapshot();
  void take_snapshot();
  void tell_snapshots(std::int64_t step);
  void tell_warm_up(std::int64_t step);
  std::int64_t begin_anew(const std::vector<formats::DamagedCheckpoint>& damaged);
  spec::ModelShape shape_from(std::int64_t from_step) const;
  void build(std::int64_t from_step);
  void loop();
  void record(const StepReport& report, std::int64_t memory);
  void recover(spec::AnomalyPolicy policy, Error& error, std::int64_t step);
  void validate();
  void beat();
  void begin_saving();
  void save_now();
  void write_timeline();

  RunRequest request_;  // the recipe of it with what the data says
  comm::Rank& rank_;
  comm::Group& world_;
  RunFolder folder_;
  std::unique_ptr<checkpoint::MadeRunFolder> made_;  // rank 0's, until the run writes; the last to go
  std::unique_ptr<checkpoint::RunLock> lock_;        // rank 0's
  std::unique_ptr<LogCopy> log_copy_;                // rank 0's, from when the run is going to begin
  spec::Recipe recipe_;
  std::int64_t steps_ = 0;
  std::unique_ptr<data::Samples> samples_, validation_;
  spec::Recipe trained_;  // what the trainer goes by, and borrows
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CallTrace> calls_;  // where a trace is kept
  RunResult result_;
  std::int64_t validated_step_ = -1;
  std::unique_ptr<observe::Timeline> timeline_;
  std::unique_ptr<FaultInjector> faults_;
  std::unique_ptr<Saving> saving_;
  std::unique_ptr<RunFiles> files_;
  std::unique_ptr<AnomalyHandler> anomalies_;
  std::optional<checkpoint::SnapshotId> snapshot_;        // that an elastic world goes on from
  std::unique_ptr<checkpoint::SnapshotTaker> snapshots_;  // of an elastic world
  double world_cpu_ = 0;                                  // CPU seconds of the process when its steps began
  std::optional<Clock::time_point> moved_;                // to an elastic world whose first step is not over
  std::unique_ptr<RankWatch> ranks_;
  std::unique_ptr<observe::CpuContention> contention_;  // rank 0's, where the CPU computes
  Clock::time_point step_begun_ = Clock::now();
  std::int64_t beats_ = 0;
  int saves_asked_ = 0;
  bool save_wanted_ = false;
};

StepStatus TrainingRun::gather_news() {
  const int saves = Interrupt::saves_requested();
  const bool save = saves > saves_asked_ || (leads() && (saving_->is_time() || observe::take_save_wish(folder_.path)));
  saves_asked_ = saves;
  const StepStatus status =
      exchange({.stop = Interrupt::requested() || (leads() && observe::asked_to_stop(folder_.path)),
                .memory = most_memory(trainer_->device()),
                .save = save,
                .writing = !saving_->written(),
                .clock = timeline_->clock(),
                .edge = request_.elastic != nullptr && request_.elastic->wants_edge()},
               world_);
  timeline_->hear(status.clock);
  return status;
}

/// A checkpoint knows the shape: the folder that the run once began from may be gone.
spec::ModelShape TrainingRun::shape_from(std::int64_t from_step) const {
  if (from_step < 0 || snapshot_ || !request_.recipe.model.init_from) return model_shape(request_.recipe);
  return spec::with_keys(checkpoint::stored_shape(folder_.checkpoints() / formats::checkpoint_name(from_step)),
                         request_.recipe.model);
}

/// The step to go on from: -1 for the beginning.
std::int64_t TrainingRun::find_checkpoint() {
  if (!request_.resume) {
    if (leads()) {
      checkpoint::check_no_run(folder_);
      made_ = std::make_unique<checkpoint::MadeRunFolder>(folder_);
      lock_ = std::make_unique<checkpoint::RunLock>(folder_);
    }
    return broadcast_from_root(-1, world_);  // nobody goes on before the folder is there
  }
  if (leads()) {
    made_ = std::make_unique<checkpoint::MadeRunFolder>(folder_);
    lock_ = std::make_unique<checkpoint::RunLock>(folder_);
  }
  if (const std::int64_t step = find_snapshot(); step >= 0) return step;
  std::vector<formats::DamagedCheckpoint> damaged;
  const std::int64_t step = checkpoint::newest_whole(folder_.checkpoints(), world_, damaged);
  if (step < 0 && !damaged.empty()) return begin_anew(damaged);
  if (!leads()) return step;
  for (const auto& [where, why] : damaged) log_warn("{} is damaged and not used: {}", where.string(), why);
  formats::sweep_unfinished(folder_.checkpoints());
  formats::sweep_unfinished(folder_.path);
  if (step < 0) {
    log_info("{} has no checkpoint: the run starts from the beginning", folder_.path.string());
  } else {
    log_info("going on from {}", (folder_.checkpoints() / formats::checkpoint_name(step)).string());
  }
  return step;
}

/// The step of a snapshot in the ranks' memory that is as new as anything on the disk; -1: there is none.
std::int64_t TrainingRun::find_snapshot() {
  if (request_.elastic == nullptr) return -1;
  auto& kept = request_.elastic->snapshots;
  if (!kept) kept = std::make_shared<checkpoint::MemorySnapshots>();
  snapshot_ = checkpoint::newest_snapshot(*kept, world_);
  if (!snapshot_) return -1;
  const auto stored = leads() ? formats::list_checkpoints(folder_.checkpoints()) : std::vector<std::int64_t>{};
  if (broadcast_from_root(stored.empty() ? -1 : stored.back(), world_) > snapshot_->step) {
    snapshot_.reset();
    return -1;
  }
  if (leads()) {
    formats::sweep_unfinished(folder_.checkpoints());
    formats::sweep_unfinished(folder_.path);
    log_info("going on from the snapshot of step {} in memory", snapshot_->step);
  }
  return snapshot_->step;
}

void TrainingRun::take_snapshot() {
  trainer_->state();  // waits for updates that are still on their way
  snapshots_->take(trainer_->position().step);
}

/// What they have cost this rank beside the steps of its world.
void TrainingRun::tell_snapshots(std::int64_t step) {
  if (!snapshots_) return;
  const checkpoint::SnapshotCost& cost = snapshots_->cost();
  timeline_->tell("snapshots", {{"step", step},
                                {"taken", cost.taken},
                                {"bytes_each", snapshots_->bytes()},
                                {"kept_bytes", request_.elastic->snapshots->bytes()},
                                {"seconds", cost.seconds},
                                {"cpu_s", cost.cpu_seconds},
                                {"world_cpu_s", process_cpu_seconds() - world_cpu_}});
}

/// The last of the phases in which an elastic world recovers: its first step, in which memory is touched for the first
/// time.
void TrainingRun::tell_warm_up(std::int64_t step) {
  if (!moved_) return;
  timeline_->tell("first_step",
                  {{"epoch", request_.elastic->epoch}, {"step", step}, {"seconds", seconds_since(*moved_)}});
  moved_.reset();
}

/// No checkpoint is whole. What is there may be all that is left of weeks: nothing of it is removed, and the run begins
/// anew only where somebody said so.
std::int64_t TrainingRun::begin_anew(const std::vector<formats::DamagedCheckpoint>& damaged) {
  if (!request_.start_over) {
    const std::string found =
        checkpoint::all_texts(leads() ? checkpoint::salvage_text(damaged) : std::string(), world_)[0];
    throw ConfigError(
        fmt::format("the run in {} cannot go on: {} damaged\n{}", folder_.path.string(),
                    damaged.size() == 1 ? std::string("its only checkpoint is")
                                        : fmt::format("all of its {} checkpoints are", damaged.size()),
                    found),
        fmt::format("put a copy of one back; or begin again at step 0 with --resume --start-over, which moves what is "
                    "in {} to a folder set-aside-1 within it",
                    folder_.path.string()));
  }
  if (leads()) {
    log_warn("no checkpoint is whole: the run starts from the beginning, what it had written is in {}",
             checkpoint::set_run_aside(folder_).string());
  }
  return broadcast_from_root(-1, world_);  // nobody goes on before the folder is empty
}

void TrainingRun::build(std::int64_t from_step) {
  trained_ = recipe_;
  if (from_step >= 0) {  // the checkpoint has the weights
    trained_.model.init_from.reset();
    trained_.model.init_partial = trained_.model.init_resize_vocab = trained_.model.init_dense = false;
  }
  const spec::ModelShape shape = *spec::shape_of(recipe_.model);
  samples_ = data::open_samples(recipe_, data::Split::kTrain);
  if (recipe_.eval.every > 0) {
    validation_ = data::open_samples(recipe_, data::Split::kValidation);
    TRIREME_CHECK(validation_ != nullptr, "the recipe keeps nothing for validation");
  }
  if (recipe_.run.device == spec::DeviceKind::kCuda) {
    kernels::set_gemm_autotune(recipe_.train.gemm_autotune);
    kernels::read_tuning_cache(folder_.gpu_choices());
  }
  trainer_ = std::make_unique<Trainer>(trained_, shape, world_, *samples_);
  if (request_.trace != nullptr) {
    trainer_->trace(*request_.trace);
    calls_ = std::make_unique<CallTrace>(rank_.recorder(), *request_.trace, rank_.rank());
  }
  timeline_ =
      std::make_unique<observe::Timeline>(folder_.path / "timeline.jsonl", fmt::format("rank {}", world_.rank()));
  faults_ =
      std::make_unique<FaultInjector>(spec::parse_faults(request_.inject), world_.rank(), world_.size(), folder_.path);
  saving_ = std::make_unique<Saving>(Saving::Parts{.recipe = recipe_,
                                                   .folder = folder_,
                                                   .world = world_,
                                                   .state = trainer_->state(),
                                                   .faults = *faults_,
                                                   .timeline = *timeline_});
  files_ = std::make_unique<RunFiles>(RunFiles::Parts{.request = request_,
                                                      .recipe = recipe_,
                                                      .folder = folder_,
                                                      .rank = rank_,
                                                      .trainer = *trainer_,
                                                      .samples = *samples_,
                                                      .timeline = *timeline_,
                                                      .saving = *saving_});
  anomalies_ = std::make_unique<AnomalyHandler>(AnomalyHandler::Parts{.recipe = recipe_,
                                                                      .folder = folder_,
                                                                      .world = world_,
                                                                      .trainer = *trainer_,
                                                                      .saving = *saving_,
                                                                      .files = *files_,
                                                                      .timeline = *timeline_});
  ranks_ = std::make_unique<RankWatch>(recipe_.health, world_, *files_, *timeline_);
  if (leads() && recipe_.run.device == spec::DeviceKind::kCpu) {
    const int local = std::max(1, request_.local_ranks);
    const bool threads = !world_.has_processes();
    contention_ = std::make_unique<observe::CpuContention>(*recipe_.train.threads, local, threads ? local : 1,
                                                           static_cast<int>(std::thread::hardware_concurrency()));
  }
  // Where a rank takes what others have not begun, a slow one is slow in each of its micro-batches.
  const bool by_micro = recipe_.train.work_stealing || recipe_.train.mode != spec::TrainMode::kSynchronous;
  if (by_micro && faults_->drill()) {
    trainer_->on_micro([this](std::int64_t step, double seconds) { faults_->after_compute(step, seconds); });
  }
  trainer_->on_gradients([this, by_micro](nn::Params&) {
    saving_->before_update();
    if (!by_micro) faults_->after_compute(trainer_->position().step + 1, seconds_since(step_begun_));
  });
  if (snapshot_) {
    checkpoint::load_snapshot(*request_.elastic->snapshots, *snapshot_, trainer_->state(), world_);
    trainer_->loaded();
    validated_step_ = from_step;
  } else if (from_step >= 0) {
    load_step(folder_, from_step, *trainer_);
    saving_->came_from(from_step);
    validated_step_ = from_step;
  }
  if (request_.elastic == nullptr) return;
  world_cpu_ = process_cpu_seconds();
  snapshots_ = std::make_unique<checkpoint::SnapshotTaker>(trainer_->state(), world_, *request_.elastic->snapshots,
                                                           request_.elastic->epoch);
  take_snapshot();  // what a lost rank kept is kept twice again
}

void TrainingRun::record(const StepReport& report, std::int64_t memory) {
  const std::int64_t step = report.position.step;
  result_.step = step;
  result_.loss = report.loss;
  RunFiles::StepFigures figures{.memory = memory, .own_memory = most_memory(trainer_->device())};
  const std::int64_t every = recipe_.train.hash_every;
  if (every > 0 && (step % every == 0 || step == steps_) && trainer_->at_rest()) {
    trainer_->state();  // waits for updates that are still on their way
    figures.hashes = saving_->hashes();
  }
  figures.seconds = seconds_since(step_begun_);
  files_->step(report, figures);
}

void TrainingRun::validate() {
  const auto begin = Clock::now();
  const std::int64_t count =
      validation_->epoch() > 0 ? std::min(validation_->epoch(), recipe_.eval.samples) : recipe_.eval.samples;
  const Evaluation evaluation = trainer_->evaluate(
      *validation_,
      {.count = count, .rows = recipe_.train.micro_batch_size.value_or(std::min<std::int64_t>(count, 8))});
  validated_step_ = trainer_->position().step;
  if (evaluation.counts.targets <= 0) throw ConfigError("the validation samples have no token with a loss");
  result_.validation_loss = evaluation.loss();
  saving_->note_metric(evaluation.loss());
  observe::Json fields{{"step", validated_step_},
                       {"loss", evaluation.loss()},
                       {"perplexity", evaluation.perplexity()},
                       {"samples", count},
                       {"seconds", seconds_since(begin)}};
  if (evaluation.terms.size() > 1) {
    fields["total_loss"] = evaluation.total();
    for (const nn::LossTerm& term : evaluation.terms) {
      fields["losses/" + term.name] = nn::mean_of(term, evaluation.counts);
    }
  }
  files_->event("eval", std::move(fields));
  if (leads()) log_info("step {}: validation loss {:.4f}", validated_step_, evaluation.loss());
}

void TrainingRun::beat() {
  if (!leads()) return;
  observe::write_heartbeat(
      folder_.path,
      {.beats = ++beats_, .step = trainer_->position().step, .saved = saving_->saved_step(), .pid = ::getpid()});
}

/// A step whose loss or gradients are anomalous, by what the recipe says; called while `error` is being handled.
void TrainingRun::recover(spec::AnomalyPolicy policy, Error& error, std::int64_t step) {
  if (anomalies_->handle(policy, error, step) == AnomalyHandler::Course::kRewound) return;
  record({.position = trainer_->position(), .loss = NAN, .gradient_norm = NAN, .taken = false, .refused = true},
         gather_news().memory);
}

void TrainingRun::begin_saving() {
  save_wanted_ = false;
  trainer_->state();  // waits for updates that are still on their way
  saving_->begin(trainer_->position());
  // Where updates happen within steps that run together, the copy cannot lie beside them; nor beside a step that is
  // being captured, which must be the only one to use the GPU.
  if (!trainer_->driver().looks_before_update() || recipe_.train.cuda_graphs) saving_->before_update();
}

void TrainingRun::save_now() {
  trainer_->state();
  saving_->now(trainer_->position());
}

/// Of the last steps of a pipeline; all of its ranks together.
void TrainingRun::write_timeline() {
  if (const std::string timeline = trainer_->timeline(); !timeline.empty()) {
    write_text_file(folder_.path / "pipeline.json", timeline);
  }
}

void TrainingRun::loop() {
  ProfileWindow profile(request_.profile, steps_, *trainer_, folder_.path / "profile.json");
  const auto due = [&](std::int64_t every) { return every > 0 && trainer_->position().step % every == 0; };
  // Drills change the state between two steps, and a profile counts whole ones.
  if (recipe_.train.cuda_graphs && request_.profile == 0 && !faults_->drill()) trainer_->run_ahead();
  while (trainer_->position().step < steps_) {
    step_begun_ = Clock::now();
    const std::int64_t step = trainer_->position().step + 1;
    StepStatus status;
    if (leads()) profile.before_step();
    try {
      if (faults_->drill()) faults_->before_step(step, trainer_->state());
      const StepReport report = trainer_->step();
      if (leads()) profile.after_step();
      status = gather_news();
      if (calls_) calls_->tell();
      record(report, status.memory);
      tell_warm_up(report.position.step);
      if (leads()) kernels::write_tuning_cache(folder_.gpu_choices());
      ranks_->note(report.position.step, report.compute_s + faults_->take_slowed_s());
      ranks_->compare(report.position.step, *trainer_);
      if (contention_) {
        if (const std::string crowded = contention_->note(observe::cpu_times()); !crowded.empty())
          log_warn("{}", crowded);
      }
    } catch (NonFiniteError& error) {
      recover(recipe_.health.non_finite, error, step);
      continue;
    } catch (LossSpike& error) {
      recover(recipe_.health.spike, error, step);
      continue;
    }
    save_wanted_ = save_wanted_ || status.save != 0;
    saving_->after_step(status.writing == 0);
    beat();
    if (!trainer_
             ->at_rest()) {  // the next drain comes, and an interrupted run goes on until then; a step ahead can be had
      if (status.stop != 0 || status.edge != 0 || save_wanted_) trainer_->rest_soon();
      continue;
    }
    if (validation_ && due(recipe_.eval.every)) validate();
    if (trainer_->position().step >= steps_) break;
    if (status.stop != 0) {
      if (saving_->saved_step() != step) save_now();
      result_.end = RunResult::End::kInterrupted;
      if (leads()) observe::take_back_stop(folder_.path);
      tell_snapshots(step);
      files_->event("stop", {{"step", step}, {"why", "interrupted"}});
      timeline_->tell("stop", {{"step", step}, {"why", "interrupted"}});
      return;
    }
    if (snapshots_ && (status.edge != 0 || due(request_.elastic->snapshot_every))) take_snapshot();
    if (saving_->is_due(step) || save_wanted_) {
      begin_saving();
      write_timeline();
    }
    if (status.edge != 0) {
      saving_->settle();
      result_.end = RunResult::End::kWorldEnds;
      tell_snapshots(step);
      timeline_->tell("edge", {{"step", step}, {"ranks", world_.size()}});
      return;
    }
  }
  write_timeline();
  if (validation_ && validated_step_ != steps_) validate();
  if (saving_->saved_step() != steps_) save_now();
  if (const std::string saves = saving_->summary(); !saves.empty()) log_info("{}", saves);
  tell_snapshots(steps_);
  files_->event("stop", {{"step", steps_}, {"why", "finished"}});
  timeline_->tell("stop", {{"step", steps_}, {"why", "finished"}});
}

RunResult TrainingRun::go() {
  // Before anything is made. Where a run goes on, its checkpoint has the shape: the folder that it began from may be
  // gone.
  const std::int64_t length = request_.recipe.data.seq_len;
  const bool shape_is_stored = request_.resume && request_.recipe.model.init_from;
  if (!shape_is_stored) require_rules(request_.recipe, model_shape(request_.recipe), world_, length);
  const auto memory = static_cast<double>(observe::usable_memory());
  const std::string vocabulary = data::settle_vocab_size(request_.recipe);
  // At once, however large the sizes are, but with the vocabulary that the data has; of a published model when its
  // shape is known.
  if (const auto shape = spec::shape_of(request_.recipe.model); shape && !request_.recipe.model.init_from) {
    require_host_room(request_.recipe, *shape, world_.size(), request_.local_ranks, memory);
  }
  if (leads() && !vocabulary.empty()) log_info("{}", vocabulary);
  const std::int64_t from_step = find_checkpoint();
  const spec::ModelShape shape = shape_from(from_step);
  if (shape_is_stored) require_rules(request_.recipe, shape, world_, length);
  steps_ = result_.steps = last_step(request_.recipe);
  if (request_.recipe.model.init_from) {
    require_host_room(request_.recipe, shape, world_.size(), request_.local_ranks, memory);
    data::check_vocab_size(request_.recipe, shape);
  }
  recipe_ = effective_recipe(request_, shape);
  at::set_num_threads(*recipe_.train.threads);
  if (from_step >= steps_ && !snapshot_) {
    result_.end = RunResult::End::kWasFinished;
    result_.step = from_step;
    return result_;
  }
  if (leads()) log_copy_ = std::make_unique<LogCopy>(folder_.log().string());
  build(from_step);
  if (made_) made_->keep();
  files_->open(from_step, steps_);
  if (request_.explain) {
    const Explanation explanation = explain(*trainer_);
    if (leads()) log_info("{}", explanation.text());
  }
  const Interrupt interrupt(recipe_.checkpoint.grace);
  beat();
  if (request_.elastic != nullptr) {
    request_.elastic->moved(trainer_->position().step);
    moved_ = Clock::now();
  }
  loop();
  return result_;
}

}  // namespace

RunResult run(const RunRequest& request, comm::Rank& rank) {
  try {
    return TrainingRun(request, rank).go();
  } catch (const fs::filesystem_error& error) {  // a folder or copy that could not be made
    throw IoError(fmt::format("the run's directory {} cannot be used: {}", request.folder.string(), error.what()),
                  "look at its permissions and the space that is left");
  }
}

}  // namespace trireme::train
