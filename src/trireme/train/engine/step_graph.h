// train/engine/step_graph.h -- forward and backward of a micro-batch as a CUDA graph: captured once, then replayed.
//
// Of micros that look the same (sizes, whether gradients are begun or added to) the first two run as they are, the
// third is captured; after that a micro is copied into the graph's inputs and the graph is replayed. What differs from
// step to step is read from the GPU's memory: the weight of the loss and the state of dropout's random numbers.
// What would make a replay wrong is not captured at all: dropout inside attention, whose random numbers the host draws,
// and packed documents, whose lengths decide on sizes. Of ranks that are processes, the last micro's graph has the
// reduction of gradients in it, which overlaps backward as it does without, and every micro's what ranks that split
// matrices exchange; all ranks capture and replay the same at the same time.
// Depends on: comm, device, models, nn.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/device/stream.h"
#include "trireme/models/model.h"
#include "trireme/nn/dropout.h"

namespace trireme::train {

class StepGraph {
 public:
  /// What else happens with gradients. `added`: a layer has contributed to one. With a group also: `complete`, that all
  /// sums over ranks are waited for, and `replayed`, that a graph of both was replayed.
  struct Gradients {
    std::function<void(nn::Param&)> added;
    comm::Group* group = nullptr;  ///< null: one rank
    std::function<void()> complete, replayed;
  };
  /// `model` is borrowed.
  StepGraph(models::Model& model, Gradients gradients);

  /// Where a micro stands in its step: the first begins gradients, with the last they are complete.
  struct Turn {
    bool first = true, last = true;
  };
  /// What a graph depends on. Of several ranks all must have the same, or none may capture.
  std::vector<std::int64_t> looks(const nn::Tensors& inputs, const nn::Context& context, Turn turn) const;

  /// Forward and backward; the losses, pending. What the tape held goes to `tape_bytes`.
  struct Result {
    std::vector<nn::LossTerm> losses;
    double flops = 0;
    std::int64_t tape_bytes = 0;
  };
  Result run(nn::Tensors inputs, nn::Context context, Turn turn);
  Result run_plainly(nn::Tensors inputs, nn::Context& context);

 private:
  struct Capture {
    std::vector<std::int64_t> looks;
    int seen = 0;
    std::unique_ptr<nn::DropoutRngState> dropout_rng;
    nn::Tensors inputs;
    nn::Context context;
    Result result;
    std::unique_ptr<device::CudaGraph> graph;
    std::unique_ptr<comm::CapturedCollectives> calls;  // with a group only
  };
  bool can_capture(const nn::Context& context) const;
  Capture& find(std::vector<std::int64_t> looks);
  void capture(Capture& captured, const nn::Tensors& inputs, const nn::Context& context, Turn turn);

  models::Model& model_;
  Gradients gradients_;
  std::vector<std::unique_ptr<Capture>> captures_;
};

}  // namespace trireme::train
