// plan/graph/draw.h -- a graph as a picture, with what a strategy does to it.
//
// Boxes are operators, from top to bottom in the order of their depth; parameters stand in the box of the operator that
// reads them. A strategy colours a box by what it splits and writes on an edge what it inserts there (strategy.h).
// Depends on: graph.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

/// What a box says beside its operator.
struct OpMark {
  std::vector<std::string> splits = {};  ///< "n x4", in the order of the mesh; empty: whole
  std::vector<DimKind> kinds = {};       ///< of each: its colour
  std::string inserted = {};             ///< "all-reduce 4.1 MB", below the box
  int stage = -1;                        ///< of a pipeline: its tint; edges between two stages are bold
};

struct GraphDrawing {
  std::string caption = {};
  std::vector<OpMark> marks = {};                    ///< [operator]; empty: a plain graph
  std::map<std::pair<int, int>, std::string> edges;  ///< (producer, consumer) -> what is inserted between them
  int rows = 40;                                     ///< of a column; longer graphs go on in the next one
};

/// Forward operators only: gradient operators lie as their forward ones do.
std::string to_svg(const Graph& graph, const GraphDrawing& drawing = {});

}  // namespace trireme::plan::graph
