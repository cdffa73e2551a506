#include "trireme/plan/graph/profile.h"

#include <fmt/format.h>

#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {
namespace {

std::string sizes_text(const std::vector<Index>& sizes) {
  std::string text;
  for (const Index size : sizes) text += fmt::format("{}{}", text.empty() ? "" : "x", size);
  return text.empty() ? "1" : text;
}

std::string operand_text(const Graph& graph, int tensor, const std::vector<int>& places, std::span<const int> degrees) {
  std::vector<Index> sizes;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Index whole = graph.size(graph.tensor(tensor).dims[i]);
    sizes.push_back(degrees.empty() ? whole : whole / degrees[static_cast<std::size_t>(places[i])]);
  }
  return sizes_text(sizes);
}

}  // namespace

std::optional<double> OperatorProfile::of(std::string_view key) const {
  const auto found = seconds.find(key);
  return found == seconds.end() ? std::nullopt : std::optional(found->second);
}

std::string profile_key(const Graph& graph, const Op& op, const IterationSpace& space, std::span<const int> degrees) {
  const Op& forward = op.forward >= 0 ? graph.op(op.forward) : op;
  // Parts of a parameter's gradient are added in a way that depends on who makes them.
  std::string key = is_parameter_sum(graph, op) ? fmt::format("gradient-sum.{}", name_of(forward.kind))
                                                : fmt::format("{}.{}", name_of(op.kind), name_of(op.part));
  if (!op.function.empty()) key += "." + op.function;
  if (op.bias) key += ".bias";
  key += " " + std::string(name_of(graph.tensor(op.outputs[0]).dtype));
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    key += " " + operand_text(graph, op.inputs[i], space.inputs[i], degrees);
  key += " ->";
  for (std::size_t i = 0; i < op.outputs.size(); ++i)
    key += " " + operand_text(graph, op.outputs[i], space.outputs[i], degrees);
  for (const Window& window : forward.windows)
    key += fmt::format(" k{}s{}p{}d{}", window.kernel, window.stride, window.padding, window.dilation);
  if (forward.reach > 0) key += fmt::format(" reach{}", forward.reach);
  // Halos and shared statistics take another way through a kernel.
  for (std::size_t i = 0; i < space.dims.size() && !degrees.empty(); ++i) {
    const DimKind kind = space.dims[i].kind;
    if (degrees[i] > 1 && kind == DimKind::kWindowed)
      key += fmt::format(" halo{}/{}", space.dims[i].window, degrees[i]);
    if (degrees[i] > 1 && kind == DimKind::kStatistic) key += fmt::format(" statistic/{}", degrees[i]);
  }
  return key;
}

std::string profile_key(const Step& step, int ranks, const std::vector<Index>& sizes, DType dtype) {
  return fmt::format("{} {} {} over {} from {} to {}", name_of(step.kind), name_of(dtype), sizes_text(sizes), ranks,
                     step.from_dim, step.to_dim);
}

std::vector<Index> sizes_after(const Step& step, int ranks, std::vector<Index> sizes) {
  const bool gathers = step.kind == StepKind::kAllGather || step.kind == StepKind::kAllToAll;
  const bool divides =
      step.kind == StepKind::kSlice || step.kind == StepKind::kReduceScatter || step.kind == StepKind::kAllToAll;
  if (gathers) sizes[static_cast<std::size_t>(step.from_dim)] *= ranks;
  if (divides) sizes[static_cast<std::size_t>(step.to_dim)] /= ranks;
  return sizes;
}

std::string to_text(const OperatorProfile& profile) {
  std::string text = "operator-profile\n# microseconds, and what took them: kind, type and sizes of a rank's part\n";
  for (const auto& [key, seconds] : profile.seconds) text += fmt::format("{:.9g} {}\n", 1e6 * seconds, key);
  return text;
}

OperatorProfile parse_profile(std::string_view text, const std::string& source) {
  OperatorProfile profile;
  std::size_t number = 0;
  bool begun = false;
  for (const std::string& raw : split(text, '\n')) {
    ++number;
    const std::string_view line = trimmed(raw);
    if (line.empty() || line.front() == '#') continue;
    const auto fail = [&](const std::string& why) {
      throw ConfigError(fmt::format("{}, line {}: {}", source, number, why), "take a file of trireme graph profile -o");
    };
    if (!begun) {
      if (line != "operator-profile") fail("it does not begin with \"operator-profile\"");
      begun = true;
      continue;
    }
    double microseconds = -1;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), microseconds);
    const std::string_view key = trimmed(line.substr(static_cast<std::size_t>(end - line.data())));
    if (error != std::errc() || !(microseconds >= 0) || !(microseconds < 1e15) || key.empty())
      fail("a line is microseconds and what took them");
    if (!profile.seconds.emplace(key, microseconds / 1e6).second) fail(fmt::format("\"{}\" stands there twice", key));
  }
  if (!begun) throw ConfigError(source + " is empty", "take a file of trireme graph profile -o");
  return profile;
}

}  // namespace trireme::plan::graph
