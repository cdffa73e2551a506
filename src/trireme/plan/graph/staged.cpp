// The text of a plan with stages, and what can be wrong with it.
#include "trireme/plan/graph/staged.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/search/baselines.h"
#include "trireme/schedule/builders.h"

namespace trireme::plan::graph {
namespace {

/// [forward operator] its stage; -1: nowhere.
std::vector<int> stages_of_ops(const Graph& forward, const StagedPlan& plan) {
  std::vector<int> stage(forward.ops.size(), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const int op : plan.stages[s].ops) stage[static_cast<std::size_t>(op)] = static_cast<int>(s);
  }
  return stage;
}

/// Why the schedule cannot run these stages; empty when it can.
std::string why_not_scheduled(const StagedPlan& plan) {
  const schedule::Shape shape{.ranks = static_cast<int>(plan.stages.size()), .micros = plan.micros};
  const schedule::Kind& kind = schedule::find_kind(plan.schedule);
  if (kind.asynchronous || kind.default_chunks != 1)
    return fmt::format("schedule {} {}; graphs run with one chunk a rank and a flush: gpipe, 1f1b, zb-h1, zb-h2",
                       kind.name,
                       kind.asynchronous ? "updates while micro-batches are in flight" : "has several chunks a rank");
  if (std::string why = kind.refuses(shape); !why.empty()) return fmt::format("schedule {}: {}", kind.name, why);
  for (const auto& rank : schedule::build(plan.schedule, shape).ranks) {
    for (const schedule::Instruction& one : rank) {
      // Gradients are reduced and parameters updated after the last backward, as the table says.
      using PassOp = schedule::Op;
      const bool is_backward =
          one.op == PassOp::kBackward || one.op == PassOp::kBackwardInput || one.op == PassOp::kBackwardWeight;
      if (one.op != PassOp::kForward && !is_backward && one.op != PassOp::kReduceGradients &&
          one.op != PassOp::kOptimizerStep)
        return fmt::format("schedule {} has {} of its own, which graphs do not have", kind.name,
                           schedule::info(one.op).words);
    }
  }
  return "";
}

}  // namespace

bool splits_backward(const StagedPlan& plan) {
  const schedule::Shape shape{.ranks = static_cast<int>(plan.stages.size()), .micros = plan.micros};
  const schedule::Kind& kind = schedule::find_kind(plan.schedule);
  if (kind.asynchronous || kind.default_chunks != 1 || !kind.refuses(shape).empty()) return false;
  for (const auto& rank : schedule::build(plan.schedule, shape).ranks) {
    for (const schedule::Instruction& one : rank) {
      if (one.op == schedule::Op::kBackwardWeight) return true;
    }
  }
  return false;
}

int StagedPlan::ranks() const { return first_rank(stages.size()); }

int StagedPlan::first_rank(std::size_t stage) const {
  int rank = 0;
  for (std::size_t i = 0; i < stage; ++i) rank += stages[i].strategy.mesh.ranks();
  return rank;
}

bool is_staged_text(std::string_view text) {
  for (const std::string& line : trireme::split(text, '\n')) {
    const std::vector<std::string> words = StrategyLines::words_of(line);
    if (!words.empty()) return words[0] == "pipeline";
  }
  return false;
}

std::string to_text(const Graph& forward, const StagedPlan& plan) {
  std::string text = fmt::format("pipeline {}\nmicros {}\nschedule {}\n", forward.name, plan.micros, plan.schedule);
  for (const StagePlan& stage : plan.stages)
    text += fmt::format("stage\nmesh {}\n{}", layout::to_text(stage.strategy.mesh),
                        lines_of(forward, stage.strategy, stage.ops, true));
  return text;
}

