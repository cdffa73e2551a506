// From a strategy to what it inserts.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {
namespace {

constexpr Named<Phase> kPhases[] = {
    {"forward", Phase::kForward}, {"backward", Phase::kBackward}, {"update", Phase::kUpdate}};

int forward_of(const Graph& both, int op) { return both.op(op).forward >= 0 ? both.op(op).forward : op; }

std::vector<IterationSpace> spaces_of(const Graph& both) {
  std::vector<IterationSpace> spaces;
  spaces.reserve(both.ops.size());
  for (const Op& op : both.ops) spaces.push_back(iteration_space(both, op));
  return spaces;
}

/// Which of the operator's outputs a tensor is.
int output_index(const Op& op, int tensor) {
  return static_cast<int>(std::ranges::find(op.outputs, tensor) - op.outputs.begin());
}
int input_index(const Op& op, int tensor) {
  return static_cast<int>(std::ranges::find(op.inputs, tensor) - op.inputs.begin());
}

/// Stored parameters must be gathered from inner parts of what is wanted; checkpoints are of forward operators.
void add_storage_problems(const Graph& both, const Strategy& strategy, const Uses& uses,
                          std::vector<std::string>& problems) {
  Strategy plain = strategy;
  plain.stored.clear();
  const std::vector<IterationSpace> spaces = strategy.stored.empty() ? std::vector<IterationSpace>{} : spaces_of(both);
  for (const auto& [parameter, sharding] : strategy.stored) {
    const Tensor& tensor = both.tensor(parameter);
    if (tensor.role != Role::kParameter || uses.consumers[static_cast<std::size_t>(parameter)].empty()) {
      problems.push_back(fmt::format("{} is stored in parts, and is no parameter of these operators", tensor.name));
      continue;
    }
    const Sharding wanted = parameter_sharding(both, uses, spaces, plain, parameter);
    MeshAxes all;
    for (std::size_t dim = 0; dim < tensor.dims.size(); ++dim) {
      const MeshAxes& axes = sharding.dims[dim];
      Index parts = 1;
      for (const int axis : axes) parts *= strategy.mesh.axes()[static_cast<std::size_t>(axis)].size;
      all.insert(all.end(), axes.begin(), axes.end());
      const std::string& name = both.dims[static_cast<std::size_t>(tensor.dims[dim])].name;
      if (both.size(tensor.dims[dim]) % parts != 0)
        problems.push_back(fmt::format("{} cannot be stored in {} parts of {}: it has {}", tensor.name, parts, name,
                                       both.size(tensor.dims[dim])));
      const auto& begin = wanted.dims[dim];
      if (!std::ranges::is_sorted(axes) || axes.size() < begin.size() ||
          !std::equal(begin.begin(), begin.end(), axes.begin()))
        problems.push_back(
            fmt::format("{} cannot be stored so along {}: what {} wants must come first, and axes stand "
                        "in the mesh's order",
                        tensor.name, name, both.op(uses.consumers[std::size_t(parameter)][0]).name));
    }
    std::ranges::sort(all);
    if (std::ranges::adjacent_find(all) != all.end())
      problems.push_back(fmt::format("{} is stored with a mesh axis twice", tensor.name));
  }
  std::set<int> seen;
  for (const auto& group : strategy.checkpoints) {
    for (const int op : group) {
      if (both.op(op).forward >= 0 || !seen.insert(op).second)
        problems.push_back(
            fmt::format("operator {} stands in two checkpoints, or is no forward operator", both.op(op).name));
    }
    if (!std::ranges::is_sorted(group)) problems.push_back("operators of a checkpoint stand in the graph's order");
  }
}

}  // namespace

std::span<const Named<Phase>> enum_names(std::type_identity<Phase>) { return kPhases; }

bool is_parameter_sum(const Graph& both, const Op& op) {
  if (op.forward < 0 || op.kind != OpKind::kElementwise || op.part != Part::kForward) return false;
  const int of = both.tensor(op.outputs[0]).grad_of;
  return of >= 0 && both.tensor(of).role == Role::kParameter;
}

