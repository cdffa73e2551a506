// The whole model on one rank, with the delayed weights that an asynchronous schedule's stages would meet: slow, plain,
// and what such schedules are held against.
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/optim/gradients.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/delayed.h"
#include "trireme/pipeline/delayed_waves.h"
#include "trireme/pipeline/scale_versions.h"
#include "trireme/schedule/versions.h"
#include "trireme/spec/rules.h"
#include "trireme/train/diagnose/non_finite.h"
#include "trireme/train/engine/device.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/layer_dropping.h"
#include "trireme/train/engine/pipeline_split.h"
#include "trireme/train/engine/pipeline_table.h"
#include "trireme/train/engine/teacher.h"

namespace trireme::train {
namespace {

PipelineCut cut(const spec::Recipe& recipe, const spec::ModelShape& shape, std::int64_t length, comm::Group& world) {
  const std::string how = spec::split_speeds(spec::split_of_worker(recipe.pipeline.split, 0)).how;
  if (how == "time" || how == "pipedream") {
    throw ConfigError(fmt::format("pipeline.split = \"{}\" measures, and may cut otherwise the next time: delayed "
                                  "weights then differ",
                                  how),
                      "set pipeline.split = \"count\", \"size\", or the entries that the run told, and "
                      "pipeline.stage_ranks where it told several ranks of a stage");
  }
  const models::BuildOptions build = cut_options(recipe);
  return cut_pipeline(
      {.recipe = recipe, .shape = shape, .build = build, .chunks = recipe.layout.pp, .length = length, .world = world});
}

models::BuildOptions built_with(const spec::Recipe& recipe, const PrepareParams& prepare,
                                const LayerDropping& dropping) {
  models::BuildOptions options = cut_options(recipe);
  options.adapt = prepare.adapt;
  dropping.prepare(options);
  return options;
}

class DelayedEngine final : public MultiStepEngine {
 public:
  DelayedEngine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world, std::int64_t length,
                const PrepareParams& prepare)
      : recipe_(recipe),
        world_(world),
        device_(device_of(recipe, world)),
        groups_(world, layout::Mesh({{"dp", 1}})),
        dropping_(recipe, shape),
        model_(models::build(shape, built_with(recipe, prepare, dropping_))),
        cut_(cut(recipe, shape, length, world)),
        teacher_(make_teacher(recipe, shape, nn::single_rank(), device_)),
        drain_every_(spec::steps_between_drains(recipe, /*asynchronous=*/true)) {
    TRIREME_CHECK(world.size() == 1, "delayed weights are computed on one rank, not {}", world.size());
    dropping_.wrap(model_->layers);
    for (const nn::Param& param : model_->params) parts_.all_names.push_back(param.name);
    prepare.freeze(model_->params, parts_.all_names);
    std::vector<parallel::ShardUnit> units;
    for (const models::NamedLayer& entry : model_->layers) units.push_back({.params = entry.params});
    data_parallel_ = std::make_unique<parallel::DataParallel>(
        std::move(units), model_->params, groups_,
        parallel::DataParallelOptions{.precision = recipe.precision.compute, .device = device_});
    prepare.fill(model_->params);
    parts_.params = &model_->params;
    parts_.mesh = &groups_.mesh();
    parts_.share = {0, 1, length, pipeline_microbatch(recipe)};
    parts_.readers = &world_;
    parts_.data_parallel = data_parallel_.get();
    parts_.layer_params = &model_->params;
    parts_.whole_model = model_.get();
    if (shape.experts.used()) parts_.balance = &model_->balance;
  }