StagedPlan parse_staged(const Graph& forward, std::string_view text, const std::string& source) {
  const StrategyLines lines(forward, source);
  StagedPlan plan;
  bool named = false, needs_mesh = false;
  std::size_t number = 0;
  for (const std::string& line : trireme::split(text, '\n')) {
    ++number;
    const std::vector<std::string> words = StrategyLines::words_of(line);
    if (words.empty()) continue;
    if (!named) {
      lines.header(number, words, "pipeline");
      named = true;
    } else if (words[0] == "micros" && plan.stages.empty()) {
      const std::string value = words.size() == 2 ? words[1] : "";
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), plan.micros);
      if (error != std::errc() || end != value.data() + value.size() || plan.micros < 1)
        lines.fail(number, "micros is no positive number", "write \"micros 8\"");
    } else if (words[0] == "schedule" && plan.stages.empty()) {
      if (words.size() != 2) lines.fail(number, "schedule has one name", "write \"schedule 1f1b\"");
      plan.schedule = words[1];
    } else if (words[0] == "stage" && words.size() == 1) {
      plan.stages.emplace_back();
      needs_mesh = true;
    } else if (plan.stages.empty()) {
      lines.fail(number, fmt::format("\"{}\" stands before the first stage", words[0]), "write \"stage\" above it");
    } else if (needs_mesh) {
      plan.stages.back().strategy = replicated(forward, lines.mesh(number, words));
      needs_mesh = false;
    } else {
      StagePlan& stage = plan.stages.back();
      const int op = lines.read(number, words, stage.strategy);
      if (op < 0) continue;
      if (std::ranges::find(stage.ops, op) != stage.ops.end())
        lines.fail(number, fmt::format("operator {} stands in the stage twice", words[0]), "leave one of them out");
      stage.ops.push_back(op);
    }
  }
  if (plan.stages.empty() || needs_mesh)
    lines.fail(number, "there is no stage with a mesh", "write \"stage\", \"mesh a=2\" and its operators");
  for (StagePlan& stage : plan.stages) std::ranges::sort(stage.ops);
  return plan;
}

std::vector<std::string> find_problems(const Graph& forward, const StagedPlan& plan) {
  std::vector<std::string> problems;
  std::vector<int> count(forward.ops.size(), 0);
  for (const StagePlan& stage : plan.stages) {
    if (stage.ops.empty()) problems.emplace_back("a stage has no operators");
    for (const int op : stage.ops) ++count[static_cast<std::size_t>(op)];
    for (const auto& group : stage.strategy.checkpoints) {
      for (const int op : group) {
        if (std::ranges::find(stage.ops, op) == stage.ops.end())
          problems.push_back(fmt::format("operator {} is in another stage than its checkpoint", forward.op(op).name));
      }
    }
  }
  for (std::size_t i = 0; i < forward.ops.size(); ++i) {
    if (forward.ops[i].forward >= 0 || count[i] == 1) continue;
    problems.push_back(
        fmt::format("operator {} stands in {}", forward.ops[i].name, count[i] == 0 ? "no stage" : "several stages"));
  }
  const Index batch = forward.size(sample_dim(forward));
  if (plan.micros < 1 || batch % plan.micros != 0)
    problems.push_back(fmt::format("{} samples do not divide into {} micro-batches", batch, plan.micros));
  if (!problems.empty()) return problems;
  if (std::string why = why_not_scheduled(plan); !why.empty()) problems.push_back(std::move(why));
  const std::vector<int> stage = stages_of_ops(forward, plan);
  const Uses uses = uses_of(forward);
  for (std::size_t tensor = 0; tensor < forward.tensors.size(); ++tensor) {
    const int producer = uses.producer[tensor];
    if (producer < 0 || forward.op(producer).forward >= 0) continue;
    for (const int consumer : uses.consumers[tensor]) {
      if (forward.op(consumer).forward >= 0) continue;
      if (stage[static_cast<std::size_t>(consumer)] < stage[static_cast<std::size_t>(producer)])
        problems.push_back(fmt::format("operator {} is in stage {} and reads {}, which stage {} makes",
                                       forward.op(consumer).name, stage[static_cast<std::size_t>(consumer)],
                                       forward.tensor(static_cast<int>(tensor)).name,
                                       stage[static_cast<std::size_t>(producer)]));
    }
  }
  if (!problems.empty()) return problems;
  const StagedGraph staged = stage_graphs(micro_graph(with_backward(forward), plan.micros).graph, plan);
  for (std::size_t s = 0; s < staged.stages.size(); ++s) {
    for (const std::string& problem : find_problems(staged.stages[s].graph, staged.stages[s].strategy))
      problems.push_back(fmt::format("stage {}: {}", s, problem));
  }
  return problems;
}

StagedPlan transferred(const Graph& from, const StagedPlan& plan, const Graph& to) {
  StagedPlan result = plan;
  for (StagePlan& stage : result.stages) stage.strategy = transferred(from, stage.strategy, to);
  result.micros = static_cast<int>(std::gcd(Index{plan.micros}, to.size(sample_dim(to))));
  return made_legal(to, std::move(result));
}

