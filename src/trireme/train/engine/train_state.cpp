#include "trireme/train/engine/train_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/device/cuda.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/parallel/matrix_owners.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/engine/device.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/require_rules.h"
#include "trireme/train/engine/step_driver.h"

namespace trireme::train {
namespace {

/// The recipe, which meets every rule. A serial reference runs the mathematics of other ranks than its own, and other
/// engines are told by whoever makes them what they run on.
const spec::Recipe& checked_recipe(const spec::Recipe& recipe, const spec::ModelShape& shape, const comm::Group& world,
                                   std::int64_t length, MakeEngine& make) {
  if (&make == &make_engine) require_rules(recipe, shape, world, length);
  return recipe;
}

/// Many small additions to fp16 or bf16 elements lose more than one rounding does.
void warn_of_rounded_sums(const spec::Recipe& recipe, const Share& share) {
  if (!spec::has_narrow_gradients(recipe.precision)) return;
  const std::size_t micros = plan_step(recipe, {}, share).microbatches.size();
  if (micros < 2) return;
  log_warn(
      "precision.gradients = \"{}\": the {} micros of a step add up in 16 bits, and each of them rounds; raise "
      "train.micro_batch_size, or set precision.gradients = \"fp32\"",
      name_in(spec::enum_names(std::type_identity<spec::Gradients>()), recipe.precision.gradients), micros);
}

/// Ranks that compute on this one's GPU, itself among them.
int count_sharing(const spec::Recipe& recipe, comm::Group& world) {
  const at::Device device = device_of(recipe, world);
  if (!device.is_cuda() || !world.has_processes()) return world.size();  // threads share what there is
  return parallel::ranks_that_share(world, device.index());
}

/// The matrices with delayed FP8 scales of all ranks, in the model's order: stages hold some of them each.
std::vector<std::string> scaled_matrices(Engine& engine, comm::Group& world) {
  const std::vector<std::string> mine = nn::Fp8History::names_of(*engine.layer_params());
  std::vector<std::uint8_t> scaled;
  for (const std::string& name : engine.all_names()) scaled.push_back(std::ranges::find(mine, name) != mine.end());
  if (world.size() > 1)
    world.all_reduce(comm::Buffer{scaled.data(), scaled.size(), comm::DType::kU8}, comm::Reduce::kMax).wait();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    if (scaled[i] != 0) names.push_back(engine.all_names()[i]);
  }
  return names;
}

/// The plan, which fits: on a GPU this is known before anything is allocated.
MemoryPlan planned_memory(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                          std::int64_t length, int sharing) {
  const at::Device device = device_of(recipe, world);
  MemoryPlan plan = plan_memory(recipe, shape, world.size(), length);
  if (plan.stages.empty()) return plan;
  std::int64_t all = 0, free = 0;
  device::cuda_runtime().mem_get_info(device.index(), &free, &all);
  require_room(plan, static_cast<double>(all), sharing);
  if (world.rank() == 0) {
    log_info("GPU memory: {} planned for the fullest of {}, of {}", short_bytes(plan.peak()),
             counted(static_cast<std::size_t>(world.size()), "rank"), short_bytes(static_cast<double>(all)));
  }
  return plan;
}

}  // namespace

Feeder::Feeder(const spec::Recipe& recipe, const data::Samples& samples, spec::Position from, Share share)
    : recipe_(recipe), share_(share), position_(from) {
  // The prefetch counts only steps in which this rank has rows; with more ranks than rows some have none.
  const auto plan = [this, at = from, last = last_step(recipe)](std::int64_t) mutable {
    while (at.step < last) {
      StepPlan step = plan_step(recipe_, at, share_);
      at = step.after;
      if (!step.microbatches.empty()) return std::move(step.microbatches);
    }
    return std::vector<std::vector<std::int64_t>>{};
  };
  const auto micros = static_cast<int>(plan_step(recipe, from, share).microbatches.size());
  prefetch_ = std::make_unique<data::Prefetch>(
      samples, plan,
      data::Prefetch::Options{.ahead = recipe.data.prefetch > 0 ? std::max(recipe.data.prefetch, 2 * micros) : 0});
}

