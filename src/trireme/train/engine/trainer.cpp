#include "trireme/train/engine/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/device/tiles.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/fp8.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/engine/device.h"
#include "trireme/train/engine/drains.h"
#include "trireme/train/engine/feed.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

/// `all` names the whole model's parameters, of which this rank may hold a part.
void freeze(nn::Params& params, const std::vector<std::string>& all, const std::vector<std::string>& patterns) {
  const auto frozen = [&](const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const auto& pattern) { return spec::matches(pattern, name); });
  };
  for (const std::string& pattern : patterns) {
    if (std::any_of(all.begin(), all.end(), [&](const auto& name) { return spec::matches(pattern, name); })) continue;
    throw ConfigError(fmt::format("train.freeze: no parameter is called \"{}\"{}", pattern, did_you_mean(pattern, all)),
                      "'*' stands for any text: \"layers.0.*\"");
  }
  if (std::all_of(all.begin(), all.end(), frozen)) {
    throw ConfigError("train.freeze matches every parameter, so there is nothing to train", "leave some out");
  }
  for (nn::Param& param : params) param.trainable = !frozen(param.name);
}

/// Matrices of blocks, but for those that the recipe keeps.
void choose_products(nn::Params& params, const std::vector<std::string>& all, const spec::PrecisionConfig& precision) {
  if (precision.gemm == spec::GemmPrecision::kSame) return;
  for (const std::string& pattern : precision.gemm_exclude) {
    if (std::any_of(all.begin(), all.end(), [&](const auto& name) { return spec::matches(pattern, name); })) continue;
    throw ConfigError(
        fmt::format("precision.gemm_exclude: no parameter is called \"{}\"{}", pattern, did_you_mean(pattern, all)),
        "'*' stands for any text: \"layers.0.*\"");
  }
  for (nn::Param& param : params) {
    const bool inside = param.name.starts_with("layers.") || param.name.starts_with("encoder.");
    const bool kept = std::any_of(precision.gemm_exclude.begin(), precision.gemm_exclude.end(),
                                  [&](const auto& pattern) { return spec::matches(pattern, param.name); });
    if (!inside || kept || param.placement.shape.size() != 2) continue;
    const auto sizes = nn::local_shape(param.placement);
    const auto scaling =
        precision.gemm == spec::GemmPrecision::kFp8Blocks ? kernels::Fp8Scaling::kBlocks128x128 : kernels::Fp8Scaling::kTensor;
    if (!kernels::takes_fp8(scaling, sizes[0], sizes[1])) {
      throw ConfigError(fmt::format("precision.gemm: {} is {} x {} on a rank, which are no multiples of {}", param.name,
                                    sizes[0], sizes[1], precision.gemm == spec::GemmPrecision::kFp8Blocks ? 128 : 16),
                        fmt::format("add \"{}\" to precision.gemm_exclude, or choose other sizes", param.name));
    }
    param.gemm = precision.gemm;
  }
}

/// Vectors always have masters: they are few numbers. So are tables beside a large model's blocks. Gradients of 16 bits
/// have all but vectors, which add up over all tokens and cost no memory.
void choose_types(nn::Params& params, const spec::PrecisionConfig& precision) {
  for (nn::Param& param : params) {
    const std::size_t dimensions = param.placement.shape.size();
    const bool inside = param.name.starts_with("layers.") || param.name.starts_with("encoder.");
    const bool tables = precision.master_weights == spec::MasterWeights::kVectors;
    param.has_master = precision.master_weights == spec::MasterWeights::kFp32 || dimensions != 2 || !(inside || tables);
    param.narrow_gradient = spec::has_narrow_gradients(precision) && dimensions >= 2;
  }
}

/// Many small additions to numbers of 16 bits lose more than one rounding does.
void warn_of_rounded_sums(const spec::Recipe& recipe, const Share& share) {
  if (!spec::has_narrow_gradients(recipe.precision)) return;
  const std::size_t micros = plan_step(recipe, {}, share).microbatches.size();
  if (micros < 2) return;
  log_warn(
      "precision.gradients = \"{}\": the {} micros of a step add up in 16 bits, and each of them rounds; raise "
      "train.micro_batch_size, or set precision.gradients = \"fp32\"",
      name_in(spec::enum_names(std::type_identity<spec::Gradients>()), recipe.precision.gradients), micros);
}