StagedPlan made_legal(const Graph& forward, StagedPlan plan) {
  const Graph both = micro_graph(with_backward(forward), plan.micros).graph;
  const std::vector<int> stage = stages_of_ops(forward, plan);
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const int op = both.ops[i].forward >= 0 ? both.ops[i].forward : static_cast<int>(i);
    Strategy& strategy = plan.stages[static_cast<std::size_t>(stage[static_cast<std::size_t>(op)])].strategy;
    Split& split = strategy.splits[static_cast<std::size_t>(op)];
    while (!why_not(both, strategy.mesh, both.ops[i], iteration_space(both, both.ops[i]), split).empty()) {
      const auto last = std::ranges::find_if(split.rbegin(), split.rend(), [](int dim) { return dim >= 0; });
      if (last == split.rend()) break;
      *last = -1;
    }
  }
  // Operators of a stage that share a parameter are split alike: as the first of them, or else whole.
  const Uses uses = uses_of(forward);
  const StagedGraph staged = stage_graphs(both, plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    Strategy& strategy = plan.stages[s].strategy;
    if (find_problems(staged.stages[s].graph, staged.stages[s].strategy).empty()) continue;
    for (std::size_t tensor = 0; tensor < forward.tensors.size(); ++tensor) {
      if (forward.tensors[tensor].role != Role::kParameter) continue;
      std::vector<int> readers;
      for (const int reader : uses.consumers[tensor]) {
        if (forward.op(reader).forward < 0 && stage[static_cast<std::size_t>(reader)] == static_cast<int>(s))
          readers.push_back(reader);
      }
      const bool alike = std::ranges::all_of(readers, [&](int reader) {
        return strategy.splits[static_cast<std::size_t>(reader)] == strategy.splits[std::size_t(readers[0])];
      });
      for (const int reader : readers) {
        if (!alike) std::ranges::fill(strategy.splits[static_cast<std::size_t>(reader)], -1);
      }
    }
  }
  return plan;
}

GraphDrawing drawing_of(const Graph& forward, const StagedPlan& plan) {
  GraphDrawing drawing{.caption = fmt::format("{}, {} micro-batches, {}", counted(plan.stages.size(), "stage"),
                                              plan.micros, plan.schedule)};
  drawing.marks.resize(forward.ops.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Strategy& strategy = plan.stages[s].strategy;
    for (const int op : plan.stages[s].ops) {
      OpMark& mark = drawing.marks[static_cast<std::size_t>(op)];
      const IterationSpace space = iteration_space(forward, forward.op(op));
      const std::vector<int> degrees = degrees_of(strategy.mesh, space, strategy.splits[static_cast<std::size_t>(op)]);
      mark.stage = static_cast<int>(s);
      for (std::size_t place = 0; place < space.dims.size(); ++place) {
        if (degrees[place] == 1) continue;
        mark.splits.push_back(
            fmt::format("{} /{}", forward.dims[static_cast<std::size_t>(space.dims[place].dim)].name, degrees[place]));
        mark.kinds.push_back(space.dims[place].kind);
      }
    }
  }
  return drawing;
}

std::string describe(const Graph& forward, const StagedPlan& plan) {
  const Graph both = micro_graph(with_backward(forward), plan.micros).graph;
  const StagedGraph staged = stage_graphs(both, plan);
  std::string text;
  for (std::size_t s = 0; s < staged.stages.size(); ++s) {
    const Stage& stage = staged.stages[s];
    text += fmt::format("stage {} (ranks {} to {}):\n{}", s, stage.first_rank,
                        stage.first_rank + stage.strategy.mesh.ranks() - 1,
                        to_text(stage.graph, stage.strategy, lower(stage.graph, stage.strategy)));
  }
  for (const Delivery& delivery : staged.deliveries)
    text += fmt::format("{}  {} from stage {} to stage {}, {}\n", delivery.is_gradient ? "backward" : "forward ",
                        both.tensor(delivery.tensor).name, delivery.from_stage, delivery.to_stage,
                        short_bytes(both.bytes(both.tensor(delivery.tensor))));
  for (const SharedParameter& shared : staged.shared)
    text += fmt::format("update    {} is held by {}: gradients are summed\n", both.tensor(shared.tensor).name,
                        counted(shared.stages.size(), "stage"));
  return text;
}

}  // namespace trireme::plan::graph
