// plan/graph/search/baselines.h -- the strategies that people write by hand, which every search is held against.
//
// Depends on: annotate, strategy.
#pragma once

#include <optional>
#include <string>

#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {

/// The dimension of samples: the first of the first input.
int sample_dim(const Graph& forward);

/// Every operator along samples; what has none is whole.
Strategy data_parallel(const Graph& both, const layout::Mesh& mesh);
/// Every operator with weights along the outputs of its weight, what follows along the same; the rest whole.
Strategy model_parallel(const Graph& both, const layout::Mesh& mesh);
/// Krizhevsky (2014, 1404.5997): convolutions and what has no weights along samples, fully connected layers along
/// outputs.
Strategy one_weird_trick(const Graph& both, const layout::Mesh& mesh);
/// Megatron-LM (Shoeybi 2019, 1909.08053): heads, the inner dimension of the MLP, and the vocabulary along the last
/// axes that fit into a node, samples along the others. Nothing for graphs without heads.
std::optional<Strategy> megatron(const Graph& both, const layout::Mesh& mesh, int devices_per_node);

/// The last axes, as many as make `tensor` devices, split weights: heads and inner dimensions of transformers, outputs
/// of other operators' weights and what follows them; the axes before split samples.
Strategy tensor_and_data_parallel(const Graph& both, const layout::Mesh& mesh, int tensor);

}  // namespace trireme::plan::graph
