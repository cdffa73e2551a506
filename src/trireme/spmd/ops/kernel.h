// spmd/ops/kernel.h -- what an operator computes on a rank's blocks, one file a kind.
//
// A kernel gets its inputs as blocks, the boxes of its outputs, and what its forward operator keeps. It is the same for
// one rank and for many: whatever depends on the whole (padding at the border, the vocabulary's range, the causal mask,
// the mask of dropout, who adds a bias) follows from origins. Statistics are summed over ranks by a function it is
// given.
// Depends on: block.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/comm/types.h"
#include "trireme/kernels/image_ops.h"
#include "trireme/spmd/block.h"
#include "trireme/spmd/norm_tails.h"

namespace trireme::spmd {

inline constexpr double kNormEps = 1e-5;

/// What a forward operator leaves for its gradient operators beside the graph's tensors: statistics, mostly.
using Kept = std::map<std::string, at::Tensor>;

/// Which micro-batch of a step it is, and which dimensions they divide.
struct MicroBatch {
  int number = 0, count = 1;
  std::vector<int> dims = {};
  /// A box of a micro-batch's tensor in the whole batch's, and that one's sizes.
  Place in_batch(const std::vector<int>& dims, Place place, std::vector<Index>& whole) const;
};

/// Parts of one parameter's gradient that are not made one by one: what they are made of, and the sum of all parts by
/// one call. An LSTM's weight is read by every time step; one GEMM over all of them reads and writes it once.
struct DeferredParts {
  std::vector<at::Tensor> left, right;  ///< of each part; `left` may be empty
  std::function<at::Tensor(const at::Tensor& left, const at::Tensor& right)> sum_of;  ///< all of them, joined by rows
};

/// Gradients of inputs of an LSTM's cells that are not made one by one: of which tensors, and the gates they are made
/// of.
struct DeferredInputs {
  std::vector<int> tensors;
  std::vector<at::Tensor> gates;
  at::Tensor weight;
  at::Tensor recurrent, transposed;  ///< a recurrent weight and the same the other way round, where cells want it so
};
/// What cells add to their gates of their inputs, rows of all of them one after the other; and its gradient by the
/// inputs.
at::Tensor lstm_input_sums(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor lstm_input_gradients(const DeferredInputs& inputs);

/// What the operators of a norm's tail leave for each other (norm_tails.h).
struct NormTail {
  kernels::BatchNorm norm = {}, other = {};  ///< the second undefined: there is none
  at::Tensor add = {};                       ///< the other summand
  at::Tensor positive = {};                  ///< what ReLU let pass
  at::Tensor dy = {}, more = {};             ///< the gradient of ReLU's output, or its summands
  kernels::BatchNormSums sums = {};
};

struct OpCall {
  const pg::Graph& graph;
  const pg::Op& op;
  std::vector<Block> inputs;   ///< as op.inputs; with their halos
  std::vector<Place> outputs;  ///< as op.outputs
  Kept& kept;
  std::function<void(at::Tensor&, comm::Reduce)> all_reduce;  ///< over the ranks that share a statistic; may do nothing
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  MicroBatch micro = {};
  /// [output] where the output is a part of a parameter's gradient: the kernel may leave the part there instead, and
  /// give back an undefined tensor. Null: not one of several parts.
  std::vector<DeferredParts*> deferred = {};
  /// Of an LSTM's cell: what its input adds to its gates, if that is made already; undefined: not. It becomes the
  /// gates.
  at::Tensor input_sums = {};
  /// Of the gradient of such a cell: where to leave its gates, instead of making its input's gradient. Null: make it.
  DeferredInputs* deferred_input = nullptr;
  bool odd_cell = false;           ///< of its layer's cells: every second one reads the weight from its end
  bool shares_statistics = false;  ///< whether all_reduce does something
  bool fused_images = false;       ///< images on a GPU go through kernels/image_ops.h where it takes them
  std::map<std::vector<Index>, bool>* gemm_is_faster = nullptr;  ///< of convolutions of 1 x 1 by part and sizes
  NormTail* tail = nullptr;                                      ///< null: the operator is in none
  NormTails::Member member = {};

  const pg::Op& forward() const { return op.forward >= 0 ? graph.op(op.forward) : op; }
  const std::vector<int>& dims(int tensor) const { return graph.tensor(tensor).dims; }
  /// Of a backward operator: an operand of the forward one that it reads, and the gradient of one of its outputs. Null
  /// where it reads none.
  const Block* operand(int tensor) const;
  const Block* gradient(int tensor) const;
  /// For each input of the forward operator: which output is its gradient; -1: none is made.
  std::vector<int> gradient_outputs() const;
};

/// One tensor for each output.
std::vector<at::Tensor> run_op(OpCall& call);

/// Whether an operator reads a tensor with its halo where its family has one. A weight gradient reads the gradient's
/// own rows.
inline bool reads_halo(const pg::Op& op, int tensor) {
  return op.kind != pg::OpKind::kEinsum && !(op.part == pg::Part::kBackwardWeight && op.inputs[1] == tensor);
}

/// Why the executor cannot run this graph, a sentence each: shapes that the graph's rules allow and no kernel has.
std::vector<std::string> find_unsupported(const pg::Graph& graph);

/// The elements of dropout that stay, scaled: 0 or 2. Half of them fall, as in AlexNet and VGG.
at::Tensor dropout_mask(const std::string& name, const Place& place, const std::vector<Index>& whole,
                        std::uint64_t seed, std::int64_t step, const at::TensorOptions& options);

/// Which experts and slots tokens get: constant in the gradient. GShard's rule: first choices are seated before second
/// ones, in the order of tokens, and who finds no slot is dropped.
struct Seats {
  std::vector<at::Tensor> experts;  ///< [group, token] of the k-th choice
  std::vector<at::Tensor> masks;    ///< [group, token, expert, slot] of 0 and 1
};
Seats seats_of(const at::Tensor& probabilities, int choices, Index slots);

}  // namespace trireme::spmd