std::vector<int> wanted_dims(const IterationSpace& space, std::size_t input) {
  std::vector<int> wanted;
  for (const int place : space.inputs[input]) {
    const IterationDim& dim = space.dims[static_cast<std::size_t>(place)];
    wanted.push_back(dim.kind == DimKind::kWhole ? -1 : dim.dim);
  }
  return wanted;
}

std::vector<Link> links_of(const Graph& both, const std::map<int, Sharding>& stored) {
  const Uses uses = uses_of(both);
  std::vector<Link> links;
  std::set<std::tuple<int, int, std::vector<int>>> seen;  // tensor, forward operator, how it wants it
  const auto producer_of = [&](int tensor, Link& link) {
    int producer = uses.producer[static_cast<std::size_t>(tensor)];
    int made = tensor;
    // A sum of a parameter's gradient lies as its parts do.
    while (producer >= 0 && is_parameter_sum(both, both.op(producer))) {
      made = both.op(producer).inputs[0];
      producer = uses.producer[static_cast<std::size_t>(made)];
    }
    link.producer = producer;
    link.output = output_index(both.op(producer), made);
  };
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const Op& op = both.ops[i];
    if (is_parameter_sum(both, op)) continue;
    const IterationSpace space = iteration_space(both, op);
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const int tensor = op.inputs[k];
      const Role role = both.tensor(tensor).role;
      if (role == Role::kInput ||
          !seen.emplace(tensor, forward_of(both, static_cast<int>(i)), wanted_dims(space, k)).second)
        continue;
      Link link{.tensor = tensor, .consumer = static_cast<int>(i), .input = static_cast<int>(k)};
      if (role == Role::kParameter || role == Role::kReceived) {
        link.producer = uses.consumers[static_cast<std::size_t>(tensor)][0];
        link.owner_input = input_index(both.op(link.producer), tensor);
        const bool lies_so = role == Role::kParameter && !stored.contains(tensor);
        if (lies_so && link.producer == link.consumer && link.owner_input == link.input) continue;
      } else {
        producer_of(tensor, link);
      }
      links.push_back(link);
    }
  }
  for (std::size_t i = 0; i < both.tensors.size(); ++i) {
    if (both.tensors[i].role != Role::kParameter) continue;
    const int gradient = gradient_of(both, static_cast<int>(i));
    if (gradient < 0) continue;
    Link link{.tensor = gradient, .consumer = uses.consumers[i][0], .is_update = true};
    link.input = input_index(both.op(link.consumer), static_cast<int>(i));
    producer_of(gradient, link);
    links.push_back(link);
  }
  return links;
}

LinkEnds ends_of(const Graph& both, const std::vector<IterationSpace>& spaces, const Link& link, const Split& producer,
                 const Split& consumer) {
  (void)both;
  const IterationSpace& made = spaces[static_cast<std::size_t>(link.producer)];
  const IterationSpace& read = spaces[static_cast<std::size_t>(link.consumer)];
  return {link.output >= 0 ? output_sharding(made, producer, static_cast<std::size_t>(link.output))
                           : input_sharding(made, producer, static_cast<std::size_t>(link.owner_input)),
          input_sharding(read, consumer, static_cast<std::size_t>(link.input))};
}

LinkEnds ends_of(const Graph& both, const std::vector<IterationSpace>& spaces, const Link& link,
                 const Strategy& strategy) {
  const auto split_of = [&](int op) -> const Split& {
    return strategy.splits[static_cast<std::size_t>(forward_of(both, op))];
  };
  LinkEnds ends = ends_of(both, spaces, link, split_of(link.producer), split_of(link.consumer));
  if (const auto stored = strategy.stored.find(link.tensor); stored != strategy.stored.end())
    ends.from = stored->second;
  if (link.is_update) {
    const auto stored = strategy.stored.find(both.tensor(link.tensor).grad_of);
    if (stored != strategy.stored.end()) ends.to = stored->second;
  }
  return ends;
}

