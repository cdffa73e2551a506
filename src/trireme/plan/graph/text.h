// plan/graph/text.h -- a graph as text that people can read, edit and diff; parse_graph(to_text(graph)) == graph.
//
//   graph net
//   dim n 32
//   tensor x input fp32 n c0 h8 w8
//   tensor conv.weight parameter fp32 c1 c0 kh3 kw3
//   tensor y activation fp32 n c1 h8 w8
//   op conv convolution x conv.weight -> y window=h8>h8,kernel=3,padding=1,over=kh3
//   window=w8>w8,kernel=3,padding=1,over=kw3
//
// One thing a line, what is named stands above; "#" begins a comment. Other keys of an operator: part=, function=,
// bias=yes, dims=a,b, regroup=a,b>c, forward=OP; of a window: stride=, dilation=; of a tensor: grad-of=.
// Depends on: graph.
#pragma once

#include <string>
#include <string_view>

#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

std::string to_text(const Graph& graph);
/// ConfigError with `source` and line for text that is no graph, and for graphs that contradict themselves.
Graph parse_graph(std::string_view text, const std::string& source);
/// "conv1.out fp32 [n=32 c=64 h112=112 w112=112]"
std::string describe(const Graph& graph, const Tensor& tensor);

}  // namespace trireme::plan::graph
