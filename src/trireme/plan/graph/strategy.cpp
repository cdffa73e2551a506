#include "trireme/plan/graph/strategy.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"

namespace trireme::plan::graph {

std::string to_text(const Graph& forward, const Strategy& strategy) {
  std::string text = fmt::format("strategy {}\nmesh {}\n", forward.name, layout::to_text(strategy.mesh));
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    const bool is_split = std::ranges::any_of(strategy.splits[i], [](int dim) { return dim >= 0; });
    if (is_split)
      text += fmt::format("{} {}\n", forward.ops[i].name, to_text(forward, strategy.mesh, strategy.splits[i]));
  }
  return text;
}

Strategy parse_strategy(const Graph& forward, std::string_view text, const std::string& source) {
  Strategy strategy;
  bool named = false, meshed = false;
  std::size_t number = 0;
  const auto fail = [&](const std::string& why, const std::string& hint) {
    throw ConfigError(fmt::format("{}, line {}: {}", source, number, why), hint);
  };
  for (const std::string& line : trireme::split(text, '\n')) {
    ++number;
    std::vector<std::string> words;
    for (std::string& word : trireme::split(line, ' ')) {
      const std::string_view bare = trimmed(word);
      if (!bare.empty()) words.emplace_back(bare);
    }
    if (words.empty() || words[0].starts_with('#')) continue;
    if (!named) {
      if (words[0] != "strategy" || words.size() != 2) fail("it does not begin with \"strategy GRAPH\"", "begin so");
      if (words[1] != forward.name)
        fail(fmt::format("the strategy is for {}, the graph is {}", words[1], forward.name),
             "take the graph it is for");
      named = true;
    } else if (!meshed) {
      if (words[0] != "mesh") fail("the second line is no mesh", "write \"mesh a=2 b=4\"");
      std::string axes;
      for (std::size_t i = 1; i < words.size(); ++i) axes += (axes.empty() ? "" : " ") + words[i];
      strategy = replicated(forward, layout::parse_mesh(axes));
      meshed = true;
    } else {
      const int op = forward.find_op(words[0]);
      if (op < 0) {
        std::vector<std::string> names;
        for (const Op& known : forward.ops) names.push_back(known.name);
        fail(fmt::format("graph {} has no operator {}{}", forward.name, words[0], did_you_mean(words[0], names)),
             "operators are listed by trireme graph show");
      }
      for (std::size_t i = 1; i < words.size(); ++i) {
        const std::size_t colon = words[i].rfind(':');
        const int dim = colon == std::string::npos ? -1 : forward.find_dim(words[i].substr(0, colon));
        if (dim < 0) fail(fmt::format("\"{}\" names no dimension", words[i]), "write DIMENSION:AXIS");
        const std::string axis = words[i].substr(colon + 1);
        const auto& axes = strategy.mesh.axes();
        const auto found = std::ranges::find_if(axes, [&](const layout::Axis& a) { return a.name == axis; });
        if (found == axes.end()) fail(fmt::format("the mesh has no axis {}", axis), "take one of the second line's");
        int& at = strategy.splits[static_cast<std::size_t>(op)][static_cast<std::size_t>(found - axes.begin())];
        if (at >= 0) fail(fmt::format("axis {} is given twice", axis), "an axis splits one dimension of an operator");
        at = dim;
      }
    }
  }
  if (!meshed) {
    fail("there is no mesh", "write \"strategy GRAPH\" and \"mesh a=2 b=4\" first");
  }
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
  return result;
}

}  // namespace trireme::plan::graph