Fetched Feeder::next() {
  Fetched fetched{.plan = plan_step(recipe_, position_, share_)};
  for (std::size_t micro = 0; micro < fetched.plan.microbatches.size(); ++micro) {
    auto [batch, waited_s] = prefetch_->next();
    if (micro + fetched.plan.fillers >= fetched.plan.microbatches.size()) {
      batch.filler = true;
      std::ranges::fill(batch.targets, data::kNoTarget);
    }
    fetched.batches.push_back(std::move(batch));
    fetched.waited_s += waited_s;
  }
  position_ = fetched.plan.after;
  return fetched;
}

StepScales scales_of(const nn::LossCounts& counts, double loss_scale) {
  return {.gradient = loss_scale / counts.targets, .sample = loss_scale / counts.samples};
}

TrainState::TrainState(const spec::Recipe& from, const spec::ModelShape& model, comm::Group& ranks,
                       const data::Samples& data, MakeEngine& make)
    : recipe(checked_recipe(from, model, ranks, data.length(), make)),
      world(ranks),
      samples(data),
      shape(model),
      memory(memory_of(recipe)),
      sharing(count_sharing(recipe, world)),
      planned(planned_memory(recipe, shape, world, samples.length(), sharing)),
      any_engine(telling_what_fills_the_gpu(
          recipe, shape, memory,
          [&] { return make(recipe, shape, world, samples.length(), preparation(recipe, shape, world)); })),
      engine(std::visit([](auto& any) -> Engine& { return *any; }, any_engine)) {
  if (world.rank() == 0) {
    warn_of_rounded_sums(recipe, engine.share());
    if (engine.data_parallel().device().is_cpu() && recipe.precision.compute == spec::Precision::kBf16)
      device::warn_of_unusable_amx();
  }
  optimizer = telling_what_fills_the_gpu(recipe, shape, memory, [&] {
    std::unique_ptr<optim::MatrixOwners> owners;
    if (parallel::MeshGroups* groups = engine.account().groups)
      owners = parallel::make_matrix_owners(recipe.optim, engine.params(), *groups,
                                            recipe.layout.delayed_update ? parallel::MeshGroups::kUpdateLane : 0);
    spec::OptimConfig optim = recipe.optim;
    if (recipe.train.mode == spec::TrainMode::kSandblaster)  // in its place L-BFGS updates
      optim = {.kind = spec::OptimizerKind::kSgd, .momentum = 0};
    return optim::make_optimizer(optim, engine.params(), std::move(owners));
  });
  engine.data_parallel().attach(*optimizer);
  if (recipe.train.noise_scale || recipe.batch.kind == spec::BatchKind::kNoise) {
    noise_scale = std::make_unique<NoiseScale>(engine, recipe.train.noise_scale_ema);
    noise_scale->add_state(registry);
  }
  if (recipe.optim.ema_decay) average = std::make_unique<WeightAverage>(engine.params(), *recipe.optim.ema_decay);
  updates = std::make_unique<Updates>(recipe.layout, engine, *optimizer, average.get());
  count_memory();
  if (recipe.train.contiguous_activations) arena = std::make_unique<nn::ActivationArena>();
  if (recipe.train.offload_activations) stash = std::make_unique<nn::Stash>(&memory, engine.data_parallel().device());
  if (recipe.precision.gemm == spec::GemmPrecision::kFp8Delayed) {
    fp8_history = std::make_unique<nn::Fp8History>(*engine.layer_params(), scaled_matrices(engine, world),
                                                   recipe.precision.fp8_history, recipe.precision.fp8_margin,
                                                   engine.data_parallel().device());
    fp8_history->add_state(registry);
  }
  if (nn::moe::Balance* balance = engine.balance()) {
    expert_layers = models::expert_layer_names(shape);
    balance->add_state(registry);
    if (recipe.model.init_from && shape.experts.bias_update_rate > 0 && !recipe.model.init_partial)
      checkpoint::StoredWeights(*recipe.model.init_from, shape).fill(*balance);
  }
  nn::add_params(registry, engine.params());
  const parallel::DataParallel& data_parallel = engine.data_parallel();
  optim::Optimizer::Place place;
  if (!data_parallel.reducer().drift_axes().empty())
    place = [&data_parallel](const nn::Param& param) { return data_parallel.placement_of_moments(param); };
  optimizer->add_state(registry, place);
  updates->add_state(registry);
  if (average) average->add_state(registry);
  engine.data_parallel().add_state(registry);
  if (recipe.precision.compute == spec::Precision::kFp16) {
    loss_scale = std::make_unique<optim::LossScale>(recipe.precision.loss_scale);
    loss_scale->add_state(registry);
  }
  if (shape.experts.move_experts && recipe.layout.ep > 1)
    expert_moves = std::make_unique<ExpertMoves>(engine, *updates, registry, world);
  registry.add_value(
      "train/position",
      [this] {
        nlohmann::ordered_json value{{"step", position.step}, {"tokens", position.tokens}};
        if (position.skipped != 0) value["skipped"] = position.skipped;
        if (position.batch != 0) value["batch"] = position.batch;
        return value;
      },
      [this](const nlohmann::ordered_json& value) {
        position = {.step = value.at("step").get<std::int64_t>(),
                    .tokens = value.at("tokens").get<std::int64_t>(),
                    .skipped = value.value("skipped", std::int64_t{0}),
                    .batch = value.value("batch", std::int64_t{0})};
      });
}

