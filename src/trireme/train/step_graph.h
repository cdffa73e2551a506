// train/step_graph.h -- forward and backward of a micro, recorded once and started as one from then on.
//
// Of micros that look the same (sizes, whether gradients are begun or added to) the first two run as they are, the
// third is recorded; after that a micro is copied into the recording's inputs and the recording starts again. What
// differs from step to step is read from the GPU's memory: the weight of the loss and what dropout's coins are made of.
// What would make a recording wrong is not recorded at all: dropout inside attention, whose coins the host draws, and
// packed documents, whose lengths decide on sizes. Sums over ranks are not in it either: one rank only.
// Depends on: kernels, models, nn.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trireme/kernels/cuda_graph.h"
#include "trireme/models/model.h"
#include "trireme/nn/dropout.h"

namespace trireme::train {

class StepGraph {
 public:
  /// `model` is borrowed; `added` is called for each contribution to a gradient, as layers would.
  StepGraph(models::Model& model, std::function<void(nn::Param&)> added);

  /// Forward and backward; the losses, pending. `first`: gradients are begun. What the tape held goes to `tape_bytes`.
  struct Result {
    std::vector<nn::LossTerm> losses;
    double flops = 0;
    std::int64_t tape_bytes = 0;
  };
  Result run(nn::Tensors inputs, nn::Context context, bool first);
  int recorded() const;

 private:
  struct Recording {
    std::vector<std::int64_t> looks;  // sizes of all inputs, and whether gradients are begun
    int seen = 0;
    std::unique_ptr<nn::CoinTable> coins;
    nn::Tensors inputs;
    nn::Context context;
    Result result;
    std::unique_ptr<kernels::CudaGraph> graph;
  };
  bool can_record(const nn::Context& context) const;
  Result run_plainly(nn::Tensors inputs, nn::Context& context);
  Recording& find(const nn::Tensors& inputs, const nn::Context& context, bool first);
  void record(Recording& recording, const nn::Tensors& inputs, const nn::Context& context);

  models::Model& model_;
  std::function<void(nn::Param&)> added_;
  std::vector<std::unique_ptr<Recording>> recordings_;
};

}  // namespace trireme::train