/// Freezes, and gives parameters the numbers they begin with: drawn, or another model's.
PrepareParams preparation(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world) {
  PrepareParams prepare;
  prepare.freeze = [&recipe](nn::Params& params, const std::vector<std::string>& all) {
    freeze(params, all, recipe.train.freeze);
    choose_products(params, all, recipe.precision);
    choose_types(params, recipe.precision);
  };
  prepare.fill = [&recipe, &shape, &world](nn::Params& params) {
    const at::Device device = device_of(recipe, world);
    if (!recipe.model.init_from) {
      nn::initialise(params, recipe.precision.compute, static_cast<std::uint64_t>(recipe.run.seed), device);
      return;
    }
    nn::allocate(params, recipe.precision.compute, device);
    checkpoint::StoredWeights(*recipe.model.init_from, shape).fill(params);  // this rank's part alone
  };
  return prepare;
}

/// Ranks that compute on this one's GPU, itself among them.
int count_sharing(const spec::Recipe& recipe, comm::Group& world) {
  const at::Device device = device_of(recipe, world);
  if (!device.is_cuda() || !world.has_processes()) return world.size();  // threads share what there is
  return parallel::ranks_that_share(world, device.index());
}

/// The plan, which fits: on a GPU this is known before anything is allocated.
plan::StepMemory planned_memory(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                std::int64_t length, int sharing) {
  const at::Device device = device_of(recipe, world);
  plan::StepMemory plan = plan_memory(recipe, shape, world.size(), length);
  if (plan.lines.empty()) return plan;
  std::int64_t all = 0, free = 0;
  kernels::cuda().device_bytes(device.index(), &all, &free);
  require_room(plan, static_cast<double>(all), sharing);
  if (world.rank() == 0) {
    log_info("GPU memory: {} planned for each of {}, of {}", short_bytes(plan.peak()),
             counted(static_cast<std::size_t>(world.size()), "rank"), short_bytes(static_cast<double>(all)));
  }
  return plan;
}

/// Numbers of all ranks, added up.
template <std::size_t kCount>
void add_up(comm::Group& world, std::array<double, kCount>& numbers) {
  if (world.size() == 1) return;
  world.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
}

}  // namespace

spec::ModelShape model_shape(const spec::Recipe& recipe) {
  if (!recipe.model.init_from) {
    if (const auto shape = spec::shape_of(recipe.model)) return *shape;
    throw ConfigError("the recipe has no model", "set model.family, for instance --set model.family=gpt2");
  }
  const spec::ModelShape published = checkpoint::stored_shape(*recipe.model.init_from);
  if (recipe.model.family && *recipe.model.family != published.family) {
    const auto names = spec::enum_names(std::type_identity<spec::Family>());
    throw ConfigError(fmt::format("model.family is {}, but {} holds a {}", name_in(names, *recipe.model.family),
                                  *recipe.model.init_from, name_in(names, published.family)),
                      "leave model.family out: the folder says it");
  }
  return spec::with_keys(published, recipe.model);
}

