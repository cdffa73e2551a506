#include "trireme/train/engine/staged_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/reduction.h"
#include "trireme/plan/run_setup.h"
#include "trireme/schedule/interleave.h"
#include "trireme/spec/rules.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/pipeline_table.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> names_of(const pipeline::Stage& stage) {
  std::vector<std::string> names;
  for (const pipeline::ParamHolders& held : stage.param_holders) names.push_back(held.param);
  return names;
}

/// Of each chunk.
std::vector<int> mixtures_of(const models::Model& model, const pipeline::Split& split) {
  std::vector<int> mixtures;
  for (const pipeline::LayerRange& chunk : split) {
    int& count = mixtures.emplace_back(0);
    for (std::size_t entry = chunk.begin; entry < chunk.end; ++entry) {
      count += static_cast<int>(std::ranges::count_if(
          model.layers[entry].params, [](const nn::Param* param) { return param->name.ends_with(".router.weight"); }));
    }
  }
  return mixtures;
}

/// In an execution that updates nothing weights stay as they are, whatever its schedule would predict.
class UnchangedWeights final : public pipeline::WeightPredictor {
 public:
  at::Tensor after(const nn::Param& param, int) override { return param.value; }
};

/// A pipeline that is empty between steps: one execution of a table gives a step's gradients.
class PipelineEngine final : public PipelineEngineOf<SingleStepEngine> {
 public:
  using PipelineEngineOf::PipelineEngineOf;
  StepSums compute(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    return staged_->execute(batches, contexts);
  }
  const optim::AcrossRanks* across() override { return staged_->across(); }
};

}  // namespace

bool runs_several_steps(const spec::Recipe& recipe) {
  return is_asynchronous(recipe) || spec::steps_between_drains(recipe, false) > 1;
}

double busy_seconds(const pipeline::RunReport& report) {
  double busy_s = 0;
  for (const pipeline::ExecutedInstruction& span : report.spans) {  // passes come first among the operations
    if (schedule::is_pass(span.instruction.op)) {
      busy_s += std::chrono::duration<double>(span.end - span.start).count();
    }
  }
  return busy_s;
}

StagedModel::StagedModel(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                         std::int64_t length, const PrepareParams& prepare)
    : recipe_(recipe),
      world_(world),
      parallel_groups_(form(recipe, shape, world, length)),
      pipeline_(*parallel_groups_->pipeline),
      loss_reducer_(world),
      dropping_(recipe, shape) {
  share_ = share_of(recipe, *parallel_groups_, length);
  share_.micro_batch_size = pipeline_microbatch(recipe);
  share_.lockstep = true;  // pipelines side by side reduce gradients where their tables say
  // Which chunks a rank holds does not depend on the number of micros, so any will do to build its stage.
  const StepPlan first = plan_step(recipe, {}, share_);
  const auto micros = static_cast<int>(first.microbatches.size());
  const int steps = runs_several_steps(recipe)
                        ? static_cast<int>(steps_until_drain(
                              recipe, spec::steps_between_drains(recipe, is_asynchronous(recipe)), {}, share_))
                        : 1;
  models::BuildOptions build = build_options(recipe);
  build.parallel = &parallel_groups_->parallel;
  build.adapt = prepare.adapt;
  dropping_.prepare(build);
  const models::BuildOptions of_whole = cut_options(recipe);
  cut_ =
      cut_pipeline({.recipe = recipe,
                    .shape = shape,
                    .build = of_whole,
                    .chunks = recipe.pipeline.replicates_stages() ? 0 : pipeline_table(recipe, micros, steps).chunks(),
                    .rows = static_cast<std::int64_t>(first.microbatches.front().size()),
                    .length = length,
                    .world = world,
                    .pipeline = &pipeline_,
                    .worker = parallel_groups_->dp_rank});
  // Layers that a step drops have no parts in it.
  if (shape.experts.used() && recipe.layout.ep > 1 && recipe.pipeline.overlap_experts && !dropping_.used() &&
      !runs_several_steps(recipe))
    mixtures_ = mixtures_of(*models::build(shape, of_whole), cut_.split);
  const schedule::Schedule table = make_table(micros, steps);
  halves_micros_ = table.micro_parts > 1;
  experts_lead_ = recipe.batch.kind == spec::BatchKind::kConstant && plan::first_micro_leads(table);
  plan_chunks(shape, build, table.chunks());
  stage_ = pipeline::build_stage({.shape = shape,
                                  .table = table,
                                  .split = cut_.split,
                                  .precision = recipe.precision.compute,
                                  .rank = parallel_groups_->stage,
                                  .build = build});
  form_wave_groups(table, of_whole);
  for (int chunk = 0; chunk < table.chunks(); ++chunk) {
    holders_.push_back(schedule::holders_of(table, chunk).front());
  }
  if (std::ranges::find(stage_.model->layers, "head", &models::NamedLayer::name) != stage_.model->layers.end())
    teacher_ = make_teacher(recipe, shape, parallel_groups_->parallel, parallel_groups_->device);
  prepare.freeze(stage_.model->params, names_of(stage_));
  parallel::DataParallelOptions options = data_parallel_options(recipe, *parallel_groups_);
  for (const pipeline::ParamHolders& held : stage_.param_holders) {
    if (held.ranks.size() > 1) options.holders[held.param] = static_cast<int>(held.ranks.size());
  }
  data_parallel_ = std::make_unique<parallel::DataParallel>(pipeline::units_of(stage_), stage_.model->params,
                                                            *parallel_groups_->groups, std::move(options),
                                                            pipeline::held_apart(stage_));
  pipeline::fetch_weights(stage_, *data_parallel_);
  dropping_.wrap(stage_.model->layers);
  pipeline::renew_layers(stage_);
  prepare.fill(data_parallel_->owned());
  data_parallel_->updated();
  // Steps that run together drop different layers: nobody knows which weights a pass will need next, so none are
  // fetched ahead.
  if (dropping_.used() && runs_several_steps(recipe_))
    data_parallel_->skip_units(std::vector<bool>(stage_.model->layers.size(), true));
}

