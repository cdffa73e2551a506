#include "trireme/train/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>

#include "trireme/base/cores.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/progress.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/newest.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/store.h"
#include "trireme/cost/cost_table.h"
#include "trireme/data/open_samples.h"
#include "trireme/kernels/cuda.h"
#include "trireme/observe/heartbeat.h"
#include "trireme/observe/peak_file.h"
#include "trireme/observe/run_log.h"
#include "trireme/observe/stop_file.h"
#include "trireme/observe/timeline.h"
#include "trireme/train/call_trace.h"
#include "trireme/train/evaluate.h"
#include "trireme/train/explain.h"
#include "trireme/train/fault_injector.h"
#include "trireme/train/health.h"
#include "trireme/train/interrupt.h"
#include "trireme/train/profile.h"
#include "trireme/train/saving.h"
#include "trireme/train/stragglers.h"
#include "trireme/train/trainer.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::RunFolder;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// The most memory that this process has had, in bytes.
std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

/// The tokenizer.json that the data was made with; none for bytes and where nothing was said.
std::optional<fs::path> tokenizer_file(const spec::DataConfig& data) {
  if (!data.tokenizer || *data.tokenizer == "bytes") return std::nullopt;
  const fs::path path = *data.tokenizer;
  return fs::is_directory(path) ? path / "tokenizer.json" : path;
}

class Run {
 public:
  Run(const RunRequest& request, comm::Rank& rank)
      : request_(request), rank_(rank), world_(rank.world()), folder_{request.folder} {}

  RunResult go();

 private:
  bool leads() const { return world_.rank() == 0; }
  /// Rank 0's number, on every rank.
  std::int64_t told(std::int64_t number);
  /// What ranks tell each other after every step: the largest of each.
  struct News {
    std::int64_t stop = 0, memory = 0;
    std::int64_t save = 0;     // rank 0's clock, or SIGUSR1 on any rank
    std::int64_t writing = 0;  // a checkpoint is not yet written
    std::int64_t clock = 0;    // the timeline's
  };
  News exchange(News news);
  News gather_news();

  std::int64_t find_checkpoint();
  spec::ModelShape shape_from(std::int64_t from_step) const;
  void build(std::int64_t from_step);
  void open_files(std::int64_t from_step);
  void loop();
  void begin_profile();
  void end_profile();
  /// The most that this rank has had of its device; of the host, where that is the device.
  std::int64_t most_memory() const;
  void record(const StepReport& report, std::int64_t memory, Clock::time_point begin);
  void validate();
  void look_after_ranks(const StepReport& report);
  void beat();
  /// A step whose loss or gradients are sick, by what the recipe says. Throws `error` where it says stop.
  void treat(spec::SickPolicy policy, Error& error, std::int64_t step);
  void rewind(Error& error, std::int64_t step);
  void count_skip(const Error& error);
  [[noreturn]] void stop_for(Error& error, std::int64_t step);
  void load_step(std::int64_t step);
  void begin_saving();
  void save_now();

  const RunRequest& request_;
  comm::Rank& rank_;
  comm::Group& world_;
  RunFolder folder_;
  std::unique_ptr<checkpoint::RunLock> lock_;  // rank 0's; the last to go
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
  std::unique_ptr<LossWatch> watch_;
  std::unique_ptr<Saving> saving_;
  std::unique_ptr<Stragglers> stragglers_;
  Clock::time_point step_begun_ = Clock::now();
  std::int64_t beats_ = 0, skips_ = 0, agreed_step_ = 0;
  int saves_asked_ = 0;
  bool save_wanted_ = false;
  // Rank 0's:
  std::unique_ptr<LogCopy> log_copy_;
  std::unique_ptr<observe::RunLog> log_;
  std::unique_ptr<Progress> progress_;
  std::optional<double> peak_flops_;
  std::unique_ptr<StepProfile> profile_;
  std::int64_t first_profiled_ = -1;
  Clock::time_point profile_began_;
};

std::int64_t Run::most_memory() const {
  const at::Device device = trainer_->device();
  return device.is_cuda() ? kernels::cuda().peak_bytes(device.index()) : peak_memory();
}

std::int64_t Run::told(std::int64_t number) {
  if (world_.size() > 1) world_.broadcast(comm::Buffer{&number, 1, comm::DType::kI64}, 0).wait();
  return number;
}

Run::News Run::exchange(News news) {
  std::array<std::int64_t, 5> numbers{news.stop, news.memory, news.save, news.writing, news.clock};
  if (world_.size() > 1) {
    world_.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kI64}, comm::Reduce::kMax).wait();
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