Trainer::Trainer(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                 const data::Samples& samples, MakeEngine& make)
    : recipe_(recipe),
      world_(world),
      samples_(samples),
      shape_(shape),
      memory_(memory_of(recipe)),
      sharing_(count_sharing(recipe, world)),
      planned_(planned_memory(recipe, shape_, world, samples.length(), sharing_)),
      engine_(telling_what_fills_the_gpu(recipe, shape_, memory_, [&] {
        return make(recipe, shape_, world, samples.length(), preparation(recipe, shape_, world));
      })) {
  if (auto problems = spec::find_problems(recipe.optim, engine_->all_names()); !problems.empty()) {
    throw config::ProblemsError("the recipe", std::move(problems));
  }
  if (samples.length() > shape.max_seq_len && shape.position_kind == spec::PositionKind::kLearned) {
    throw ConfigError(
        fmt::format("data.seq_len is {}, but the model has {} positions", samples.length(), shape.max_seq_len),
        fmt::format("set model.max_seq_len = {}", samples.length()));
  }
  if (world.rank() == 0) {
    warn_of_rounded_sums(recipe, engine_->share());
    if (device().is_cpu() && recipe.precision.compute == spec::Precision::kBf16) device::tell_of_hollow_tiles();
  }
  optimizer_ = telling_what_fills_the_gpu(recipe, shape_, memory_,
                                          [&] { return optim::make_optimizer(recipe.optim, engine_->params()); });
  updates_ = std::make_unique<Updates>(recipe.layout, *engine_, *optimizer_);
  if (device().is_cuda() && world.rank() == 0) {
    watch_ = std::make_unique<MemoryWatch>(device(), planned_.peak() * (world.has_processes() ? 1 : sharing_));
  }
  count_memory();
  if (recipe.train.offload_activations)
    stash_ = std::make_unique<nn::Stash>(&memory_, engine_->data_parallel().device());
  if (recipe.precision.gemm == spec::GemmPrecision::kFp8Delayed) {
    nn::Params* params = engine_->layer_params();
    TRIREME_CHECK(params != nullptr, "this rank does not run all layers, whose scales ranks agree on");
    scales_ =
        std::make_unique<nn::Fp8History>(*params, recipe.precision.fp8_history, recipe.precision.fp8_margin, device());
    scales_->add_state(state_);
  }
  nn::add_params(state_, engine_->params());
  optimizer_->add_state(state_);
  updates_->add_state(state_);
  if (recipe.precision.compute == spec::Precision::kFp16) {
    loss_scale_ = std::make_unique<optim::LossScale>(recipe.precision.loss_scale);
    loss_scale_->add_state(state_);
  }
  state_.add_value(
      "train/position",
      [this] {
        nlohmann::ordered_json value{{"step", position_.step}, {"tokens", position_.tokens}};
        if (position_.skipped != 0) value["skipped"] = position_.skipped;
        return value;
      },
      [this](const nlohmann::ordered_json& value) {
        position_ = {.step = value.at("step").get<std::int64_t>(),
                     .tokens = value.at("tokens").get<std::int64_t>(),
                     .skipped = value.value("skipped", std::int64_t{0})};
      });
}

void Trainer::loaded() {
  TRIREME_CHECK(under_way_.empty(), "a state was read while a step is under way");
  updates_->loaded();
  feeder_.reset();
  told_later_.clear();
}

void Trainer::count_memory() {
  count_state(memory_, engine_->data_parallel(), *optimizer_, recipe_.layout.offload != spec::OffloadKind::kNone);
}

nn::Context Trainer::context_for(double gradient_scale, std::int64_t step) {
  nn::Context context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(recipe_.run.seed);
  context.step = step;
  context.gradient_scale = gradient_scale;
  context.memory = &memory_;
  context.stash = stash_.get();
  context.events = events_;
  context.rank = world_.rank();
  return context;
}

models::Model& Trainer::model() {
  models::Model* whole = engine_->whole_model();
  TRIREME_CHECK(whole != nullptr, "this rank holds only a part of the model");
  return *whole;
}

Evaluation Trainer::evaluate(const data::Samples& samples, const EvaluateOptions& options) {
  TRIREME_CHECK(at_rest(), "weights are evaluated after step {}, in the midst of steps that ran together",
                position_.step);
  return engine_->evaluate(samples, options);
}

double Trainer::count_all_targets(const std::vector<data::Batch>& batches, std::int64_t step) {
  std::array<double, 1> targets{0};
  for (const data::Batch& batch : batches) targets[0] += count_targets(batch);
  add_up(engine_->readers(), targets);
  if (targets[0] > 0) return targets[0];
  throw ConfigError(fmt::format("no token of step {} has a loss", step),
                    "look at the loss mask of the data, or at data.masking.probability");
}