/// Where blocks are recomputed by a plan of a chain, each chunk gets one: entries are then what it makes of blocks.
void StagedModel::plan_chunks(const spec::ModelShape& shape, models::BuildOptions& build, int chunks) {
  if (!nn::plans_chains(build.recompute.kind)) return;
  const std::vector<std::string> blocks = pipeline::chain_names(shape, cut_options(recipe_));
  for (std::size_t chunk = 1; chunk < cut_.split.size(); ++chunk) {
    build.chunk_begins.push_back(blocks[cut_.split[chunk].begin]);
  }
  // A micro-batch meets that many chunks of a rank, which share what they may save of it.
  const int each = std::max(1, chunks / recipe_.layout.pp);
  build.recompute.budget /= each;
  try {
    cut_.split = pipeline::split_at(pipeline::chain_names(shape, build), build.chunk_begins);
  } catch (ConfigError& error) {
    if (each > 1)
      error.add_context(fmt::format("for one of {} chunks of a rank, which share train.recompute_gb", each));
    throw;
  }
}

/// A group for each set of stages that some parameter has on the virtual workers, in the order of the model: on all
/// ranks the same splits of the world.
void StagedModel::form_wave_groups(const schedule::Schedule& table, const models::BuildOptions& build) {
  const int workers = static_cast<int>(spec::worker_splits(recipe_.pipeline.split).size());
  if (workers == 1) return;
  const int me = parallel_groups_->dp_rank;
  std::vector<std::vector<pipeline::ParamHolders>> holders;  // by virtual worker
  for (int worker = 0; worker < workers; ++worker) {
    const PipelineCut cut = cut_pipeline({.recipe = recipe_,
                                          .shape = stage_.model->shape,
                                          .build = build,
                                          .chunks = table.chunks(),
                                          .world = *parallel_groups_->alone,
                                          .worker = worker,
                                          .tell = false});
    holders.push_back(
        pipeline::holders_with({.shape = stage_.model->shape, .table = table, .split = cut.split, .build = build}));
  }
  for (std::size_t i = 0; i < holders.front().size(); ++i) {
    std::vector<int> stages;
    for (const std::vector<pipeline::ParamHolders>& of : holders) stages.push_back(of[i].ranks.front());
    const bool mine = stages[static_cast<std::size_t>(me)] == parallel_groups_->stage;
    const auto [group, is_new] = wave_groups_.try_emplace(stages);
    // Of ranks that have one stage together, each sums with its like.
    const nn::ParallelContext& parallel = parallel_groups_->parallel;
    const int part = parallel.mesh.coordinate(parallel.rank, nn::kContextAxis) * recipe_.layout.tp +
                     parallel.mesh.coordinate(parallel.rank, nn::kTensorAxis);
    if (is_new) group->second = world_.split(mine ? part : -1, me, fmt::format("wave {}", fmt::join(stages, " ")));
    if (mine) wave_stages_[holders.front()[i].param] = stages;
  }
}

