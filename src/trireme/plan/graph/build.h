// plan/graph/build.h -- builds graphs: one call an operator; names of parameters and outputs follow from the
// operator's.
//
//   Builder build("net");
//   int x = build.input("image", {build.dim("n", 32), build.dim("c", 3), build.dim("h224", 224), build.dim("w224",
//   224)}); x = build.convolution("conv1", x, {.channels = 64, .kernel = {7, 7}, .stride = {2, 2}, .padding = {3, 3}});
//
// Images are [n, c, h, w]. Their heights and widths are named by their size ("h112"), so branches that meet again have
// the same dimensions; channels are named by the operator that makes them.
// Depends on: graph.
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

struct ConvolutionShape {
  Index channels = 0;
  std::array<Index, 2> kernel = {1, 1}, stride = {1, 1}, padding = {0, 0};
  bool bias = true;
  std::string channel_dim = {};  ///< the name of the output's channels; empty: made of the operator's
};

struct PoolingShape {
  std::string function = "max";
  std::array<Index, 2> kernel = {2, 2}, stride = {2, 2}, padding = {0, 0};
};

/// State of an LSTM layer, and its weights, which all time steps share.
struct LstmWeights {
  int input = -1, recurrent = -1, bias = -1;
};
struct LstmState {
  int h = -1, c = -1;
};

class Builder {
 public:
  explicit Builder(std::string name, DType dtype = DType::kFp32) : dtype_(dtype) { graph_.name = std::move(name); }

  /// A dimension has one size: ConfigError where it is given another.
  int dim(const std::string& name, Index size);
  int input(const std::string& name, std::vector<int> dims);
  /// Token ids, labels.
  int indices(const std::string& name, std::vector<int> dims);
  int parameter(const std::string& name, std::vector<int> dims);

  int einsum(const std::string& name, std::vector<int> inputs, std::vector<int> dims, const std::string& function = "");
  /// Contracts `over` of x with a weight of its own into `to`.
  int dense(const std::string& name, int x, const std::vector<int>& over, const std::vector<int>& to, bool bias = true);
  /// The same over the last dimension.
  int linear(const std::string& name, int x, int to, bool bias = true);
  int convolution(const std::string& name, int x, const ConvolutionShape& shape);
  /// Doubles, triples, ... heights and widths: kernel and stride are the factor.
  int transposed_convolution(const std::string& name, int x, Index channels, Index factor);
  int pooling(const std::string& name, int x, const PoolingShape& shape);
  /// [n, c, h, w] -> [n, c].
  int global_average(const std::string& name, int x);
  int batch_norm(const std::string& name, int x);
  int layer_norm(const std::string& name, int x);
  /// Over the last dimension: no mean is subtracted, and there is no shift.
  int rms_norm(const std::string& name, int x);
  /// Turns pairs of the last dimension by their place along `positions`.
  int rotary(const std::string& name, int x, int positions, double base);
  int elementwise(const std::string& name, const std::string& function, std::vector<int> inputs);
  int gather(const std::string& name, int table, int ids);
  int attention(const std::string& name, int q, int k, int v, const std::string& function, Index reach = 0);
  LstmWeights lstm_weights(const std::string& name, int in, int hidden);
  LstmState lstm(const std::string& name, int x, LstmState state, const LstmWeights& weights);
  int router(const std::string& name, int logits, int slots, const std::string& function);
  /// The mean over all positions of the labels.
  int loss(const std::string& name, int logits, int labels, int classes);
  /// Along the dimension in which they differ, or along `of` where they have it all; in the result it is `along`.
  int concat(const std::string& name, const std::vector<int>& inputs, int along, int of = -1);
  std::vector<int> split(const std::string& name, int x, int along, const std::vector<int>& parts);
  int reshape(const std::string& name, int x, std::vector<Regroup> regroups);

  const std::vector<int>& dims_of(int tensor) const { return graph_.tensor(tensor).dims; }
  Index size(int dim) const { return graph_.size(dim); }
  /// InternalError where the graph contradicts itself.
  Graph finish();

 private:
  int add(Tensor tensor);
  int output(const std::string& name, std::vector<int> dims);
  int slide(Window& window, int in, char letter, int axis, const std::array<Index, 2>& stride);

  Graph graph_;
  DType dtype_;
  std::map<std::string, int, std::less<>> dims_;
};

}  // namespace trireme::plan::graph