Run::News Run::gather_news() {
  const int saves = Interrupt::saves_requested();
  const bool save = saves > saves_asked_ || (leads() && saving_->is_time());
  saves_asked_ = saves;
  const News news = exchange({.stop = Interrupt::requested() || (leads() && observe::asked_to_stop(folder_.path)),
                              .memory = most_memory(),
                              .save = save,
                              .writing = !saving_->written(),
                              .clock = timeline_->clock()});
  timeline_->hear(news.clock);
  return news;
}

/// A checkpoint knows the shape: the folder that the run once began from may be gone.
spec::ModelShape Run::shape_from(std::int64_t from_step) const {
  if (from_step < 0 || !request_.recipe.model.init_from) return model_shape(request_.recipe);
  return spec::with_keys(checkpoint::stored_shape(folder_.checkpoints() / formats::checkpoint_name(from_step)),
                         request_.recipe.model);
}

/// The step to go on from: -1 for the beginning.
std::int64_t Run::find_checkpoint() {
  if (!request_.resume) {
    if (leads()) {
      checkpoint::begin_run(folder_);
      lock_ = std::make_unique<checkpoint::RunLock>(folder_);
    }
    return told(-1);  // nobody goes on before the folder is there
  }
  if (leads()) {
    fs::create_directories(folder_.path);
    lock_ = std::make_unique<checkpoint::RunLock>(folder_);
    formats::sweep_unfinished(folder_.checkpoints());
    formats::sweep_unfinished(folder_.path);
  }
  std::vector<formats::DamagedCheckpoint> damaged;
  const std::int64_t step = checkpoint::newest_whole(folder_.checkpoints(), world_, damaged);
  for (const auto& [where, why] : damaged) log_warn("{} is damaged and not used: {}", where.string(), why);
  if (!leads()) return step;
  if (step < 0) {
    log_info("{} has no {}checkpoint: the run starts from the beginning", folder_.path.string(),
             damaged.empty() ? "" : "whole ");
  } else {
    log_info("going on from {}", (folder_.checkpoints() / formats::checkpoint_name(step)).string());
  }
  return step;
}

void Run::load_step(std::int64_t step) {
  checkpoint::load(formats::CheckpointFolder(folder_.checkpoints() / formats::checkpoint_name(step)), trainer_->state(),
                   checkpoint::What::kEverything, recipe_.checkpoint.threads);
  trainer_->loaded();
}

