// plan/graph/strategy.h -- a strategy splits every operator of a graph; lowering says what that inserts, before it
// runs.
//
//   Strategy strategy = parse_strategy(graph, text, "plan.txt");
//   Lowering lowering = lower(with_backward(graph), strategy);     // every collective with its bytes
//   print(to_text(...));
//
// A strategy is for the forward graph; gradient operators are split as their forward operators are. A tensor lies as
// its producer makes it, a parameter as its first reader wants it. Each reader converts once what lies otherwise, and
// keeps it for backward: conversions belong to edges of the graph, as the papers count them. What is printed here is
// what a search prices and what an executor runs.
// Depends on: sharding, pricing.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/graph/draw.h"
#include "trireme/plan/graph/pricing.h"
#include "trireme/plan/graph/sharding.h"

namespace trireme::plan::graph {

struct Strategy {
  layout::Mesh mesh;
  std::vector<Split> splits;  ///< [operator of the forward graph]
  /// Parameters that lie otherwise than their first reader wants them, in more parts: gathered before they are read,
  /// their gradients reduce-scattered (ZeRO stage 3, FSDP).
  std::map<int, Sharding> stored = {};
  /// Forward operators whose activations are recomputed before their backward, in groups that are recomputed at once.
  std::vector<std::vector<int>> checkpoints = {};
  bool operator==(const Strategy&) const = default;
};

/// Every operator whole on every rank.
Strategy replicated(const Graph& forward, const layout::Mesh& mesh);

/// What contradicts itself, a sentence each: splits of dimensions that an operator does not have or that do not divide,
/// and operators that share a parameter and are not split alike.
std::vector<std::string> find_problems(const Graph& both, const Strategy& strategy);

/// How a parameter lies when the axes that only replicate it split it too, as far as a dimension of it divides.
Sharding fully_sharded(const Graph& both, const Strategy& strategy, int parameter);

/// "strategy NAME", "mesh a=2 b=4", then a line for each operator that is split: "fc6 fc6.out:a fc6.out:b"; for each
/// stored parameter "store fc6.weight fc6.out:a"; for each checkpoint "checkpoint conv1 relu1".
std::string to_text(const Graph& forward, const Strategy& strategy);
Strategy parse_strategy(const Graph& forward, std::string_view text, const std::string& source);

/// A strategy of one graph for another with the same operators and other sizes: the same dimensions of the same
/// operators. What does not divide there stays whole. ConfigError where the operators differ.
Strategy transferred(const Graph& from, const Strategy& strategy, const Graph& to);

/// Reads the lines of strategies, for texts that hold one or several.
class StrategyLines {
 public:
  StrategyLines(const Graph& forward, std::string source) : forward_(forward), source_(std::move(source)) {}
  /// ConfigError with the source and a line's number.
  [[noreturn]] void fail(std::size_t number, const std::string& why, const std::string& hint) const;
  /// The words of a line; empty for comments.
  static std::vector<std::string> words_of(const std::string& line);
  /// The first line, "KIND GRAPH": ConfigError unless it is of this kind and for this graph.
  void header(std::size_t number, const std::vector<std::string>& words, const std::string& kind) const;
  layout::Mesh mesh(std::size_t number, const std::vector<std::string>& words) const;
  /// "OP DIM:AXIS ...", "store ..." or "checkpoint ...". The operator, or -1.
  int read(std::size_t number, const std::vector<std::string>& words, Strategy& strategy) const;