Sharding parameter_sharding(const Graph& both, const Uses& uses, const std::vector<IterationSpace>& spaces,
                            const Strategy& strategy, int parameter) {
  if (const auto stored = strategy.stored.find(parameter); stored != strategy.stored.end()) return stored->second;
  const int owner = uses.consumers[static_cast<std::size_t>(parameter)][0];
  return input_sharding(spaces[static_cast<std::size_t>(owner)],
                        strategy.splits[static_cast<std::size_t>(forward_of(both, owner))],
                        static_cast<std::size_t>(input_index(both.op(owner), parameter)));
}

Sharding fully_sharded(const Graph& both, const Strategy& strategy, int parameter) {
  int owner = 0;  // its first reader, whose space alone is needed
  while (std::ranges::find(both.op(owner).inputs, parameter) == both.op(owner).inputs.end()) ++owner;
  Sharding sharding = input_sharding(iteration_space(both, both.op(owner)),
                                     strategy.splits[static_cast<std::size_t>(forward_of(both, owner))],
                                     static_cast<std::size_t>(input_index(both.op(owner), parameter)));
  const auto& dims = both.tensor(parameter).dims;
  for (std::size_t axis = 0; axis < strategy.mesh.axes().size(); ++axis) {
    const int index = static_cast<int>(axis);
    const bool used =
        std::ranges::any_of(sharding.dims, [&](const MeshAxes& axes) { return std::ranges::count(axes, index) > 0; });
    for (std::size_t dim = 0; dim < dims.size() && !used; ++dim) {
      // Blocks stay contiguous only where axes are added at the inner end.
      Index parts = strategy.mesh.axes()[axis].size;
      for (const int other : sharding.dims[dim]) parts *= strategy.mesh.axes()[static_cast<std::size_t>(other)].size;
      const bool inner = sharding.dims[dim].empty() || sharding.dims[dim].back() < index;
      if (!inner || both.size(dims[dim]) % parts != 0) continue;
      sharding.dims[dim].push_back(index);
      break;
    }
  }
  return sharding;
}

std::vector<ProgramStep> program_of(const Graph& both, const Strategy& strategy) {
  std::vector<ProgramStep> program;
  std::map<int, const std::vector<int>*> group_of;
  for (const auto& group : strategy.checkpoints) {
    for (const int op : group) group_of[op] = &group;
  }
  std::set<const std::vector<int>*> ready;
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const int index = static_cast<int>(i);
    const auto group = group_of.find(forward_of(both, index));
    if (both.ops[i].forward >= 0 && group != group_of.end() && ready.insert(group->second).second) {
      for (const int op : *group->second) program.push_back({op, true});
    }
    program.push_back({index, false});
  }
  return program;
}

Strategy replicated(const Graph& forward, const layout::Mesh& mesh) {
  const auto ops =
      static_cast<std::size_t>(std::ranges::count_if(forward.ops, [](const Op& op) { return op.forward < 0; }));
  return {mesh, std::vector<Split>(ops, Split(mesh.axes().size(), -1))};
}

std::vector<std::string> find_problems(const Graph& both, const Strategy& strategy) {
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const Op& op = both.ops[i];
    const auto forward = static_cast<std::size_t>(forward_of(both, static_cast<int>(i)));
    if (forward >= strategy.splits.size() || strategy.splits[forward].size() != strategy.mesh.axes().size()) {
      problems.push_back(fmt::format("the strategy says nothing of operator {}", op.name));
      continue;
    }
    const Split& split = strategy.splits[forward];
    const IterationSpace space = iteration_space(both, op);
    for (std::size_t axis = 0; axis < split.size() && op.forward < 0; ++axis) {
      if (split[axis] < 0 || space.find(split[axis]) >= 0) continue;
      problems.push_back(fmt::format(
          "operator {} cannot be split along {}: {}", op.name, both.dims[static_cast<std::size_t>(split[axis])].name,
          std::ranges::any_of(space.dims, [&](const IterationDim& d) { return d.dim == split[axis]; })
              ? "it needs the whole of it"
              : "it has no such dimension"));
    }
    const std::string why = why_not(both, strategy.mesh, op, space, split);
    if (!why.empty()) problems.push_back(why);
  }
  if (!problems.empty()) return problems;
  const Uses uses = uses_of(both);
  add_storage_problems(both, strategy, uses, problems);
  for (const Op& op : both.ops) {
    if (!is_parameter_sum(both, op)) continue;
    const auto sharding_of = [&](int piece) {
      const int producer = uses.producer[static_cast<std::size_t>(piece)];
      return output_sharding(iteration_space(both, both.op(producer)),
                             strategy.splits[static_cast<std::size_t>(forward_of(both, producer))],
                             static_cast<std::size_t>(output_index(both.op(producer), piece)));
    };
    for (const int piece : op.inputs) {
      if (sharding_of(piece) == sharding_of(op.inputs[0])) continue;
      const auto reader = [&](int of) {
        return both.op(forward_of(both, uses.producer[static_cast<std::size_t>(of)])).name;
      };
      problems.push_back(fmt::format("operators {} and {} share the parameter {} and are not split alike",
                                     reader(op.inputs[0]), reader(piece),
                                     both.tensor(both.tensor(piece).grad_of).name));
    }
  }
  return problems;
}