std::vector<std::vector<pipeline::StageSum>> StagedModel::stage_sums() {
  parallel::MeshGroups& groups = *parallel_groups_->groups;
  const layout::Mesh& mesh = groups.mesh();
  std::vector<std::vector<layout::Reduction>> reductions;
  std::vector<layout::AxisNames> wanted;
  for (const nn::Param* param : stage_.chunks.front().params) {
    std::vector<layout::Reduction>& mine = reductions.emplace_back();
    for (layout::Reduction one : layout::reduction_axes(mesh, param->placement, param->equal_axes)) {
      one.axes = layout::subtract(mesh, one.axes, {nn::kDataAxis});  // along dp waves are pushed
      if (one.axes.empty()) continue;
      wanted.push_back(one.axes);
      mine.push_back(std::move(one));
    }
  }
  groups.agree_on(wanted);
  std::vector<std::vector<pipeline::StageSum>> sums;
  for (const std::vector<layout::Reduction>& mine : reductions) {
    std::vector<pipeline::StageSum>& of = sums.emplace_back();
    for (const layout::Reduction& one : mine) {
      if (comm::Group* ranks = groups.along(one.axes); ranks != nullptr) of.push_back({one.local, ranks});
    }
  }
  return sums;
}

std::vector<pipeline::WaveShare> StagedModel::wave_shares() {
  const std::vector<nn::Param*>& params = stage_.chunks.front().params;
  std::map<std::vector<int>, pipeline::WaveShare> shares;  // by stages; one where all virtual workers have one split
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto found = wave_stages_.find(params[i]->name);
    const std::vector<int> stages = found != wave_stages_.end() ? found->second : std::vector<int>{};
    pipeline::WaveShare& share = shares[stages];
    share.ranks = stages.empty() ? parallel_groups_->data : wave_groups_.at(stages).get();
    share.params.push_back(i);
  }
  std::vector<pipeline::WaveShare> list;
  for (auto& [stages, share] : shares) list.push_back(std::move(share));
  return list;
}

EngineParts StagedModel::parts() {
  std::map<std::string, int> first_holder;
  for (const pipeline::ParamHolders& held : stage_.param_holders) first_holder[held.param] = held.ranks.front();
  std::vector<bool> counted;
  for (const nn::Param& param : data_parallel_->owned()) {
    if (param.trainable) counted.push_back(first_holder.at(param.name) == pipeline_.rank());
  }
  return {.params = &data_parallel_->owned(),
          .all_names = names_of(stage_),
          .mesh = &parallel_groups_->parallel.mesh,
          .share = share_,
          .readers = &parallel_groups_->readers(),
          .pipeline = &pipeline_,
          .counted_params = std::move(counted),
          .data_parallel = data_parallel_.get(),
          .layer_params = &stage_.model->params,
          .balance = stage_.model->shape.experts.used() ? &stage_.model->balance : nullptr,
          .loads = parallel_groups_->loads};
}

std::map<int, Engine::Passes> StagedModel::passes() const {
  std::map<int, Engine::Passes> all;
  std::size_t entry = 0;
  for (const pipeline::Chunk& chunk : stage_.chunks) {
    Engine::Passes& passes = all[chunk.number];
    for (std::size_t i = 0; i < chunk.layers.size(); ++i) {
      const std::string& name = stage_.model->layers[entry++].name;
      const auto count = [&](std::string_view prefix, std::int64_t& layers, std::int64_t& with_experts) {
        if (!name.starts_with(prefix)) return;
        ++layers;
        with_experts += spec::has_experts(stage_.model->shape, std::stoll(name.substr(prefix.size()))) ? 1 : 0;
      };
      count("layers.", passes.layers, passes.expert_layers);
      count("encoder.layers.", passes.encoder_layers, passes.encoder_expert_layers);
      passes.embedding = passes.embedding || name == "embedding";
      passes.encoder_embedding = passes.encoder_embedding || name == "encoder.embedding";
      passes.head = passes.head || name == "head";
    }
  }
  const schedule::Schedule& table = executor_->table();
  const double part = 1.0 / table.micro_parts;  // a halved micro-batch goes back in two
  for (const schedule::Instruction& one : table.ranks[static_cast<std::size_t>(pipeline_.rank())]) {
    if (schedule::does_forward(one)) {
      all[one.chunk].forward += part * schedule::forward_count(one);
      ++all[one.chunk].fetches;
    }
    if (one.op == schedule::Op::kRecompute) {
      all[one.chunk].again += part;
      ++all[one.chunk].fetches;
    }
    if (schedule::does_input_gradient(one)) {
      all[schedule::backward_chunk(one)].backward += part;
      ++all[schedule::backward_chunk(one)].fetches;
    }
    if (schedule::does_weight_gradient(one)) ++all[schedule::backward_chunk(one)].weight_backwards;
    if (one.op == schedule::Op::kPredictWeights) ++all[one.chunk].predictions;
  }
  return all;
}

