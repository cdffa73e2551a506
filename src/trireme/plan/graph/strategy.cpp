#include "trireme/plan/graph/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"

namespace trireme::plan::graph {

std::string lines_of(const Graph& forward, const Strategy& strategy, const std::vector<int>& ops, bool also_whole) {
  std::string text;
  for (const int op : ops) {
    const Split& split = strategy.splits[static_cast<std::size_t>(op)];
    const bool is_split = std::ranges::any_of(split, [](int dim) { return dim >= 0; });
    if (is_split || also_whole)
      text += fmt::format("{}{}\n", forward.op(op).name, is_split ? " " + to_text(forward, strategy.mesh, split) : "");
  }
  for (const auto& [parameter, sharding] : strategy.stored) {
    const Tensor& tensor = forward.tensor(parameter);
    text += "store " + tensor.name;
    for (std::size_t dim = 0; dim < sharding.dims.size(); ++dim) {
      for (const int axis : sharding.dims[dim])
        text += fmt::format(" {}:{}", forward.dims[static_cast<std::size_t>(tensor.dims[dim])].name,
                            strategy.mesh.axes()[static_cast<std::size_t>(axis)].name);
    }
    text += "\n";
  }
  for (const auto& group : strategy.checkpoints) {
    text += "checkpoint";
    for (const int op : group) text += " " + forward.op(op).name;
    text += "\n";
  }
  return text;
}

std::string to_text(const Graph& forward, const Strategy& strategy) {
  std::vector<int> ops(strategy.splits.size());
  std::iota(ops.begin(), ops.end(), 0);
  return fmt::format("strategy {}\nmesh {}\n", forward.name, layout::to_text(strategy.mesh)) +
         lines_of(forward, strategy, ops, false);
}

void StrategyLines::fail(std::size_t number, const std::string& why, const std::string& hint) const {
  throw ConfigError(fmt::format("{}, line {}: {}", source_, number, why), hint);
}

std::vector<std::string> StrategyLines::words_of(const std::string& line) {
  std::vector<std::string> words;
  for (const std::string& word : trireme::split(line, ' ')) {
    const std::string_view bare = trimmed(word);
    if (!bare.empty()) words.emplace_back(bare);
  }
  if (!words.empty() && words[0].starts_with('#')) words.clear();
  return words;
}

void StrategyLines::header(std::size_t number, const std::vector<std::string>& words, const std::string& kind) const {
  if (words[0] != kind || words.size() != 2)
    fail(number, fmt::format("it does not begin with \"{} GRAPH\"", kind), "begin so");
  if (words[1] != forward_.name)
    fail(number, fmt::format("the {} is for {}, the graph is {}", kind, words[1], forward_.name),
         "take the graph it is for");
}

layout::Mesh StrategyLines::mesh(std::size_t number, const std::vector<std::string>& words) const {
  if (words[0] != "mesh") fail(number, "here a mesh must stand", "write \"mesh a=2 b=4\"");
  std::string axes;
  for (std::size_t i = 1; i < words.size(); ++i) axes += (axes.empty() ? "" : " ") + words[i];
  return layout::parse_mesh(axes);
}

int StrategyLines::op_named(std::size_t number, const std::string& name) const {
  const int op = forward_.find_op(name);
  if (op >= 0 && forward_.op(op).forward < 0) return op;
  std::vector<std::string> names;
  for (const Op& known : forward_.ops) names.push_back(known.name);
  fail(number, fmt::format("graph {} has no operator {}{}", forward_.name, name, did_you_mean(name, names)),
       "operators are listed by trireme graph show");
}

std::pair<int, int> StrategyLines::dim_and_axis(std::size_t number, const std::string& word,
                                                const Strategy& strategy) const {
  const std::size_t colon = word.rfind(':');
  const int dim = colon == std::string::npos ? -1 : forward_.find_dim(word.substr(0, colon));
  if (dim < 0) fail(number, fmt::format("\"{}\" names no dimension", word), "write DIMENSION:AXIS");
  const std::string axis = word.substr(colon + 1);
  const auto& axes = strategy.mesh.axes();
  const auto found = std::ranges::find_if(axes, [&](const layout::Axis& a) { return a.name == axis; });
  if (found == axes.end()) fail(number, fmt::format("the mesh has no axis {}", axis), "take one of the mesh's line");
  return {dim, static_cast<int>(found - axes.begin())};
}

int StrategyLines::read(std::size_t number, const std::vector<std::string>& words, Strategy& strategy) const {
  if (words[0] == "checkpoint") {
    auto& group = strategy.checkpoints.emplace_back();
    for (std::size_t i = 1; i < words.size(); ++i) group.push_back(op_named(number, words[i]));
    return -1;
  }
  if (words[0] == "store") {
    const int tensor = words.size() > 1 ? forward_.find_tensor(words[1]) : -1;
    if (tensor < 0 || forward_.tensor(tensor).role != Role::kParameter)
      fail(number, "\"store\" names no parameter", "write \"store PARAMETER DIMENSION:AXIS\"");
    const auto& dims = forward_.tensor(tensor).dims;
    Sharding& sharding = strategy.stored[tensor] = {.dims = std::vector<MeshAxes>(dims.size())};
    for (std::size_t i = 2; i < words.size(); ++i) {
      const auto [dim, axis] = dim_and_axis(number, words[i], strategy);
      const auto at = std::ranges::find(dims, dim);
      if (at == dims.end())
        fail(number, fmt::format("{} has no dimension {}", words[1], words[i]), "take one of its own");
      sharding.dims[static_cast<std::size_t>(at - dims.begin())].push_back(axis);
    }
    return -1;
  }
  const int op = op_named(number, words[0]);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const auto [dim, axis] = dim_and_axis(number, words[i], strategy);
    int& at = strategy.splits[static_cast<std::size_t>(op)][static_cast<std::size_t>(axis)];
    if (at >= 0)
      fail(number, fmt::format("axis {} is given twice", words[i].substr(words[i].rfind(':') + 1)),
           "an axis splits one dimension of an operator");
    at = dim;
  }
  return op;
}