Fetched TrainState::fetch() {
  if (!feeder) feeder = std::make_unique<Feeder>(recipe, samples, position, engine.share());
  return feeder->next();
}

nn::LossCounts TrainState::count_losses(const Fetched& fetched) {
  double targets = 0;
  for (const data::Batch& batch : fetched.batches) targets += count_targets(batch);
  comm::Group& readers = engine.readers();
  if (readers.size() > 1) {
    readers.all_reduce(comm::Buffer{&targets, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  }
  if (targets > 0) return {.targets = targets, .samples = static_cast<double>(fetched.plan.samples)};
  throw ConfigError(fmt::format("no token of step {} has a loss", fetched.plan.after.step),
                    "look at the loss mask of the data, or at data.masking.probability");
}

nn::Context TrainState::context_for(const StepScales& scales, std::int64_t step) {
  nn::Context context;
  context.training = true;
  context.seed = static_cast<std::uint64_t>(recipe.run.seed);
  context.step = step;
  context.gradient_scale = scales.gradient;
  context.sample_scale = scales.sample;
  context.memory = &memory;
  context.arena = arena.get();
  context.stash = stash.get();
  context.events = events;
  context.rank = world.rank();
  return context;
}

/// Ranks run layers on other tokens, with parts of their matrices or not at all, so the largest over the whole world is
/// what one rank would have seen.
void TrainState::advance_scales() {
  if (!fp8_history) return;
  if (world.size() == 1) return fp8_history->advance();
  fp8_history->advance(
      [this](at::Tensor& largest) { world.all_reduce(device::to_buffer(largest), comm::Reduce::kMax).wait(); });
}

TrainState::Balanced TrainState::advance_balance(bool taken) {
  nn::moe::Balance* balance = engine.balance();
  if (balance == nullptr) return {};
  nn::moe::Balance::Sum sum;
  if (comm::Group* ranks = engine.load_ranks()) {
    sum = [ranks](std::span<std::int64_t> counts) {
      ranks->all_reduce(comm::Buffer{counts.data(), counts.size(), comm::DType::kI64}, comm::Reduce::kSum).wait();
    };
  }
  Balanced balanced{
      .loads = balance->advance(taken, expert_layers, static_cast<std::size_t>(shape.experts.num_experts), sum),
      .moved = {}};
  if (expert_moves && std::ranges::any_of(balanced.loads, [](const auto& layer) { return layer.moved > 0; })) {
    updates->wait();
    balanced.moved = expert_moves->carry_out(balanced.loads);
  }
  return balanced;
}

void TrainState::count_memory() {
  count_state(memory, engine.data_parallel(), optimizer->bytes() + (average ? average->bytes() : 0),
              recipe.layout.offload != spec::OffloadKind::kNone);
}

void TrainState::raise_non_finite(Fetched& fetched, const StepScales& scales, const std::string& what) {
  updates->wait();  // the state that is saved then has to be complete
  const std::string where =
      engine.first_not_finite(fetched.batches, [&] { return context_for(scales, position.step); });
  throw NonFiniteError(
      fmt::format("at step {} {}: {}", position.step + 1, what, where),
      "a lower optim.learning_rate, a longer lr_schedule.warmup or optim.grad_clip_norm = 1 often helps",
      position.step + 1);
}

}  // namespace trireme::train