Lowering lower(const Graph& both, const Strategy& strategy) {
  const std::vector<IterationSpace> spaces = spaces_of(both);
  const auto split_of = [&](int op) -> const Split& {
    return strategy.splits[static_cast<std::size_t>(forward_of(both, op))];
  };
  Lowering lowering;
  const std::vector<Link> links = links_of(both, strategy.stored);
  std::vector<std::vector<const Link*>> into(both.ops.size());
  for (const Link& link : links) {
    if (!link.is_update) into[static_cast<std::size_t>(link.consumer)].push_back(&link);
  }
  const auto add_steps = [&](Phase phase, const Link& link) {
    const LinkEnds ends = ends_of(both, spaces, link, strategy);
    for (Step& step : convert(strategy.mesh, both.bytes(both.tensor(link.tensor)), ends.from, ends.to))
      lowering.inserted.push_back({phase, link.consumer, link.tensor, std::move(step)});
  };
  lowering.tensor_bytes.resize(both.tensors.size());
  for (std::size_t i = 0; i < both.tensors.size(); ++i) lowering.tensor_bytes[i] = both.bytes(both.tensors[i]);
  const auto set_bytes = [&](int tensor, const std::vector<int>& places, const std::vector<int>& degrees) {
    double& bytes = lowering.tensor_bytes[static_cast<std::size_t>(tensor)];
    bytes = both.bytes(both.tensor(tensor));
    for (const int place : places) bytes /= degrees[static_cast<std::size_t>(place)];
  };
  std::set<std::tuple<int, int, MeshAxes>> halos;  // tensor, forward operator, axes: kept for backward
  std::set<int> placed;                            // parameters and inputs
  for (const ProgramStep& program_step : program_of(both, strategy)) {
    const int index = program_step.op, forward = forward_of(both, index);
    const auto i = static_cast<std::size_t>(index);
    const Op& op = both.ops[i];
    const Phase phase = op.forward >= 0 || program_step.again ? Phase::kBackward : Phase::kForward;
    if (program_step.again) std::erase_if(halos, [&](const auto& halo) { return std::get<1>(halo) == forward; });
    for (const Link* link : into[i]) add_steps(phase, *link);
    for (Exchange& exchange : exchanges_of(both, strategy.mesh, op, spaces[i], split_of(index))) {
      if (exchange.tensor >= 0 && !halos.emplace(exchange.tensor, forward, exchange.step.axes).second) continue;
      lowering.inserted.push_back({phase, index, exchange.tensor, std::move(exchange.step)});
    }
    if (program_step.again) continue;
    lowering.degrees.push_back(degrees_of(strategy.mesh, spaces[i], split_of(index)));
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (both.tensor(op.inputs[k]).role != Role::kActivation && placed.insert(op.inputs[k]).second)
        set_bytes(op.inputs[k], spaces[i].inputs[k], lowering.degrees.back());
    }
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      set_bytes(op.outputs[k], spaces[i].outputs[k], lowering.degrees.back());
  }
  for (const auto& [parameter, sharding] : strategy.stored) {
    double& bytes = lowering.tensor_bytes[static_cast<std::size_t>(parameter)];
    bytes = both.bytes(both.tensor(parameter));
    for (const MeshAxes& axes : sharding.dims) {
      for (const int axis : axes) bytes /= strategy.mesh.axes()[static_cast<std::size_t>(axis)].size;
    }
  }
  for (const Link& link : links) {
    if (link.is_update) add_steps(Phase::kUpdate, link);
  }
  lowering.again = {};
  for (const auto& group : strategy.checkpoints)
    lowering.again.insert(lowering.again.end(), group.begin(), group.end());
  return lowering;
}