Engine::Account StagedModel::account() {
  Engine::Account account{.data_parallel = data_parallel_.get(),
                          .groups = parallel_groups_->groups.get(),
                          .embedding = false,
                          .head = false};
  for (const models::NamedLayer& entry : stage_.model->layers) {
    account.layers += entry.name.starts_with("layers.") ? 1 : 0;
    account.embedding = account.embedding || entry.name == "embedding";
    account.head = account.head || entry.name == "head";
  }
  if (!executor_) return account;
  account.passes = passes();
  account.loss_terms = loss_terms_;
  count_boundaries(account);
  const auto& list = executor_->table().ranks[static_cast<std::size_t>(pipeline_.rank())];
  const auto updates = std::ranges::count(list, schedule::Op::kOptimizerStep, &schedule::Instruction::op);
  for (const pipeline::GradientReduction::Sum& sum : executor_->reduction().sums())
    account.copies.push_back({sum.copies, sum.bytes * static_cast<double>(std::max<std::ptrdiff_t>(1, updates))});
  return account;
}

void StagedModel::count_boundaries(Engine::Account& account) const {
  const schedule::Schedule& table = executor_->table();
  // A micro-batch whose streams are told apart by their lengths, of which every rank that shares them has a part.
  const nn::ParallelContext& parallel = parallel_groups_->parallel;
  const std::int64_t part = std::int64_t{2} * parallel.mesh.ranks();
  pipeline::Micro micro;
  micro.inputs = {at::empty({1, 2 * part}, at::kLong), at::empty({1, part}, at::kLong)};
  const bool encoder = stage_.model->shape.num_encoder_layers > 0;
  if (!encoder) micro.inputs.erase(micro.inputs.begin());
  const auto count = [&](Engine::Boundaries& all, const schedule::Instruction& one, std::int64_t micros) {
    const bool activation = one.op == schedule::Op::kSendActivation || one.op == schedule::Op::kRecvActivation;
    // The gradient of a chunk's output is that of the next one's input.
    const bool next = one.op == schedule::Op::kSendActivation || one.op == schedule::Op::kRecvGradient;
    for (const pipeline::BoundaryTensor& tensor : stage_.boundaries(one.chunk + (next ? 1 : 0), micro)) {
      if (!activation && !tensor.has_gradient()) continue;
      const bool source = encoder && tensor.sizes[1] == parallel.local_seq_len(2 * part);
      (!tensor.has_gradient() ? all.ids : source ? all.source : all.hidden) += micros;
    }
  };
  // In micro-batches: a doubled forward sends two at once, and halves of one are two messages.
  const int joined = schedule::micros_of_forward(table);
  for (const schedule::Instruction& one : table.ranks[static_cast<std::size_t>(pipeline_.rank())]) {
    if (one.op == schedule::Op::kSendActivation) count(account.sent, one, joined);
    if (one.op == schedule::Op::kSendGradient) count(account.sent, one, 1);
    if (one.op == schedule::Op::kRecvActivation) count(account.received, one, joined);
    if (one.op == schedule::Op::kRecvGradient) count(account.received, one, 1);
  }
  for (Engine::Boundaries* all : {&account.sent, &account.received}) {
    for (std::int64_t* number : {&all->hidden, &all->source, &all->ids}) *number /= table.micro_parts;
  }
}

parallel::FirstMicroOptions StagedModel::first_micro() {
  const nn::ParallelContext& parallel = parallel_groups_->parallel;
  parallel::FirstMicroOptions options{.rows = row_axes(parallel.mesh),
                                      .experts = parallel.expert_axes,
                                      .overlaps = true,
                                      .parts = halves_micros_,
                                      .experts_lead = experts_lead_};
  for (const pipeline::ParamHolders& held : stage_.param_holders) {
    if (held.chunks.size() == 1 || held.ranks.size() == 1) continue;
    const bool mine = std::ranges::binary_search(held.ranks, pipeline_.rank());
    auto group = pipeline_.split(mine ? 0 : -1, pipeline_.rank(), fmt::format("tied {}", held.param));
    if (!mine) continue;
    options.tied[held.param] = group.get();
    tied_groups_.push_back(std::move(group));
  }
  return options;
}

