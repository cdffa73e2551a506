#include "trireme/train/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <array>
#include <chrono>

#include "trireme/base/cores.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/progress.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/gather.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/store.h"
#include "trireme/cost/cost_table.h"
#include "trireme/data/open_samples.h"
#include "trireme/kernels/cuda.h"
#include "trireme/observe/peak_file.h"
#include "trireme/observe/run_log.h"
#include "trireme/train/call_trace.h"
#include "trireme/train/evaluate.h"
#include "trireme/train/explain.h"
#include "trireme/train/interrupt.h"
#include "trireme/train/profile.h"
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
  };
  News exchange(News news);

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
  void save();
  void write(const nn::State& state);
  void with_whole_state(const std::function<void(const nn::State&)>& look);
  [[noreturn]] void save_what_diverged(NotFiniteError& error);

  const RunRequest& request_;
  comm::Rank& rank_;
  comm::Group& world_;
  RunFolder folder_;
  spec::Recipe recipe_;
  std::int64_t steps_ = 0;
  std::unique_ptr<data::Samples> samples_, validation_;
  spec::Recipe trained_;  // what the trainer goes by, and borrows
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CallTrace> calls_;  // where a trace is kept
  RunResult result_;
  std::int64_t saved_step_ = -1, validated_step_ = -1;
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
  std::array<std::int64_t, 2> numbers{news.stop, news.memory};
  if (world_.size() > 1) {
    world_.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kI64}, comm::Reduce::kMax).wait();
  }
  return {numbers[0], numbers[1]};
}

/// A checkpoint knows the shape: the folder that the run once began from may be gone.
spec::ModelShape Run::shape_from(std::int64_t from_step) const {
  if (from_step < 0 || !request_.recipe.model.init_from) return model_shape(request_.recipe);
  return spec::with_keys(checkpoint::stored_shape(folder_.checkpoints() / formats::checkpoint_name(from_step)),
                         request_.recipe.model);
}

/// The step to go on from: -1 for the beginning.
std::int64_t Run::find_checkpoint() {
  if (!leads()) return told(0);
  if (!request_.resume) {
    checkpoint::begin_run(folder_);
    return told(-1);
  }
  std::vector<formats::DamagedCheckpoint> damaged;
  const auto newest = formats::newest_checkpoint(folder_.checkpoints(), damaged);
  for (const auto& [where, why] : damaged) log_warn("{} is damaged and not used: {}", where.string(), why);
  if (!newest) {
    log_info("{} has no {}checkpoint: the run starts from the beginning", folder_.path.string(),
             damaged.empty() ? "" : "whole ");
    fs::create_directories(folder_.path);
    return told(-1);
  }
  log_info("going on from {}", newest->path().string());
  return told(newest->manifest().step);
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
  if (from_step < 0) return;
  checkpoint::load(formats::CheckpointFolder(folder_.checkpoints() / formats::checkpoint_name(from_step)),
                   trainer_->state());
  trainer_->loaded();
  saved_step_ = validated_step_ = from_step;
}

void Run::open_files(std::int64_t from_step) {
  if (!leads()) return;
  log_copy_ = std::make_unique<LogCopy>(folder_.log().string());
  const auto changes = request_.resume ? checkpoint::recipe_changes(folder_, recipe_) : std::vector<std::string>{};
  for (const std::string& change : changes) log_info("the recipe has changed: {}", change);
  log_ = std::make_unique<observe::RunLog>(
      folder_.path, request_.resume ? std::optional(std::max<std::int64_t>(from_step, 0)) : std::nullopt);
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
  if (hashed) with_whole_state([&](const nn::State& state) { shares = nn::hash_shares(state, layout::Mesh{}, 0); });
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
  if (!report.taken) log_->event("skipped", {{"step", step}, {"why", "gradients overflowed fp16"}});
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
  if (!leads()) return;
  log_->event("eval", {{"step", validated_step_},
                       {"loss", evaluation.loss()},
                       {"perplexity", evaluation.perplexity()},
                       {"samples", count},
                       {"seconds", seconds_since(begin)}});
  log_info("step {}: validation loss {:.4f}", validated_step_, evaluation.loss());
}

/// Rank 0 looks at the state of all ranks.
void Run::with_whole_state(const std::function<void(const nn::State&)>& look) {
  const nn::State whole = checkpoint::gather_whole(trainer_->state(), world_);
  if (leads()) look(whole);
}

void Run::save() {
  saved_step_ = trainer_->position().step;
  with_whole_state([&](const nn::State& state) { write(state); });
}

void Run::write(const nn::State& state) {
  const auto begin = Clock::now();
  const bool last = saved_step_ == steps_;
  try {
    const fs::path path =
        checkpoint::save(state, {.folder = folder_.checkpoints(),
                                 .step = saved_step_,
                                 .tokens = trainer_->position().tokens,
                                 .files = {{std::string(formats::kRecipeFile), config::to_toml(recipe_)}}});
    formats::prune_checkpoints(folder_.checkpoints(), recipe_.checkpoint.keep);
    log_->event("checkpoint", {{"step", saved_step_}, {"path", path.string()}, {"seconds", seconds_since(begin)}});
    log_debug("saved {}", path.string());
  } catch (const IoError& error) {
    // The run is worth more than one checkpoint; the last one must be there, though.
    if (last || Interrupt::requested()) throw;
    log_warn("the checkpoint of step {} could not be written, the run goes on: {}", saved_step_, error.message());
    log_->event("checkpoint_failed", {{"step", saved_step_}, {"why", error.message()}});
  }
}

void Run::save_what_diverged(NotFiniteError& error) {
  with_whole_state([&](const nn::State& state) {
    const fs::path path =
        checkpoint::save(state, {.folder = folder_.path,
                                 .name = fmt::format("diverged-step-{:08}", error.step()),
                                 .step = trainer_->position().step,
                                 .tokens = trainer_->position().tokens,
                                 .files = {{std::string(formats::kRecipeFile), config::to_toml(recipe_)}}});
    log_->event("diverged", {{"step", error.step()}, {"why", error.message()}, {"path", path.string()}});
    error.add_context(fmt::format("the state before that step is in {}", path.string()));
  });
  throw;  // the error that is being handled
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
    const auto begin = Clock::now();
    News news;
    begin_profile();
    try {
      const StepReport report = trainer_->step();
      end_profile();
      news = exchange({.stop = Interrupt::requested(), .memory = most_memory()});
      if (calls_) calls_->tell();
      record(report, news.memory, begin);
    } catch (NotFiniteError& error) {
      save_what_diverged(error);
    }
    if (!trainer_->at_rest()) continue;  // the next drain comes; an interrupted run goes on until then
    if (validation_ && due(recipe_.eval.every)) validate();
    if (due(recipe_.checkpoint.every)) save();
    if (news.stop != 0 && trainer_->position().step < steps_) {
      if (saved_step_ != trainer_->position().step) save();
      result_.end = RunResult::End::kInterrupted;
      if (leads()) log_->event("stop", {{"step", saved_step_}, {"why", "interrupted"}});
      return;
    }
  }
  if (const std::string timeline = trainer_->timeline(); !timeline.empty()) {
    write_text_file(folder_.path / "pipeline.json", timeline);
  }
  if (validation_ && validated_step_ != steps_) validate();
  if (saved_step_ != steps_) save();
  if (leads()) log_->event("stop", {{"step", steps_}, {"why", "finished"}});
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
  const Interrupt interrupt;
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