 private:
  int op_named(std::size_t number, const std::string& name) const;
  std::pair<int, int> dim_and_axis(std::size_t number, const std::string& word, const Strategy& strategy) const;
  const Graph& forward_;
  const std::string source_;
};
/// Lines of an operator, of stored parameters and of checkpoints, as StrategyLines reads them.
std::string lines_of(const Graph& forward, const Strategy& strategy, const std::vector<int>& ops, bool also_whole);

/// What runs in which order: forward operators, then gradient operators, with forward operators once more before the
/// first gradient operator of their checkpoint.
struct ProgramStep {
  int op = -1;
  bool again = false;  ///< a forward operator that is recomputed
  bool operator==(const ProgramStep&) const = default;
};
std::vector<ProgramStep> program_of(const Graph& both, const Strategy& strategy);

enum class Phase : std::uint8_t { kForward, kBackward, kUpdate };
std::span<const Named<Phase>> enum_names(std::type_identity<Phase>);

/// One way of a tensor from where it is made to where it is read: what may have to be converted.
struct Link {
  int tensor = -1;
  int producer = -1;     ///< the operator; of a parameter that of its first reader
  int output = -1;       ///< which of its outputs; -1: a parameter, which lies as input `consumer` wants it
  int owner_input = -1;  ///< of a parameter: which input of its first reader it is
  int consumer = -1, input = -1;
  bool is_update = false;  ///< a finished gradient, to where its parameter lies; `consumer`, `input`: the parameter's
};
/// How an operator wants an input, whatever the split: the dimension of its iteration space by which each dimension of
/// the tensor is split, -1 where it must be whole. Two operators that want the same get the same conversion.
std::vector<int> wanted_dims(const IterationSpace& space, std::size_t input);

/// Parts of a parameter's gradient are added up as they are, partial sums too: all readers of a parameter that lie
/// alike make alike parts.
bool is_parameter_sum(const Graph& both, const Op& op);

/// Every link of a graph with its backward. What an operator has got it keeps for its backward, so each forward
/// operator has one link for a tensor, unless it wants it in two ways. A stored parameter has one to its first reader
/// too.
std::vector<Link> links_of(const Graph& both, const std::map<int, Sharding>& stored = {});

/// How a link's tensor lies before and after, for the splits of the two forward operators that decide it.
struct LinkEnds {
  Sharding from, to;
};
LinkEnds ends_of(const Graph& both, const std::vector<IterationSpace>& spaces, const Link& link, const Split& producer,
                 const Split& consumer);
/// The same of a strategy, stored parameters included.
LinkEnds ends_of(const Graph& both, const std::vector<IterationSpace>& spaces, const Link& link,
                 const Strategy& strategy);
/// How a rank holds a parameter.
Sharding parameter_sharding(const Graph& both, const Uses& uses, const std::vector<IterationSpace>& spaces,
                            const Strategy& strategy, int parameter);

struct Inserted {
  Phase phase = Phase::kForward;
  int op = -1;      ///< before or, for statistics, while this one runs
  int tensor = -1;  ///< -1: statistics
  Step step;
};

struct Lowering {
  std::vector<Inserted> inserted;
  std::vector<std::vector<int>> degrees;  ///< [operator][dimension of its iteration space]
  std::vector<double> tensor_bytes;       ///< [tensor] of one rank, as it is made
  std::vector<int> again = {};            ///< forward operators that are recomputed
};
Lowering lower(const Graph& both, const Strategy& strategy);

inline constexpr double kMoments = 2;  ///< of a parameter, as Adam keeps them

struct StrategyCost {
  double seconds = 0, compute_seconds = 0, communication_seconds = 0;
  double bytes = 0;         ///< that a rank sends at least, over all collectives and halos
  double memory_bytes = 0;  ///< of a rank, by liveness: parameters, gradients, activations; and Adam's moments
};
StrategyCost price(const Graph& both, const Lowering& lowering, const Pricing& pricing);

/// One line for each thing that is inserted: "forward  before fc7: fc6.out all-gather over a.b, 2 MB".
std::string to_text(const Graph& both, const Strategy& strategy, const Lowering& lowering);
/// Colours and labels of a picture (draw.h).
GraphDrawing drawing_of(const Graph& both, const Strategy& strategy, const Lowering& lowering);

}  // namespace trireme::plan::graph
