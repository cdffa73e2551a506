// plan/graph/onnx.h -- an ONNX model as a graph: its operators, with dimensions that have names, and a loss.
//
//   Graph graph = import_onnx(formats::read_onnx(bytes, "net.onnx"), "net.onnx", /*batch=*/32);
//
// ONNX says which axis has which size; here an axis has a name that the whole graph shares. Heights and widths are
// named by their size, channels by the node that makes them, and where nodes want axes to be alike (additions,
// concatenations) they get one name, unless a tensor would then have it twice: there a reshape renames it. A model for
// inference has no loss: every output gets one, over its channels or its last axis, and a softmax at the end is part of
// it. Weights are shapes: a graph that runs begins with drawn ones.
// Depends on: graph, formats/onnx.
#pragma once

#include <string>
#include <vector>

#include "trireme/formats/onnx.h"
#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

/// `batch`: samples, where the model leaves the first axis of its inputs open; 0: none was said. ConfigError that names
/// the node for what the graph has no operator for.
Graph import_onnx(const formats::OnnxModel& model, const std::string& source, Index batch = 0);
/// ONNX operators that can be imported.
std::vector<std::string> onnx_operators();
/// Whether a file's name ends in .onnx.
bool is_onnx_path(const std::string& path);

}  // namespace trireme::plan::graph