  Account account() override { return {}; }
  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options) override {
    return train::evaluate(*model_, samples, world_, options);
  }
  void rehearse(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    for (data::Batch& batch : batches) {
      nn::Context context = contexts();
      nn::Tensors inputs = feed(batch, context, model_->shape);
      move_to(device_, inputs, context, model_->shape);
      if (teacher_) teacher_->teach(inputs, context);
      nn::Tape tape;
      model_->forward(std::move(inputs), context, &tape);
      model_->backward(context, tape);
    }
  }
  std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    return train::first_not_finite(*model_, batches, contexts, world_, {}, device_);
  }

  std::int64_t drain_every() const override { return drain_every_; }

  std::vector<StepMade> run(const StepsRequest& request) override {
    const int micros = micros_of_stage(request.micros);
    const schedule::Schedule table = cut_.stage_ranks.empty()
                                         ? pipeline_table(recipe_, micros, request.steps)
                                         : replicated_table(recipe_, cut_.stage_ranks, micros, request.steps);
    if (table.weights == schedule::WeightChoice::kWaves) return run_waves(request, schedule::WaveLaw::of(table));
    double rate = 0;
    const auto predictor = pipeline::make_weight_predictor(table.weights, request.optimizer, [&] { return rate; });
    pipeline::DelayedGradients delayed(*model_, cut_.split, pipeline::law_of(table), table.micros, predictor.get());
    std::unique_ptr<pipeline::ScaleVersions> scales;
    if (request.fp8_history != nullptr)
      scales = std::make_unique<pipeline::ScaleVersions>(*request.fp8_history, nn::Fp8History::Agree{});
    delayed.use_scales(scales.get(), micros);
    const int ahead = schedule::steps_ahead(table);
    std::vector<StepMade> made;
    std::vector<double> loss_scales;
    for (int step = 0; step < request.steps; ++step) {
      // What a stage knows when it begins the step: that of the others' updates so far back.
      if (request.loss_scale != nullptr && step - 1 - ahead >= 0) learn_of(made, step - 1 - ahead, *request.loss_scale);
      loss_scales.push_back(request.loss_scale != nullptr ? request.loss_scale->scale() : 1);
      StepWork work = request.work(step);
      rate = work.learning_rate;
      step == 0 ? delayed.begin() : delayed.updated();  // what is predicted goes by the rate of the update to come
      nn::zero_grad(model_->params);
      StepMade& sums = made.emplace_back();
      for (std::size_t i = 0; i < work.batches.size(); ++i) {
        pipeline::Micro micro{.context = work.contexts(loss_scales.back())};
        micro.inputs = feed(work.batches[i], micro.context, model_->shape);
        move_to(device_, micro.inputs, micro.context, model_->shape);
        if (teacher_) teacher_->teach(micro.inputs, micro.context);
        delayed.add(micro, step * micros + static_cast<int>(i) % micros);  // pipelines side by side have their shares
        for (const nn::LossTerm& term : micro.context.losses) nn::add_term(sums.losses, term);
        sums.flops += micro.context.flops;
      }
      delay_shared(step, ahead, step + 1 == request.steps, loss_scales);
      if (request.look) request.look(model_->params);
      sums.gradient_norm = clip_by_stage(loss_scales.back(), request.loss_scale != nullptr, &sums.taken);
      request.optimizer.step({.learning_rate = rate, .gradient_scale = 1 / loss_scales.back()});
      if (request.taken) request.taken();
    }
    for (int step = std::max(0, request.steps - 1 - ahead); request.loss_scale != nullptr && step < request.steps;
         ++step)
      learn_of(made, step, *request.loss_scale);
    if (scales) {
      scales->updated(request.steps - 1);
      scales->end();
    }
    return made;
  }

 private:
  /// All virtual workers, one after the other: the micro-batches of each are a wave.
  std::vector<StepMade> run_waves(const StepsRequest& request, const schedule::WaveLaw& law) {
    pipeline::DelayedWaves waves(*model_, law);
    std::vector<StepMade> made;
    for (int step = 0; step < request.steps; ++step) {
      StepWork work = request.work(step);
      waves.begin_wave(work.learning_rate);
      nn::zero_grad(model_->params);
      StepMade& sums = made.emplace_back();
      for (std::size_t i = 0; i < work.batches.size(); ++i) {
        pipeline::Micro micro{.context = work.contexts(/*loss_scale=*/1)};
        micro.inputs = feed(work.batches[i], micro.context, model_->shape);
        move_to(device_, micro.inputs, micro.context, model_->shape);
        if (teacher_) teacher_->teach(micro.inputs, micro.context);
        waves.add(micro, static_cast<int>(i) / law.minibatches,
                  step * law.minibatches + static_cast<int>(i) % law.minibatches);
        for (const nn::LossTerm& term : micro.context.losses) nn::add_term(sums.losses, term);
        sums.flops += micro.context.flops;
      }
      if (request.look) request.look(model_->params);
      sums.gradient_norm = clip_by_stage(/*loss_scale=*/1, /*may_overflow=*/false, &sums.taken);
      request.optimizer.step({.learning_rate = work.learning_rate});
      if (request.taken) request.taken();
    }
    return made;
  }

  /// Of one pipeline, where several stand side by side: each runs as many as the one with most rows.
  int micros_of_stage(int micros) const {
    const int copies = recipe_.layout.dp.value_or(1);
    return (micros + copies - 1) / copies;
  }

  static void learn_of(const std::vector<StepMade>& made, int step, optim::LossScale& loss_scale) {
    loss_scale.take(made[static_cast<std::size_t>(step)].taken);
  }

  /// A step's gradients of what stages share are used `ahead` updates later, before a flush all that are left.
  void delay_shared(int step, int ahead, bool last, const std::vector<double>& loss_scales) {
    if (step == 0) waiting_.clear();
    const std::vector<nn::Param*> shared = shared_params();
    if (shared.empty() || ahead == 0) return;
    std::vector<at::Tensor>& kept = waiting_[step];
    for (nn::Param* param : shared) {
      kept.push_back(param->gradient.clone());
      param->gradient.zero_();
    }
    while (!waiting_.empty() && (last || waiting_.begin()->first <= step - ahead)) {
      const double factor = loss_scales.back() / loss_scales[static_cast<std::size_t>(waiting_.begin()->first)];
      for (std::size_t i = 0; i < shared.size(); ++i) shared[i]->gradient.add_(waiting_.begin()->second[i], factor);
      waiting_.erase(waiting_.begin());
    }
  }

  std::vector<nn::Param*> shared_params() {
    std::map<nn::Param*, int> stages;
    for (const pipeline::LayerRange& stretch : cut_.split) {
      std::set<nn::Param*> mine;
      for (std::size_t i = stretch.begin; i < stretch.end; ++i)
        mine.insert(model_->layers[i].params.begin(), model_->layers[i].params.end());
      for (nn::Param* param : mine) ++stages[param];
    }
    std::vector<nn::Param*> shared;
    for (nn::Param& param : model_->params) {
      if (param.trainable && stages[&param] > 1) shared.push_back(&param);
    }
    return shared;
  }

  /// Each stage's own parameters to optim.grad_clip_norm, and by itself each that several stages have; the norm over
  /// all of them before. Gradients that overflow count as zero where they may.
  double clip_by_stage(double loss_scale, bool may_overflow, bool* finite) {
    const std::vector<nn::Param*> shared = shared_params();
    std::vector<std::vector<nn::Param*>> parts;
    for (nn::Param* param : shared) parts.push_back({param});
    for (const pipeline::LayerRange& stretch : cut_.split) {
      std::vector<nn::Param*>& own = parts.emplace_back();
      for (std::size_t i = stretch.begin; i < stretch.end; ++i) {
        for (nn::Param* param : model_->layers[i].params) {
          const bool known =
              std::ranges::find(own, param) != own.end() || std::ranges::find(shared, param) != shared.end();
          if (param->trainable && !known) own.push_back(param);
        }
      }
    }
    double all = 0;
    for (const std::vector<nn::Param*>& part : parts) {
      double squares = 0;
      for (const nn::Param* param : part) {
        const double norm =
            at::linalg_vector_norm(param->gradient, 2, {}, false, at::kDouble).item<double>() / loss_scale;
        squares += norm * norm;
      }
      if (!std::isfinite(squares)) {
        if (!may_overflow)
          throw optim::NonFiniteGradients(fmt::format("a gradient of {} .. is not finite", part.front()->name),
                                          "lower optim.learning_rate");
        *finite = false;
        for (nn::Param* param : part) param->gradient.zero_();
        continue;
      }
      all += squares;
      const double factor = optim::clip_factor(std::sqrt(squares), recipe_.optim.grad_clip_norm);
      if (factor == 1) continue;
      for (nn::Param* param : part) param->gradient.mul_(factor);
    }
    return std::sqrt(all);
  }

  const spec::Recipe& recipe_;
  comm::Group& world_;
  at::Device device_;
  parallel::MeshGroups groups_;  // of one rank
  std::unique_ptr<parallel::DataParallel> data_parallel_;
  LayerDropping dropping_;
  std::unique_ptr<models::Model> model_;
  PipelineCut cut_;
  std::unique_ptr<Teacher> teacher_;  // null without [distill]
  std::int64_t drain_every_;
  std::map<int, std::vector<at::Tensor>> waiting_;  // by step: gradients of what stages share, for later updates
};

}  // namespace

AnyEngine make_delayed_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                              std::int64_t length, const PrepareParams& prepare) {
  return std::make_unique<DelayedEngine>(recipe, shape, world, length, prepare);
}

}  // namespace trireme::train