Strategy parse_strategy(const Graph& forward, std::string_view text, const std::string& source) {
  const StrategyLines lines(forward, source);
  Strategy strategy;
  bool named = false, meshed = false;
  std::size_t number = 0;
  for (const std::string& line : trireme::split(text, '\n')) {
    ++number;
    const std::vector<std::string> words = StrategyLines::words_of(line);
    if (words.empty()) continue;
    if (!named) {
      lines.header(number, words, "strategy");
      named = true;
    } else if (!meshed) {
      strategy = replicated(forward, lines.mesh(number, words));
      meshed = true;
    } else {
      lines.read(number, words, strategy);
    }
  }
  if (!meshed) lines.fail(number, "there is no mesh", "write \"strategy GRAPH\" and \"mesh a=2 b=4\" first");
  return strategy;
}

Strategy transferred(const Graph& from, const Strategy& strategy, const Graph& to) {
  Strategy result = replicated(to, strategy.mesh);
  const bool alike = result.splits.size() == strategy.splits.size();
  for (std::size_t i = 0; i < result.splits.size(); ++i) {
    if (!alike || from.ops[i].name != to.ops[i].name)
      throw ConfigError(fmt::format("graphs {} and {} do not have the same operators", from.name, to.name),
                        "take a strategy of the graph itself");
    const IterationSpace source = iteration_space(from, from.ops[i]), target = iteration_space(to, to.ops[i]);
    for (std::size_t axis = 0; axis < strategy.splits[i].size(); ++axis) {
      const int dim = strategy.splits[i][axis], place = dim < 0 ? -1 : source.find(dim);
      if (place < 0) continue;
      result.splits[i][axis] = target.dims[static_cast<std::size_t>(place)].dim;
    }
  }
  // Gradient operators must be able to take it too.
  const Graph both = with_backward(to);
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const auto op = both.ops[i].forward >= 0 ? static_cast<std::size_t>(both.ops[i].forward) : i;
    Split& split = result.splits[op];
    while (!why_not(both, result.mesh, both.ops[i], iteration_space(both, both.ops[i]), split).empty()) {
      const auto last = std::ranges::find_if(split.rbegin(), split.rend(), [](int dim) { return dim >= 0; });
      if (last == split.rend()) break;
      *last = -1;
    }
  }
  result.checkpoints = strategy.checkpoints;
  for (const auto& [parameter, sharding] : strategy.stored) {
    const int here = to.find_tensor(from.tensor(parameter).name);
    if (here < 0) continue;
    Strategy one{result.mesh, result.splits, {{here, sharding}}, {}};
    result.stored[here] = find_problems(both, one).empty() ? sharding : fully_sharded(both, result, here);
  }
  return result;
}

}  // namespace trireme::plan::graph