void Run::build(std::int64_t from_step) {
  trained_ = recipe_;
  if (from_step >= 0) trained_.model.init_from.reset();  // the checkpoint has the weights
  const spec::ModelShape shape = *spec::shape_of(recipe_.model);
  samples_ = data::open_samples(recipe_, data::Split::kTrain);
  if (recipe_.eval.every > 0) {
    validation_ = data::open_samples(recipe_, data::Split::kValidation);
    if (!validation_) {
      throw ConfigError("eval.every is given, but the recipe keeps nothing for validation",
                        "set data.validation_fraction = 0.01, or eval.every = 0");
    }
  }
  trainer_ = std::make_unique<Trainer>(trained_, shape, world_, *samples_);
  if (request_.trace != nullptr) {
    trainer_->trace(*request_.trace);
    calls_ = std::make_unique<CallTrace>(rank_.recorder(), *request_.trace, rank_.rank());
  }
  const spec::HealthConfig& health = recipe_.health;
  if (trainer_->engine().together() != nullptr &&
      (health.spike != spec::SickPolicy::kIgnore || health.not_finite != spec::SickPolicy::kStop)) {
    throw ConfigError(
        "pipeline.schedule updates weights before the loss of a step is known, so no step can be left out",
        "leave health.spike and health.not_finite as they are, or take a synchronous schedule");
  }
  if (health.spike != spec::SickPolicy::kIgnore) {
    watch_ = std::make_unique<LossWatch>(health);
    watch_->add_state(trainer_->state());
    trainer_->on_loss([this](double loss) {
      const std::string why = watch_->judge(loss);
      if (why.empty()) return true;
      const std::int64_t step = trainer_->position().step + 1;
      LossSpike spike(fmt::format("at step {} {}", step, why),
                      "health.spike = \"rewind\" goes back and skips the data");
      if (recipe_.health.spike != spec::SickPolicy::kSkip) throw spike;
      count_skip(spike);
      return false;
    });
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
  stragglers_ = std::make_unique<Stragglers>(world_, health.straggler);
  trainer_->on_gradients([this](nn::Params&) {
    saving_->before_update();
    faults_->after_compute(trainer_->position().step + 1, seconds_since(step_begun_));
  });
  if (from_step < 0) return;
  load_step(from_step);
  saving_->came_from(from_step);
  validated_step_ = from_step;
}

void Run::open_files(std::int64_t from_step) {
  if (!leads()) return;
  log_copy_ = std::make_unique<LogCopy>(folder_.log().string());
  const auto changes = request_.resume ? checkpoint::recipe_changes(folder_, recipe_) : std::vector<std::string>{};
  for (const std::string& change : changes) log_info("the recipe has changed: {}", change);
  log_ = std::make_unique<observe::RunLog>(
      folder_.path, request_.resume ? std::optional(std::max<std::int64_t>(from_step, 0)) : std::nullopt);
  saving_->log_to(*log_);
  timeline_->tell(request_.resume ? "resumed" : "start",
                  {{"step", trainer_->position().step}, {"ranks", world_.size()}, {"pid", ::getpid()}});
  write_text_file(folder_.recipe(), config::to_toml(recipe_));
  if (!fs::exists(folder_.costs())) cost::write_cost_table(rank_.options().costs, folder_.costs());
  if (const auto tokenizer = tokenizer_file(recipe_.data); tokenizer && !fs::exists(folder_.tokenizer())) {
    fs::copy_file(*tokenizer, folder_.tokenizer());
  }
  const auto names = spec::enum_names(std::type_identity<spec::Family>());
  const std::int64_t parameters = spec::count_parameters(trainer_->shape()).total();
  const std::string family(name_in(names, trainer_->shape().family));
  log_->event(
      request_.resume ? "resumed" : "start",
      {{"step", trainer_->position().step},
       {"steps", steps_},
       {"model", family},
       {"parameters", parameters},
       {"ranks", world_.size()},
       {"precision", name_in(spec::enum_names(std::type_identity<spec::Precision>()), recipe_.precision.compute)},
       {"threads", *recipe_.train.threads},
       {"changes", changes}});
  if (recipe_.run.device == spec::DeviceKind::kCpu)
    peak_flops_ = observe::peak_flops(recipe_.precision.compute == spec::Precision::kBf16 ? "bf16" : "fp32",
                                      *recipe_.train.threads * request_.local_ranks);
  log_info("{}: {} parameters, {}, {} a rank; {} of {} tokens; peak {}", family,
           short_count(static_cast<double>(parameters)), counted(static_cast<std::size_t>(world_.size()), "rank"),
           counted(static_cast<std::size_t>(*recipe_.train.threads), "thread"), counted(steps_, "step"),
           exact_count(spec::batch_at(recipe_.schedule, recipe_.batch, trainer_->position().tokens)),
           peak_flops_                                    ? fmt::format("{:.0f} GFLOP/s", *peak_flops_ / 1e9)
           : recipe_.run.device == spec::DeviceKind::kCpu ? "unknown (`trireme doctor` measures it)"
                                                          : "of the GPU not known (--profile compares)");
  if (world_.size() > 1) log_info("layout: {}", layout::to_text(trainer_->mesh()));
  if (const auto best = samples_->best_loss()) log_info("the best possible loss of this task is {:.4f}", *best);
  progress_ = std::make_unique<Progress>("train", steps_, "step");
}

void Run::record(const StepReport& report, std::int64_t memory, Clock::time_point begin) {
  const std::int64_t step = report.position.step;
  result_.step = step;
  result_.loss = report.loss;
  const std::int64_t every = recipe_.train.hash_every;
  const bool hashed = every > 0 && (step % every == 0 || step == steps_) && trainer_->at_rest();
  std::vector<nn::HashShare> shares;
  if (hashed) {
    trainer_->state();  // waits for updates that are still on their way
    shares = saving_->hashes();
  }
  if (!leads()) return;
  observe::StepRecord record{.step = step,
                             .loss = report.loss,
                             .grad_norm = report.gradient_norm,
                             .lr = report.learning_rate,
                             .tokens = report.position.tokens,
                             .memory = memory};
  if (hashed) {
    const std::uint64_t total = nn::total_hash(shares);
    std::vector<std::pair<std::string, std::uint64_t>> tensors;
    for (const nn::HashShare& share : shares) tensors.emplace_back(share.name, share.share);
    log_->hashes(step, total, tensors);
    record.hash = formats::hex(total);
  }
  if (!report.taken && !report.refused) {
    log_->event("skipped", {{"step", step}, {"why", "gradients overflowed fp16"}});
  }
  if (report.redone) log_->event("redone", {{"step", step}, {"why", "taken before the gradient norm was known"}});
  record.seconds = report.seconds.value_or(seconds_since(begin));
  record.tokens_per_s = static_cast<double>(report.batch) / record.seconds;
  if (peak_flops_) record.mfu = report.flops / record.seconds / *peak_flops_;
  record.breakdown = {.compute = report.compute_s, .data = report.data_s, .comm = report.comm_s};
  record.breakdown.overhead = std::max(0.0, record.seconds - report.compute_s - report.data_s - report.comm_s);
  log_->step(record);
  progress_->update(step, fmt::format("loss {:.4f}  {} tokens/s{}", report.loss, short_count(record.tokens_per_s),
                                      record.mfu ? fmt::format("  MFU {:.0f}%", *record.mfu * 100) : std::string()));
}

void Run::validate() {
  const auto begin = Clock::now();
  const std::int64_t count =
      validation_->epoch() > 0 ? std::min(validation_->epoch(), recipe_.eval.samples) : recipe_.eval.samples;
  const Evaluation evaluation = trainer_->evaluate(
      *validation_, {.count = count, .rows = recipe_.train.microbatch.value_or(std::min<std::int64_t>(count, 8))});
  validated_step_ = trainer_->position().step;
  if (evaluation.targets <= 0) throw ConfigError("the validation samples have no token with a loss");
  result_.validation_loss = evaluation.loss();
  saving_->note_metric(evaluation.loss());
  if (!leads()) return;
  log_->event("eval", {{"step", validated_step_},
                       {"loss", evaluation.loss()},
                       {"perplexity", evaluation.perplexity()},
                       {"samples", count},
                       {"seconds", seconds_since(begin)}});
  log_info("step {}: validation loss {:.4f}", validated_step_, evaluation.loss());
}

void Run::beat() {
  if (!leads()) return;
  observe::write_heartbeat(
      folder_.path,
      {.beats = ++beats_, .step = trainer_->position().step, .saved = saving_->saved_step(), .pid = ::getpid()});
}

/// Slow ranks are named, and copies compared.
void Run::look_after_ranks(const StepReport& report) {
  const std::int64_t step = report.position.step;
  for (const SlowRank& slow : stragglers_->note(report.compute_s + faults_->take_slowed_s())) {
    if (!leads()) continue;
    log_warn("rank {} computes {:.1f} times as long as the median rank", slow.rank, slow.times);
    log_->event("straggler", {{"step", step}, {"rank", slow.rank}, {"times", slow.times}});
    timeline_->tell("straggler", {{"step", step}, {"rank", slow.rank}, {"times", slow.times}});
  }
  const std::int64_t every = recipe_.health.compare_replicas;
  if (every <= 0 || step % every != 0 || !trainer_->at_rest()) return;
  const auto odd = compare_copies(trainer_->state(), world_);
  if (odd.empty()) {
    agreed_step_ = step;
    return;
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min<std::size_t>(odd.size(), 3); ++i) names.push_back(to_text(odd[i]));
  Error error(
      fmt::format("after step {} copies of the state are no longer the same: {}{}", step, fmt::join(names, "; "),
                  odd.size() > 3 ? fmt::format("; and {} more", odd.size() - 3) : std::string()),
      fmt::format("memory or a processor has failed silently since step {}: look at that machine, remove "
                  "checkpoints of later steps and resume",
                  agreed_step_));
  if (leads()) log_->event("copies_differ", {{"step", step}, {"why", error.message()}, {"agreed", agreed_step_}});
  timeline_->tell("copies_differ", {{"step", step}});
  throw error;
}

void Run::count_skip(const Error& error) {
  const std::int64_t step = trainer_->position().step + 1;
  if (++skips_ > recipe_.health.most_skips) {
    throw Error(fmt::format("{}; that was number {}, and health.most_skips is {}", error.message(), skips_,
                            recipe_.health.most_skips),
                "look at the data and the learning rate around that step");
  }
  if (!leads()) return;
  log_warn("{}: its update is left out", error.message());
  log_->event("skipped", {{"step", step}, {"why", error.message()}});
}

void Run::stop_for(Error& error, std::int64_t step) {
  const fs::path path = saving_->aside(trainer_->position(), fmt::format("diverged-step-{:08}", step));
  if (leads()) log_->event("diverged", {{"step", step}, {"why", error.message()}, {"path", path.string()}});
  error.add_context(fmt::format("the state before that step is in {}", path.string()));
  throw;  // the error that is being handled
}

void Run::treat(spec::SickPolicy policy, Error& error, std::int64_t step) {
  switch (policy) {
    case spec::SickPolicy::kSkip: {
      count_skip(error);
      trainer_->skip_step();
      StepReport report{
          .position = trainer_->position(), .loss = NAN, .gradient_norm = NAN, .taken = false, .refused = true};
      record(report, gather_news().memory, step_begun_);
      return;
    }
    case spec::SickPolicy::kRewind:
      rewind(error, step);
      return;
    case spec::SickPolicy::kIgnore:
    case spec::SickPolicy::kStop:
      stop_for(error, step);
  }
}

void Run::rewind(Error& error, std::int64_t step) {
  saving_->settle();
  if (++skips_ > recipe_.health.most_skips) stop_for(error, step);
  std::vector<formats::DamagedCheckpoint> damaged;
  const std::int64_t to = checkpoint::newest_whole(folder_.checkpoints(), world_, damaged,
                                                   std::max<std::int64_t>(0, step - 1 - recipe_.health.rewind));
  if (to < 0) {
    error.add_context(
        fmt::format("no checkpoint is {} steps older, so the run cannot be rewound", recipe_.health.rewind));
    stop_for(error, step);
  }
  trainer_->skip_step();
  const std::int64_t data = trainer_->position().tokens + trainer_->position().skipped;
  load_step(to);
  trainer_->skip_data_to(data);
  if (leads()) {
    // What came after belongs to a course that is given up.
    for (const std::int64_t later : formats::list_checkpoints(folder_.checkpoints())) {
      if (later > to) formats::remove_checkpoint(folder_.checkpoints(), later);
    }
    log_ = nullptr;
    log_ = std::make_unique<observe::RunLog>(folder_.path, to);
    saving_->log_to(*log_);
    log_warn("{}: back to step {}, and on with the data after that batch", error.message(), to);
    log_->event("rewound", {{"step", to}, {"from", step}, {"why", error.message()}});
  }
  timeline_->tell("rewound", {{"step", to}, {"from", step}});
  save_now();  // with what is skipped: a run that dies now goes on the same way
}

void Run::begin_saving() {
  save_wanted_ = false;
  trainer_->state();  // waits for updates that are still on their way
  saving_->begin(trainer_->position());
  // Where updates happen within steps that run together, the copy cannot lie beside them; nor beside a step that is
  // being recorded, which must be the only one to use the GPU.
  if (trainer_->engine().together() != nullptr || recipe_.train.capture) saving_->before_update();
}

void Run::save_now() {
  trainer_->state();
  saving_->now(trainer_->position());
}

void Run::begin_profile() {
  if (request_.profile == 0 || profile_ || trainer_->position().step != first_profiled_ || !leads()) return;
  profile_ = std::make_unique<StepProfile>(trainer_->device());
  profile_->start();
  profile_began_ = Clock::now();
}

void Run::end_profile() {
  if (!profile_ || trainer_->position().step != first_profiled_ + request_.profile) return;
  const std::int64_t parameters = spec::count_parameters(trainer_->shape()).total();
  // Norm and update read the gradient each; masters and moments are read and written, 16-bit weights written.
  const std::int64_t streams = 4 + 4 + 8 + 8 * spec::moments_of(recipe_.optim) + 2;
  log_info("{}", profile_->stop({.steps = request_.profile,
                                 .tokens = static_cast<double>(
                                     spec::batch_at(recipe_.schedule, recipe_.batch, trainer_->position().tokens)),
                                 .sequence = recipe_.data.sequence,
                                 .seconds = seconds_since(profile_began_),
                                 .parameter_bytes = parameters * streams},
                                trainer_->shape(), folder_.path / "profile.json"));
  profile_.reset();
  first_profiled_ = -1;
}

void Run::loop() {
  constexpr std::int64_t kWarmSteps = 3;  // libraries choose kernels and memory settles
  first_profiled_ = trainer_->position().step + kWarmSteps;
  if (request_.profile > 0 && recipe_.run.device == spec::DeviceKind::kCpu) {
    throw ConfigError("--profile shows what a GPU does, but run.device is \"cpu\"", "leave it out");
  }
  if (request_.profile > 0 && first_profiled_ + request_.profile > steps_) {
    throw ConfigError(fmt::format("--profile {} begins after {} steps, but {} are left", request_.profile, kWarmSteps,
                                  steps_ - trainer_->position().step),
                      fmt::format("set train.steps = {}", first_profiled_ + request_.profile));
  }
  const auto due = [&](std::int64_t every) { return every > 0 && trainer_->position().step % every == 0; };
  while (trainer_->position().step < steps_) {
    step_begun_ = Clock::now();
    const std::int64_t step = trainer_->position().step + 1;
    News news;
    begin_profile();
    try {
      if (faults_->drill()) faults_->before_step(step, trainer_->state());
      const StepReport report = trainer_->step();
      end_profile();
      news = gather_news();
      if (calls_) calls_->tell();
      record(report, news.memory, step_begun_);
      look_after_ranks(report);
    } catch (NotFiniteError& error) {
      treat(recipe_.health.not_finite, error, step);
      continue;
    } catch (LossSpike& error) {
      treat(recipe_.health.spike, error, step);
      continue;
    }
    save_wanted_ = save_wanted_ || news.save != 0;
    saving_->after_step(news.writing == 0);
    beat();
    if (!trainer_->at_rest()) continue;  // the next drain comes; an interrupted run goes on until then
    if (validation_ && due(recipe_.eval.every)) validate();
    if (trainer_->position().step >= steps_) break;
    if (news.stop != 0) {
      if (saving_->saved_step() != step) save_now();
      result_.end = RunResult::End::kInterrupted;
      if (leads()) observe::take_back_stop(folder_.path);
      if (leads()) log_->event("stop", {{"step", step}, {"why", "interrupted"}});
      timeline_->tell("stop", {{"step", step}, {"why", "interrupted"}});
      return;
    }
    if (saving_->is_due(step) || save_wanted_) begin_saving();
  }
  if (const std::string timeline = trainer_->timeline(); !timeline.empty()) {
    write_text_file(folder_.path / "pipeline.json", timeline);
  }
  if (validation_ && validated_step_ != steps_) validate();
  if (saving_->saved_step() != steps_) save_now();
  if (const std::string saves = saving_->summary(); !saves.empty()) log_info("{}", saves);
  if (leads()) log_->event("stop", {{"step", steps_}, {"why", "finished"}});
  timeline_->tell("stop", {{"step", steps_}, {"why", "finished"}});
}

RunResult Run::go() {
  steps_ = result_.steps = last_step(request_.recipe);
  plan_step(request_.recipe, {},
            {.length = request_.recipe.data.sequence});  // says what is wrong before anything is made
  const std::int64_t from_step = find_checkpoint();
  recipe_ = effective_recipe(request_, shape_from(from_step));
  at::set_num_threads(*recipe_.train.threads);
  if (from_step >= steps_) {
    result_.end = RunResult::End::kWasFinished;
    result_.step = from_step;
    return result_;
  }
  build(from_step);
  open_files(from_step);
  if (request_.explain) {
    const Explanation explanation = explain(*trainer_);
    if (leads()) log_info("{}", explanation.text());
  }
  const Interrupt interrupt(recipe_.checkpoint.grace);
  beat();
  loop();
  return result_;
}

}  // namespace

spec::Recipe effective_recipe(const RunRequest& request, const spec::ModelShape& shape) {
  spec::Recipe recipe = request.recipe;
  const auto init_from = recipe.model.init_from;
  recipe.model = spec::resolved(spec::config_of(shape));
  if (init_from) recipe.model.init_from = fs::absolute(*init_from).string();
  if (!recipe.train.threads) {
    recipe.train.threads = std::max(1, usable_cores() / std::max(1, request.local_ranks));
  }
  if (const auto tokenizer = tokenizer_file(recipe.data)) recipe.data.tokenizer = fs::absolute(*tokenizer).string();
  for (auto* sources : {&recipe.data.sources, &recipe.data.validation}) {
    for (spec::DataSource& source : *sources) source.path = fs::absolute(source.path).lexically_normal().string();
  }
  return recipe;
}

RunResult run(const RunRequest& request, comm::Rank& rank) {
  try {
    return Run(request, rank).go();
  } catch (const fs::filesystem_error& error) {  // a folder or copy that could not be made
    throw IoError(fmt::format("the run's directory {} cannot be used: {}", request.folder.string(), error.what()),
                  "look at its permissions and the space that is left");
  }
}

}  // namespace trireme::train
