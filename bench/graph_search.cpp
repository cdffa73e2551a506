// bench/graph_search.cpp -- how long do searches over operator graphs take on one core? Against OptCNN's published 0.4
// s for Inception-v3 on 16 devices, of which we allow a quarter for the elimination, and against a wait of ten seconds
// for GPT.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/arguments.h"
#include "trireme/base/stopwatch.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/search/search.h"

namespace {

using namespace trireme;
using namespace trireme::plan::graph;

struct Case {
  const char* graph;
  const char* cluster;
  int devices;
  double limit_seconds;  // of the elimination
};

bool measure(const Case& one) {
  const Graph both = with_backward(build_model(one.graph, 32 * one.devices));
  const Pricing pricing(cost::load_hardware(one.cluster), factored_mesh(one.devices));
  const auto start = std::chrono::steady_clock::now();
  const GraphProblem problem = make_problem(both, pricing);
  const double table_seconds = seconds_since(start);
  std::vector<double> seconds;
  Elimination found;
  for (int run = 0; run < 5; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    found = eliminate(problem.problem);
    seconds.push_back(seconds_since(begin));
  }
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  fmt::print(
      "{:<13} on {:>2} devices: {:>3} nodes, width {}, elimination {:.3f} s (median of {}), {:.2f} of the limit of "
      "{} s; costs of the table {:.2f} s\n",
      one.graph, one.devices, problem.nodes.size(), found.width, median, seconds.size(), median / one.limit_seconds,
      one.limit_seconds, table_seconds);
  return median <= one.limit_seconds;
}

}  // namespace

int main(int count, char** words) {
  trireme::bench::Arguments app("Searches over operator graphs on one core, beside the limits of their time");
  if (const auto status = app.parse(count, words)) return *status;
  bool within = true;
  for (const Case& one : {Case{"alexnet", "dgx2-v100", 16, 0.02}, Case{"vgg16", "dgx2-v100", 16, 0.1},
                          Case{"inception-v3", "dgx2-v100", 16, 0.1}, Case{"resnet152", "dgx2-v100", 16, 0.4},
                          Case{"gpt-2.6b", "dgx2-v100", 16, 10}})
    within = measure(one) && within;
  return within ? 0 : 1;
}
