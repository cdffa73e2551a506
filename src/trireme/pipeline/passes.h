// pipeline/passes.h -- the computing instructions of one rank: micros through its chunks, forward and back.
//
// A cell is one micro in one chunk, from its input to its last gradient. What a pass gives to a chunk of the same rank
// goes there at once; what another rank waits for stays in the cell until it is taken to be sent. A doubled forward is
// one pass over the rows of two micros; what it leaves is then cut between their cells, so that each goes back alone.
// Depends on: base, schedule, nn.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/nn/layer.h"
#include "trireme/pipeline/stage.h"
#include "trireme/pipeline/versions.h"

namespace trireme::pipeline {

/// Gives a micro-batch when the rank first needs it; asked for once in a run, and again after an update was redone.
/// Where the table cuts micro-batches into parts (Schedule::micro_parts), it is asked for whole ones, by their number.
using MicroSource = std::function<Micro(int micro)>;

/// What a rank's share of one optimizer step was.
struct PassSums {
  std::vector<nn::LossTerm> losses = {};  ///< by name, added up over micros: nn::total_of() needs the step's counts
  double flops = 0, recomputed_flops = 0;
};

class Passes {
 public:
  /// All borrowed. A ConfigError where the table puts the last chunk's forward and backward into different steps.
  Passes(const schedule::Schedule& table, int rank, std::span<const Chunk> chunks, const BoundaryTensors& boundaries,
         WeightVersions& versions);

  /// Tells this meter, which is borrowed, of activations: of a micro in a chunk, from the end of its forward until its
  /// last gradient is there.
  void tell(QueueMeter* activations) { activations_ = activations; }

  /// Before the table is executed (again).
  void begin(MicroSource source);
  /// Where the table doubles forwards: of this micro and the next.
  void forward(int chunk, int micro);
  void recompute(int chunk, int micro);
  /// `weights`: also the gradients of weights, which otherwise wait for backward_weight().
  void backward(int chunk, int micro, bool weights);
  void backward_weight(int chunk, int micro);

  /// Forgets what was computed of the micros after `step`, none of which has been back yet.
  void rewind(int step);

  const Micro& micro(int micro);
  /// What layers are given in its passes.
  nn::Context& context(int micro) { return running(micro).micro->context; }
  /// What a forward that begins with this micro takes: it, or the rows of two.
  const Micro& forward_micro(int micro);
  /// What layers of this rank give and take past others, of a micro that is on its way.
  nn::Skips& skips(int micro) { return micros_[static_cast<std::size_t>(micro)].skips; }
  /// After a backward pass whose gradients of skips were sent.
  void release_skips(int micro);
  /// What is sent, and where what was received goes.
  nn::Tensors take_output(int chunk, int micro);
  nn::Tensors take_input_gradient(int chunk, int micro);
  void put_input(int chunk, int micro, nn::Tensors inputs);
  void put_gradient(int chunk, int micro, nn::Tensors gradients);

  /// By step of the table, of what this rank computed. Throws where a micro is not through: a table that was not
  /// checked.
  std::vector<PassSums> end();

 private:
  struct Cell {
    nn::Tensors inputs, outputs;             // to come in; to be sent
    nn::Tensors gradients, input_gradients;  // likewise
    nn::Tape tape;
    std::int64_t counted = 0;          // bytes of the tape, in the rank's account
    bool recomputed = false;           // the table has a recomputation: the first forward keeps its inputs only
    QueueMeter::Nanoseconds kept = 0;  // since when its activations are; 0: there are none
  };
  struct Running {
    std::unique_ptr<Micro> micro;
    int chunks_left = 0;  // passes through chunks of this rank that are not over
    std::size_t losses_before = 0;
    nn::Skips skips;
  };
  /// The rows of two micros, for doubled forwards.
  struct Pair {
    std::unique_ptr<Micro> micro;
    int forwards_left = 0;  // through chunks of this rank
  };
  std::size_t index_of(int chunk) const;
  Cell& cell(int chunk, int micro);
  Running& running(int micro);
  Running& fill(int micro, Micro data);
  Pair& pair(int micro);
  void release(int chunk, int micro, const nn::Context& context);
  nn::Tensors run_layers(const Chunk& chunk, nn::Tensors inputs, nn::Context& context, nn::Tape* tape);
  void check_boundary(const nn::Tensors& tensors, int chunk, const Micro& micro) const;
  void complete_gradients(nn::Tensors& gradients, int chunk, const Micro& micro) const;
  void divide(int chunk, int micro, std::int64_t of_first);
  void keep(Cell& cell);
  void let_go(Cell& cell);
  void pass_over(int micro);
  static void count(Cell& cell, const nn::Context& context, std::int64_t bytes);
  void use_skips(int chunk, int micro);

  const schedule::Schedule& table_;
  int rank_;
  std::span<const Chunk> chunks_;
  const BoundaryTensors& boundaries_;
  WeightVersions& versions_;
  std::vector<std::vector<nn::SkipLayer*>> skipping_;  // [chunk of the rank]: those of its layers
  std::vector<int> index_;                             // by chunk of the model; -1: elsewhere
  std::vector<std::vector<Cell>> cells_;               // [chunk of the rank][micro]
  bool doubled_ = false;                               // the table's forwards take two micros each: all or none do
  std::vector<Running> micros_;
  std::vector<Pair> pairs_;  // by half of the first micro
  std::vector<PassSums> sums_;
  MicroSource source_;
  QueueMeter* activations_ = nullptr;
};

}  // namespace trireme::pipeline
