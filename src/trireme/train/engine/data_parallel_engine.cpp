// Every rank runs the whole chain of layers: its copy takes a stretch of a step's rows, its parallel context splits
// matrices or rows, and copies agree through DataParallel.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>

#include "trireme/base/random.h"
#include "trireme/base/stopwatch.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/diagnose/non_finite.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/layer_dropping.h"
#include "trireme/train/engine/recipe_layout.h"
#include "trireme/train/engine/step_graph.h"
#include "trireme/train/engine/teacher.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

class DataParallelEngine final : public SingleStepEngine {
 public:
  DataParallelEngine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world, std::int64_t length,
                     const PrepareParams& prepare)
      : world_(world),
        parallel_groups_(form(recipe, shape, world, length)),
        zero_(recipe.layout.zero),
        owns_model_(recipe.layout.zero == 0 && recipe.layout.offload == spec::OffloadKind::kNone),
        dropping_(recipe, shape),
        loss_reducer_(world) {
    models::BuildOptions build = build_options(recipe);
    build.parallel = &parallel_groups_->parallel;
    build.adapt = prepare.adapt;
    dropping_.prepare(build);
    model_ = models::build(shape, build);
    for (const nn::Param& param : model_->params) parts_.all_names.push_back(param.name);
    prepare.freeze(model_->params, parts_.all_names);
    std::vector<parallel::ShardUnit> units;
    for (const models::NamedLayer& entry : model_->layers) units.push_back({entry.params});
    data_parallel_ = std::make_unique<parallel::DataParallel>(
        std::move(units), model_->params, *parallel_groups_->groups, data_parallel_options(recipe, *parallel_groups_));
    for (std::size_t i = 0; i < model_->layers.size(); ++i) {
      model_->layers[i].layer = data_parallel_->wrap(std::move(model_->layers[i].layer), i);
    }
    teacher_ = make_teacher(recipe, shape, parallel_groups_->parallel, parallel_groups_->device);
    dropping_.wrap(model_->layers);
    parts_.params = &data_parallel_->owned();
    parts_.mesh = &parallel_groups_->parallel.mesh;
    parts_.share = share_of(recipe, *parallel_groups_, length);
    parts_.readers = &parallel_groups_->readers();
    parts_.data_parallel = data_parallel_.get();
    if (owns_model_ && parallel_groups_->parallel.tensor_ranks() == 1) parts_.whole_model = model_.get();
    parts_.layer_params = &model_->params;
    if (shape.experts.used()) parts_.balance = &model_->balance;
    parts_.expert_axes = parallel_groups_->parallel.expert_axes;
    parts_.loads = parallel_groups_->loads;
    prepare.fill(data_parallel_->owned());
    data_parallel_->updated();
    if (recipe.train.cuda_graphs) {
      graph_ = std::make_unique<StepGraph>(
          *model_, StepGraph::Gradients{.added = [this](nn::Param& param) { data_parallel_->added(param); },
                                        .group = world.size() > 1 ? &world : nullptr,
                                        .complete = [this] { data_parallel_->complete(); },
                                        .replayed = [this] { data_parallel_->replayed(); }});
    }
  }

  Account account() override {
    return {.data_parallel = data_parallel_.get(),
            .groups = parallel_groups_->groups.get(),
            .layers = model_->shape.num_layers,
            .activations = activations_};
  }
  StepSums compute(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    double flops = 0;
    choose_layers(contexts);
    std::vector<nn::LossTerm> losses;                         // read when everything is under way
    if (batches.empty()) data_parallel_->wait_for_weights();  // others wait for this rank's part of them
    std::vector<Micro> recordable;                            // with graphs: all micros of the step
    if (graph_) {
      for (data::Batch& batch : batches) recordable.push_back(prepare(batch, contexts));
    }
    const bool records = graph_ && same_on_all_ranks(recordable);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      data_parallel_->begin_micro(/*last=*/i + 1 == batches.size());
      Micro micro = graph_ ? std::move(recordable[i]) : prepare(batches[i], contexts);
      nn::Context& context = micro.context;
      if (graph_) {
        data_parallel_->wait_for_weights();  // outside: a recording cannot wait for what it did not record
        StepGraph::Result result =
            records ? graph_->run(std::move(micro.inputs), std::move(context), turn_of(i, batches.size()))
                    : graph_->run_plainly(std::move(micro.inputs), context);
        if (i == 0) activations_ = result.tape_bytes;
        flops += result.flops;
        for (nn::LossTerm& term : result.losses) losses.push_back(std::move(term));
        continue;
      }
      pass(micro, /*first=*/i == 0, losses, flops);
    }
    if (dropping_.used()) data_parallel_->skip_units({});
    if (defer_losses_) {
      data_parallel_->finish();
      return {.losses = std::move(losses), .flops = flops};
    }
    return sum_over_ranks(losses, flops);
  }

  StepSums compute_from(const NextBatch& next, const MakeContext& contexts) override {
    double flops = 0;
    std::vector<nn::LossTerm> losses;
    choose_layers(contexts);
    data_parallel_->wait_for_weights();
    bool first = true;
    while (std::optional<data::Batch> batch = next()) {
      // Which one is the last is known when there is no other: buckets go at the end, beside nothing.
      data_parallel_->begin_micro(/*last=*/false);
      Micro micro = prepare(*batch, contexts);
      pass(micro, std::exchange(first, false), losses, flops);
    }
    if (dropping_.used()) data_parallel_->skip_units({});
    return sum_over_ranks(losses, flops);
  }

  StepSums compute_alone(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    double flops = 0;
    std::vector<nn::LossTerm> losses, sums;
    choose_layers(contexts);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      data_parallel_->begin_micro(/*last=*/false);
      Micro micro = prepare(batches[i], contexts);
      pass(micro, /*first=*/i == 0, losses, flops);
    }
    if (dropping_.used()) data_parallel_->skip_units({});
    data_parallel_->finish_alone();
    nn::settle(losses);
    for (const nn::LossTerm& term : losses) nn::add_term(sums, term);
    return {.losses = std::move(sums), .flops = flops};
  }

  bool defer_losses(bool defer) override {
    defer_losses_ = defer && world_.size() == 1 && owns_model_;
    return defer_losses_;
  }

  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options) override {
    data_parallel_->wait_for_weights();  // together: some may have no rows
    const auto forward = [this](nn::Tensors inputs, nn::Context& context) {
      model_->forward(std::move(inputs), context, nullptr);
    };
    return train::evaluate(forward, samples,
                           {.all = world_,
                            .rank = parallel_groups_->dp_rank,
                            .ranks = parallel_groups_->dp_size,
                            .tokens = parallel_groups_->parallel.tokens,
                            .counts = [this](const nn::LossTerm& term) { return parallel_groups_->counts(term); },
                            .counts_rows = parallel_groups_->counts_rows(),
                            .lockstep = zero_ == 3 || parallel_groups_->parallel.experts != nullptr,
                            .device = parallel_groups_->device,
                            .shape = &model_->shape},
                           options);
  }

  std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    data_parallel_->wait_for_weights();
    return train::first_not_finite(*model_, batches, contexts, world_, parallel_groups_->parallel.tokens,
                                   parallel_groups_->device);
  }

 private:
  void choose_layers(const MakeContext& contexts) {
    if (dropping_.used()) data_parallel_->skip_units(dropping_.skipped(contexts()));
  }

  struct Micro {
    nn::Tensors inputs;
    nn::Context context;
  };
  Micro prepare(data::Batch& batch, const MakeContext& contexts) {
    Micro micro{.context = contexts()};
    micro.context.on_gradient = [this](nn::Param& param) { data_parallel_->added(param); };
    micro.context.losses_later = true;
    micro.inputs = feed(batch, micro.context, model_->shape);
    nn::take_tokens(micro.inputs, micro.context, parallel_groups_->parallel.tokens);
    move_to(parallel_groups_->device, micro.inputs, micro.context, model_->shape);
    if (teacher_) teacher_->teach(micro.inputs, micro.context);
    return micro;
  }
  /// Forward and backward of a micro-batch.
  void pass(Micro& micro, bool first, std::vector<nn::LossTerm>& losses, double& flops) {
    nn::Context& context = micro.context;
    nn::Tape tape;
    model_->forward(std::move(micro.inputs), context, &tape);
    if (first) activations_ = tape.bytes();
    const CountedTape counted(context.memory, tape);
    model_->backward(context, tape);
    data_parallel_->end_pass();
    for (nn::LossTerm& term : context.losses) losses.push_back(std::move(term));
    flops += context.flops;
  }
  StepSums sum_over_ranks(std::vector<nn::LossTerm>& losses, double flops) {
    nn::settle(losses);
    std::vector<nn::LossTerm> sums;
    for (const nn::LossTerm& term : losses) {
      if (parallel_groups_->counts(term)) nn::add_term(sums, term);
    }
    const auto begin = Clock::now();
    loss_reducer_.start({&sums, 1}, {&flops, 1});
    data_parallel_->finish();
    loss_reducer_.finish({&sums, 1}, {&flops, 1});
    return {.losses = std::move(sums), .flops = flops, .comm_s = seconds_since(begin)};
  }
  static StepGraph::Turn turn_of(std::size_t i, std::size_t micros) {
    return {.first = i == 0, .last = i + 1 == micros};
  }
  /// A rank whose rows are longer than another's would record when the other does not, and wait for it in vain.
  bool same_on_all_ranks(const std::vector<Micro>& micros) {
    if (world_.size() == 1) return true;
    std::vector<std::int64_t> all{static_cast<std::int64_t>(micros.size())};
    for (std::size_t i = 0; i < micros.size(); ++i) {
      const auto looks = graph_->looks(micros[i].inputs, micros[i].context, turn_of(i, micros.size()));
      all.insert(all.end(), looks.begin(), looks.end());
    }
    const Random digest(0, fmt::format("{}", fmt::join(all, " ")));
    const auto mine = static_cast<std::int64_t>(digest.bits(0) >> 1);
    std::array<std::int64_t, 2> ends{mine, -mine};
    world_.all_reduce(comm::Buffer{ends.data(), ends.size(), comm::DType::kI64}, comm::Reduce::kMax).wait();
    return ends[0] == -ends[1];
  }

  comm::Group& world_;
  std::unique_ptr<ParallelGroups> parallel_groups_;
  int zero_;
  bool owns_model_;  // what is updated is what layers compute with
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<parallel::DataParallel> data_parallel_;
  LayerDropping dropping_;
  std::unique_ptr<Teacher> teacher_;  // null without [distill]
  std::unique_ptr<StepGraph> graph_;  // train.cuda_graphs only
  std::int64_t activations_ = 0;
  nn::LossReducer loss_reducer_;
  bool defer_losses_ = false;
};

}  // namespace

AnyEngine make_replica_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                              std::int64_t length, const PrepareParams& prepare) {
  return std::make_unique<DataParallelEngine>(recipe, shape, world, length, prepare);
}

}  // namespace trireme::train