/// Runs the steps up to the next drain; their reports wait to be told.
void Trainer::run_together(MultiStepEngine& engine) {
  const auto steps = static_cast<int>(steps_until_drain(recipe_, engine.drain_every(), position_, engine_->share()));
  std::vector<double> targets;
  const auto prepare = [&](int) {
    Fetched fetched = feeder_->next();
    StepReport& report = told_later_.emplace_back();
    report.position = fetched.plan.after;
    report.learning_rate = fetched.plan.hyperparameters.learning_rate;
    report.batch = fetched.plan.hyperparameters.batch;
    report.data_s = fetched.waited_s;
    targets.push_back(count_all_targets(fetched.batches, fetched.plan.after.step));
    const double scale = 1 / targets.back();
    return StepWork{.batches = std::move(fetched.batches),
                    .contexts = [this, scale, step = fetched.plan.before.step] { return context_for(scale, step); },
                    .learning_rate = report.learning_rate};
  };
  const auto micros = static_cast<int>(plan_step(recipe_, position_, engine_->share()).microbatches.size());
  std::vector<StepMade> made;
  try {
    made =
        engine.run_steps({.steps = steps, .micros = micros, .work = prepare, .look = look_, .optimizer = *optimizer_});
  } catch (Error& error) {
    error.add_context(fmt::format("in steps {} to {}, which run together", position_.step + 1, position_.step + steps));
    throw;
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    StepReport& report = told_later_[i];
    report.loss = made[i].loss / targets[i];
    report.gradient_norm = made[i].gradient_norm;
    report.flops = made[i].flops;
    report.comm_s = made[i].comm_s;
    report.seconds = made[i].seconds;
    report.redone = made[i].redone;
    report.compute_s = std::max(0.0, made[i].seconds - made[i].comm_s - report.data_s);
  }
}

StepReport Trainer::step() {
  StepReport report = telling_what_fills_the_gpu(recipe_, shape_, memory_, [this] { return take_step(); });
  if (watch_) watch_->step_ended();
  return report;
}

StepReport Trainer::take_step() {
  if (!feeder_) {
    feeder_ = std::make_unique<Feeder>(recipe_, samples_, position_, engine_->share());
  }
  if (MultiStepEngine* together = engine_->together()) {
    if (told_later_.empty()) run_together(*together);
    StepReport report = told_later_.front();
    told_later_.pop_front();
    position_ = report.position;
    return report;
  }
  if (delayed_update_) return step_ahead();
  StepReport report;
  Fetched fetched = feeder_->next();
  report.data_s = fetched.waited_s;

  auto begin = Clock::now();
  const double targets = count_all_targets(fetched.batches, position_.step + 1);
  report.comm_s += seconds_since(begin);
  const double scale = (loss_scale_ ? loss_scale_->scale() : 1.0) / targets;

  begin = Clock::now();
  nn::zero_grad(engine_->params());
  const StepSums sums = engine_->run(fetched.batches, [&] { return context_for(scale); });
  report.comm_s += sums.comm_s;
  report.compute_s += seconds_since(begin) - sums.comm_s;
  report.loss = sums.loss / targets;
  report.flops = sums.flops;
  if (!std::isfinite(report.loss)) explain(fetched, scale, fmt::format("the loss is {}", report.loss));

  report.learning_rate = fetched.plan.hyperparameters.learning_rate;
  report.batch = fetched.plan.hyperparameters.batch;
  report.refused = judge_ && !judge_(report.loss);
  if (report.refused) {
    report.taken = false;
    position_ = report.position = fetched.plan.after;
    return report;
  }
  if (look_) look_(engine_->params());
  begin = Clock::now();
  optim::UpdateResult result;
  try {
    result = updates_->take(
        {.learning_rate = report.learning_rate, .loss_scale = loss_scale_.get(), .across = engine_->across()},
        position_.step);
  } catch (const optim::NonFiniteGradients& error) {
    explain(fetched, scale, fmt::format("the loss is {}, but {}", report.loss, error.message()));
  }
  advance_scales();
  count_memory();
  report.compute_s += seconds_since(begin);
  report.taken = result.taken;
  report.gradient_norm = result.gradient_norm;
  position_ = fetched.plan.after;
  report.position = position_;
  return report;
}

/// Every rank runs all layers, on other tokens or with parts of their matrices, so the largest over the whole world is
/// what one rank would have seen. All follow the same matrices: they are chosen by names and numbers of dimensions,
/// which no layout without stages changes; if ranks did differ, the group would find calls of different lengths.
void Trainer::advance_scales() {
  if (!scales_) return;
  if (world_.size() == 1) return scales_->advance();
  scales_->advance(
      [this](at::Tensor& largest) { world_.all_reduce(device::to_buffer(largest), comm::Reduce::kMax).wait(); });
}