std::string StagedModel::timeline() {
  if (!record_ || record_->size() == 0) return "";
  schedule::MeasuredTable measured{executor_->table(), record_->gather(pipeline_)};
  return world_.rank() == 0 ? schedule::to_json(measured) : "";
}

pipeline::Micro StagedModel::micro_of(data::Batch& batch, const MakeContext& contexts) const {
  pipeline::Micro micro{.context = contexts()};
  micro.inputs = feed(batch, micro.context, stage_.model->shape);
  nn::take_tokens(micro.inputs, micro.context, parallel_groups_->parallel.tokens);
  move_to(parallel_groups_->device, micro.inputs, micro.context, stage_.model->shape);
  if (teacher_) teacher_->teach(micro.inputs, micro.context);
  return micro;
}

StepSums StagedModel::execute(std::vector<data::Batch>& batches, const MakeContext& contexts) {
  pipeline::Executor& executor = executor_for(static_cast<int>(batches.size()));
  const auto begin = Clock::now();
  if (dropping_.used() && !runs_several_steps(recipe_)) data_parallel_->skip_units(dropping_.skipped(contexts()));
  data_parallel_->begin_micro(/*last=*/false);
  const auto micro = [&](int number) {
    pipeline::Micro made = micro_of(batches[static_cast<std::size_t>(number)], contexts);
    if (number == 0) made.context.watch = data_parallel_->first_micro_watch();
    if (wave_groups_.empty()) {
      made.context.on_gradient = [this, first = number == 0](nn::Param& param) {
        data_parallel_->added_by(param, first);
        data_parallel_->added(param);
      };
    }
    return made;
  };
  pipeline::RunReport report = executor.run({.micro = micro, .update = [](int) {}, .keep_spans = true});
  if (dropping_.used() && !runs_several_steps(recipe_)) data_parallel_->skip_units({});
  record_->add(report);
  double flops = report.steps.at(0).flops;
  std::vector<nn::LossTerm> losses = std::move(report.steps.at(0).losses);
  loss_terms_ = static_cast<int>(losses.size());
  sum_over_pipelines({&losses, 1}, {&flops, 1});
  const double all_s = seconds_since(begin);
  return {.losses = std::move(losses), .flops = flops, .comm_s = std::max(0.0, all_s - busy_seconds(report))};
}

comm::Group* StagedModel::stage_ranks() {
  parallel::MeshGroups& groups = *parallel_groups_->groups;
  layout::AxisNames axes = groups.mesh().wide_axes();
  std::erase(axes, nn::kPipelineAxis);
  return groups.along(axes);
}

void StagedModel::sum_over_pipelines(std::span<std::vector<nn::LossTerm>> losses, std::span<double> flops) {
  const bool first = parallel_groups_->stage == 0;  // which counts them
  for (double& number : flops) number = first ? number : 0;
  for (std::vector<nn::LossTerm>& terms : losses) {
    std::erase_if(terms, [&](const nn::LossTerm& term) { return !first || !parallel_groups_->counts(term); });
  }
  loss_reducer_.reduce(losses, flops);
}

Evaluation StagedModel::evaluate(const data::Samples& samples, const EvaluateOptions& options) {
  data_parallel_->wait_for_weights();  // together: some may have no rows
  const auto forward = [this](nn::Tensors inputs, nn::Context& context) {
    pipeline::Micro micro{std::move(inputs), std::move(context)};
    execute_forward(micro, nullptr);
    context = std::move(micro.context);  // with the losses of this rank's chunks
  };
  return train::evaluate(forward, samples,
                         evaluate_ranks(*parallel_groups_, world_, recipe_.layout.zero, stage_.model->shape), options);
}

