// The whole model on every rank: each takes its stretch of a step's rows.
#include <array>
#include <chrono>

#include "trireme/parallel/gradient_sum.h"
#include "trireme/train/engine.h"
#include "trireme/train/feed.h"
#include "trireme/train/not_finite.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

class ReplicaEngine final : public Engine {
 public:
  ReplicaEngine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world, std::int64_t length,
                const PrepareParams& prepare)
      : model_(models::build(shape, build_options(recipe))),
        world_(world),
        share_{world.rank(), world.size(), length, recipe.train.microbatch.value_or(0)} {
    prepare(model_->params, all_names());
  }

  nn::Params& params() override { return model_->params; }
  std::vector<std::string> all_names() const final {
    std::vector<std::string> names;
    for (const nn::Param& param : model_->params) names.push_back(param.name);
    return names;
  }
  Share share() const override { return share_; }
  comm::Group& readers() override { return world_; }
  models::Model* whole_model() override { return model_.get(); }

  StepSums run(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    std::array<double, 2> sums{};
    for (data::Batch& batch : batches) {
      nn::Context context = contexts();
      nn::Tape tape;
      model_->forward(feed(batch, context), context, &tape);
      model_->backward(context, tape);
      for (const nn::LossTerm& term : context.losses) sums[0] += term.sum;
      sums[1] += context.flops;
    }
    const auto begin = Clock::now();
    if (world_.size() > 1) {
      world_.all_reduce(comm::Buffer{sums.data(), sums.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
    }
    parallel::sum_gradients(model_->params, world_);
    return {.loss = sums[0], .flops = sums[1], .comm_s = std::chrono::duration<double>(Clock::now() - begin).count()};
  }

  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options) override {
    return train::evaluate(*model_, samples, world_, options);
  }

  std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    return train::first_not_finite(*model_, batches, contexts, world_);
  }

 private:
  std::unique_ptr<models::Model> model_;
  comm::Group& world_;
  Share share_;
};

}  // namespace

std::unique_ptr<Engine> make_replica_engine(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                            comm::Group& world, std::int64_t length, const PrepareParams& prepare) {
  return std::make_unique<ReplicaEngine>(recipe, shape, world, length, prepare);
}

}  // namespace trireme::train
