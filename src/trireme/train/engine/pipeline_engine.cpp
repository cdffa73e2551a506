// A pipeline that is empty between steps: one walk of a table gives a step's gradients.
#include "trireme/train/engine/staged_model.h"

namespace trireme::train {
namespace {

class PipelineEngine final : public PipelineEngineOf<SingleStepEngine> {
 public:
  using PipelineEngineOf::PipelineEngineOf;
  StepSums compute(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    return staged_->walk(batches, contexts);
  }
  const optim::AcrossRanks* across() override { return staged_->across(); }
};

}  // namespace

AnyEngine make_pipeline_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                               std::int64_t length, const PrepareParams& prepare) {
  auto staged = std::make_unique<StagedModel>(recipe, shape, world, length, prepare);
  if (runs_several_steps(recipe)) return make_pipeline_steps(std::move(staged));
  return std::make_unique<PipelineEngine>(std::move(staged));
}

}  // namespace trireme::train