bool Trainer::run_ahead() {
  if (delayed_update_) return true;
  const bool plain = world_.size() == 1 && !loss_scale_ && !judge_ && !look_ && !recipe_.layout.delayed_update &&
                     recipe_.layout.offload == spec::OffloadKind::kNone && engine_->together() == nullptr;
  if (!plain || !optimizer_->can_be_recorded() || !engine_->leave_losses(true)) return false;
  delayed_update_ = std::make_unique<DelayedUpdate>(*optimizer_);
  return true;
}

void Trainer::start_ahead() {
  UnderWay next{.fetched = feeder_->next()};
  const StepPlan& plan = next.fetched.plan;
  next.report.position = plan.after;
  next.report.data_s = next.fetched.waited_s;
  next.report.learning_rate = plan.hyperparameters.learning_rate;
  next.report.batch = plan.hyperparameters.batch;
  next.targets = count_all_targets(next.fetched.batches, plan.after.step);
  next.scale = 1.0 / next.targets;
  const auto begin = Clock::now();
  nn::zero_grad(engine_->params());
  const StepSums sums =
      engine_->run(next.fetched.batches, [&, scale = next.scale] { return context_for(scale, plan.before.step); });
  delayed_update_->start(sums.pending, next.report.learning_rate);
  advance_scales();
  engine_->updated();
  next.report.flops = sums.flops;
  next.report.compute_s = seconds_since(begin);
  under_way_.push_back(std::move(next));
}

StepReport Trainer::step_ahead() {
  if (under_way_.empty()) start_ahead();
  const std::int64_t step = under_way_.front().report.position.step;
  const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
  const bool rests = std::exchange(rest_soon_, false) || step >= last_step(recipe_) || due(recipe_.eval.every) ||
                     due(recipe_.checkpoint.every) || due(recipe_.train.hash_every);
  if (!rests && under_way_.size() == 1) start_ahead();
  const auto begin = Clock::now();
  const DelayedUpdate::Told told = delayed_update_->wait();
  UnderWay done = std::move(under_way_.front());
  under_way_.pop_front();
  done.report.loss = told.loss / done.targets;
  done.report.gradient_norm = told.gradient_norm;
  if (!told.taken) give_up_ahead(done, told);
  count_memory();
  done.report.compute_s += seconds_since(begin);
  position_ = done.report.position;
  return done.report;
}

/// The weights are those before this step: nothing was updated since.
void Trainer::give_up_ahead(UnderWay& sick, const DelayedUpdate::Told& told) {
  while (delayed_update_->waiting() > 0) delayed_update_->wait();
  under_way_.clear();
  delayed_update_->go_on();
  feeder_.reset();
  nn::zero_grad(engine_->params());
  const bool loss = !std::isfinite(told.loss);
  explain(
      sick.fetched, sick.scale,
      loss ? fmt::format("the loss is {}", sick.report.loss)
           : fmt::format("the loss is {}, but the norm of its gradient is {}", sick.report.loss, told.gradient_norm));
}

void Trainer::rehearse() {
  Feeder feeder(recipe_, samples_, position_, engine_->share());
  Fetched fetched = feeder.next();
  nn::zero_grad(engine_->params());
  engine_->run(fetched.batches, [&] { return context_for(1.0); });
  nn::zero_grad(engine_->params());
  updates_->send_again();
}

void Trainer::skip_step() { position_ = plan_step(recipe_, position_, engine_->share()).after; }

void Trainer::skip_data_to(std::int64_t tokens) {
  position_.skipped = tokens - position_.tokens;
  feeder_.reset();
}

void Trainer::explain(Fetched& fetched, double gradient_scale, const std::string& what) {
  updates_->wait();  // the state that is saved then has to be complete
  const std::string where = engine_->first_not_finite(fetched.batches, [&] { return context_for(gradient_scale); });
  throw NonFiniteError(
      fmt::format("at step {} {}: {}", position_.step + 1, what, where),
      "a lower optim.learning_rate, a longer lr_schedule.warmup or optim.grad_clip_norm = 1 often helps",
      position_.step + 1);
}

}  // namespace trireme::train