std::string StagedModel::first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) {
  data_parallel_->wait_for_weights();
  // Numbers for places in the order in which a step meets them: weights, outputs of chunks, gradients from the end.
  const auto count = static_cast<std::int64_t>(stage_.param_holders.size()),
             chunks = static_cast<std::int64_t>(holders_.size());
  std::int64_t first = count * 2 + chunks;
  const auto finite = [](const at::Tensor& tensor) { return at::isfinite(tensor).all().item<bool>(); };
  for (std::int64_t i = 0; i < count; ++i) {
    const nn::Param* param = data_parallel_->owned().find(stage_.param_holders[static_cast<std::size_t>(i)].param);
    if (!param) continue;
    if (param->value.defined() && !finite(param->value)) first = std::min(first, i);
    if (param->trainable && param->gradient.defined() && !finite(param->gradient)) {
      first = std::min(first, count + chunks + (count - 1 - i));
    }
  }
  for (data::Batch& batch : batches) {
    pipeline::Micro micro = micro_of(batch, contexts);
    execute_forward(micro, [&](int chunk, const nn::Tensors& outputs) {
      for (const at::Tensor& output : outputs) {
        if (output.is_floating_point() && !finite(output)) first = std::min<std::int64_t>(first, count + chunk);
      }
    });
  }
  world_.all_reduce(comm::Buffer{&first, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
  const auto held = [&](std::int64_t i) { return stage_.param_holders[static_cast<std::size_t>(i)].param; };
  if (first < count) return fmt::format("first in the weights of {}", held(first));
  if (first < count + chunks) return fmt::format("first in the output of chunk {} of the model", first - count);
  if (first < 2 * count + chunks) {
    return fmt::format("first in the gradient of {}", held(count - 1 - (first - count - chunks)));
  }
  return "computed again, everything is finite: the numbers differ from run to run";
}

schedule::Schedule StagedModel::make_table(int micros, int steps) const {
  const schedule::Schedule table = cut_.stage_ranks.empty()
                                       ? pipeline_table(recipe_, micros, steps)
                                       : replicated_table(recipe_, cut_.stage_ranks, micros, steps);
  return mixtures_.empty() ? table : schedule::interleave_pairs(table, mixtures_);
}

pipeline::Executor& StagedModel::executor_for(int micros) {
  if (executor_ && executor_micros_ == micros) return *executor_;
  if (!tables_.contains(micros)) tables_.emplace(micros, make_table(micros, 1));
  if (!unchanged_) unchanged_ = std::make_unique<UnchangedWeights>();
  record_.reset();
  executor_.reset();
  executor_ = std::make_unique<pipeline::Executor>(
      pipeline::ExecutorParts{.table = tables_.at(micros),
                              .stage = stage_,
                              .pipeline = pipeline_,
                              // Stages of virtual workers with splits of their own are no copies.
                              .data_parallel = wave_groups_.empty() ? data_parallel_.get() : nullptr,
                              .predictor = unchanged_.get(),
                              .scatter = scatter(),
                              .receives = &receives_,
                              .activations = &activations_});
  executor_micros_ = micros;
  record_ = std::make_unique<pipeline::TimelineRecorder>(executor_->table());
  return *executor_;
}

/// Forward through all chunks, one after the other; losses come out where they arise.
void StagedModel::execute_forward(pipeline::Micro& micro, const Look& look) {
  constexpr int kTag = 1 << 20;  // schedules use small ones
  nn::Tensors x = micro.inputs;
  const int me = pipeline_.rank();
  for (int chunk = 0; chunk < static_cast<int>(holders_.size()); ++chunk) {
    const int holder = holders_[static_cast<std::size_t>(chunk)];
    const int before = chunk > 0 ? holders_[static_cast<std::size_t>(chunk) - 1] : holder;
    if (before != holder && me == before) {
      for (const at::Tensor& tensor : x)
        pipeline_.send(device::to_const_buffer(tensor.contiguous()), holder, kTag).wait();
    }
    if (me != holder) continue;
    if (before != holder) {
      x.clear();
      for (const pipeline::BoundaryTensor& boundary : stage_.boundaries(chunk, micro)) {
        at::Tensor& tensor = x.emplace_back(at::empty(boundary.sizes, boundary.options()));
        pipeline_.recv(device::to_buffer(tensor), before, kTag).wait();
      }
    }
    for (const pipeline::Chunk& mine : stage_.chunks) {
      if (mine.number != chunk) continue;
      for (nn::Layer* layer : mine.layers) x = layer->forward(std::move(x), micro.context, nullptr);
    }
    if (look) look(chunk, x);
  }
}

AnyEngine make_pipeline_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                               std::int64_t length, const PrepareParams& prepare) {
  auto staged = std::make_unique<StagedModel>(recipe, shape, world, length, prepare);
  if (runs_several_steps(recipe)) return make_pipeline_steps(std::move(staged));
  return std::make_unique<PipelineEngine>(std::move(staged));
}

}  // namespace trireme::train