StrategyCost price(const Graph& both, const Lowering& lowering, const Pricing& pricing) {
  StrategyCost cost;
  for (std::size_t i = 0; i < both.ops.size(); ++i)
    cost.compute_seconds += pricing.seconds(both, both.ops[i], iteration_space(both, both.ops[i]), lowering.degrees[i]);
  for (const int op : lowering.again)
    cost.compute_seconds += pricing.seconds(both, both.op(op), iteration_space(both, both.op(op)),
                                            lowering.degrees[static_cast<std::size_t>(op)]);
  for (const Inserted& inserted : lowering.inserted) {
    cost.communication_seconds +=
        inserted.phase == Phase::kUpdate ? pricing.reduction_seconds(inserted.step) : pricing.seconds(inserted.step);
    cost.bytes += pricing.wire_bytes(inserted.step);
  }
  cost.seconds = cost.compute_seconds + cost.communication_seconds;
  const std::vector<double> live =
      live_bytes(both, [&](int tensor) { return lowering.tensor_bytes[static_cast<std::size_t>(tensor)]; });
  if (!live.empty()) cost.memory_bytes = *std::ranges::max_element(live);
  for (std::size_t i = 0; i < both.tensors.size(); ++i) {
    if (both.tensors[i].role == Role::kParameter) cost.memory_bytes += kMoments * lowering.tensor_bytes[i];
  }
  return cost;
}

std::string to_text(const Graph& both, const Strategy& strategy, const Lowering& lowering) {
  std::string text;
  for (const Inserted& inserted : lowering.inserted) {
    const std::string where = inserted.phase == Phase::kUpdate ? "" : "before " + both.op(inserted.op).name + ": ";
    text += fmt::format("{:<8}  {}{} {}\n", name_of(inserted.phase), where,
                        inserted.tensor < 0 ? "statistics" : both.tensor(inserted.tensor).name,
                        to_text(strategy.mesh, inserted.step));
  }
  return text;
}

GraphDrawing drawing_of(const Graph& both, const Strategy& strategy, const Lowering& lowering) {
  GraphDrawing drawing{.caption = "mesh " + layout::to_text(strategy.mesh)};
  const Uses uses = uses_of(both);
  drawing.marks.resize(both.ops.size());
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    const IterationSpace space = iteration_space(both, both.ops[i]);
    for (std::size_t place = 0; place < space.dims.size(); ++place) {
      const int parts = lowering.degrees[i][place];
      if (parts == 1) continue;
      const std::string& name = both.dims[static_cast<std::size_t>(space.dims[place].dim)].name;
      drawing.marks[i].splits.push_back(fmt::format("{} /{}", name, parts));
      drawing.marks[i].kinds.push_back(space.dims[place].kind);
    }
  }
  for (const Inserted& inserted : lowering.inserted) {
    if (inserted.phase == Phase::kBackward || inserted.step.kind == StepKind::kSlice) continue;
    const std::string text = fmt::format("{} {}", name_of(inserted.step.kind), short_bytes(inserted.step.bytes));
    const int producer = inserted.tensor < 0 ? -1 : uses.producer[static_cast<std::size_t>(inserted.tensor)];
    if (inserted.phase == Phase::kUpdate || producer < 0) continue;
    std::string& label = drawing.edges[{producer, inserted.op}];
    label += (label.empty() ? "" : ", ") + text;
  }
  return drawing;
}

}  // namespace trireme::plan::graph
