#include "trireme/plan/graph/predict.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/cost/roofline.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/replay.h"

namespace trireme::plan::graph {
namespace {

/// Seconds of one micro-batch of a graph with a strategy, pass by pass.
struct Passes {
  double forward = 0, backward = 0;              // of operators
  double weights = 0;                            // of backward, what zero-bubble schedules do later
  double forward_sends = 0, backward_sends = 0;  // of conversions, halos and statistics
  double update = 0, update_sends = 0;           // of the whole step
};

class PassTimes {
 public:
  PassTimes(const Graph& both, const Strategy& strategy, const Pricing& pricing, Prediction& totals)
      : both_(both), strategy_(strategy), pricing_(pricing), totals_(totals) {
    for (const Op& op : both.ops) spaces_.push_back(iteration_space(both, op));
  }

  Passes run() {
    const Lowering lowering = lower(both_, strategy_);
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      const double seconds = operator_seconds(i, lowering);
      (both_.ops[i].forward >= 0 ? passes_.backward : passes_.forward) += seconds;
      if (makes_weight_gradients(both_, both_.ops[i])) passes_.weights += seconds;
    }
    for (const int op : lowering.again) passes_.backward += operator_seconds(static_cast<std::size_t>(op), lowering);
    add_conversions();
    for (const Inserted& inserted : lowering.inserted) {
      const bool is_exchange = inserted.tensor < 0 || inserted.step.kind == StepKind::kHalo;
      if (is_exchange)
        (inserted.phase == Phase::kForward ? passes_.forward_sends : passes_.backward_sends) +=
            pricing_.seconds(inserted.step);
    }
    // A gradient is read, its parameter read and written.
    double bytes = 0;
    for (const Link& link : links_of(both_, strategy_.stored)) {
      if (link.is_update) bytes += 3 * local_bytes(link.tensor, ends_of(both_, spaces_, link, strategy_).to);
    }
    if (bytes > 0) passes_.update = cost::stream_seconds(pricing_.hardware(), bytes);
    return passes_;
  }

 private:
  double operator_seconds(std::size_t index, const Lowering& lowering) {
    const Op& op = both_.ops[index];
    if (pricing_.profile()) {
      const bool known =
          pricing_.profile()->of(profile_key(both_, op, spaces_[index], lowering.degrees[index])).has_value();
      ++(known ? totals_.measured : totals_.priced);
    }
    const double own = pricing_.seconds(both_, op, spaces_[index], lowering.degrees[index]);
    if (is_parameter_sum(both_, op) || !pricing_.profile()) return own;
    return own + pricing_.profile()->of(kBetweenOperators).value_or(0);
  }

  std::vector<Index> block_sizes(int tensor, const Sharding& sharding) const {
    const std::vector<int> first(strategy_.mesh.axes().size(), 0);
    return place_of(both_, strategy_.mesh, first, tensor, sharding).sizes;
  }
  double local_bytes(int tensor, const Sharding& sharding) const {
    double bytes = bytes_of(both_.tensor(tensor).dtype);
    for (const Index size : block_sizes(tensor, sharding)) bytes *= static_cast<double>(size);
    return bytes;
  }
  int ranks_along(const MeshAxes& axes) const {
    int ranks = 1;
    for (const int axis : axes) ranks *= strategy_.mesh.axes()[static_cast<std::size_t>(axis)].size;
    return ranks;
  }

  void add_conversions() {
    for (const Link& link : links_of(both_, strategy_.stored)) {
      const LinkEnds ends = ends_of(both_, spaces_, link, strategy_);
      const Tensor& tensor = both_.tensor(link.tensor);
      std::vector<Index> sizes = block_sizes(link.tensor, ends.from);
      double seconds = 0;
      for (const Step& step : convert(strategy_.mesh, both_.bytes(tensor), ends.from, ends.to)) {
        const int ranks = ranks_along(step.axes);
        std::optional<double> measured;
        if (pricing_.profile()) {
          measured = pricing_.profile()->of(profile_key(step, ranks, sizes, tensor.dtype));
          ++(measured ? totals_.measured : totals_.priced);
        }
        seconds += measured.value_or(pricing_.seconds(step));
        sizes = sizes_after(step, ranks, std::move(sizes));
      }
      const bool is_forward = both_.op(link.consumer).forward < 0;
      (link.is_update ? passes_.update_sends : is_forward ? passes_.forward_sends : passes_.backward_sends) += seconds;
    }
  }

  const Graph& both_;
  const Strategy& strategy_;
  const Pricing& pricing_;
  Prediction& totals_;
  std::vector<IterationSpace> spaces_;
  Passes passes_;
};

}  // namespace

Prediction predict(const Graph& both, const Strategy& strategy, const Pricing& pricing) {
  Prediction step;
  const Passes passes = PassTimes(both, strategy, pricing, step).run();
  step.compute_seconds = passes.forward + passes.backward;
  step.communication_seconds = passes.forward_sends + passes.backward_sends + passes.update_sends;
  step.update_seconds = passes.update;
  step.seconds = step.compute_seconds + step.communication_seconds + step.update_seconds;
  return step;
}

Prediction predict(const Graph& forward, const StagedPlan& plan, const Pricing& pricing) {
  if (const std::vector<std::string> problems = find_problems(forward, plan); !problems.empty())
    throw ConfigError(problems.front(), "change its line of the plan");
  const Graph both = micro_graph(with_backward(forward), plan.micros).graph;
  const StagedGraph staged = stage_graphs(both, plan);
  Prediction step;
  std::vector<Passes> passes;
  for (const Stage& stage : staged.stages) {
    const Pricing part(pricing.hardware(), stage.strategy.mesh, pricing.arithmetic(), pricing.profile());
    passes.push_back(PassTimes(stage.graph, stage.strategy, part, step).run());
  }
  // A rank receives its share of what the stage before it, or after it, makes.
  std::map<std::pair<int, int>, double> bytes;
  for (const Delivery& delivery : staged.deliveries) {
    const auto &from = staged.stages[static_cast<std::size_t>(delivery.from_stage)],
               &to = staged.stages[static_cast<std::size_t>(delivery.to_stage)];
    const std::vector<int> first(to.strategy.mesh.axes().size(), 0);
    double share = bytes_of(both.tensor(delivery.tensor).dtype);
    for (const Index size : place_of(both, to.strategy.mesh, first, delivery.tensor, delivery.to).sizes)
      share *= static_cast<double>(size);
    bytes[{delivery.from_stage, delivery.to_stage}] += share;
    const Pricing part(pricing.hardware(), from.strategy.mesh, pricing.arithmetic(), pricing.profile());
    for (const Step& inserted :
         convert(from.strategy.mesh, both.bytes(both.tensor(delivery.tensor)), delivery.made, delivery.from)) {
      Passes& sender = passes[static_cast<std::size_t>(delivery.from_stage)];
      (delivery.is_gradient ? sender.backward_sends : sender.forward_sends) += part.seconds(inserted);
    }
  }
  const bool several_nodes = plan.ranks() > pricing.hardware().cluster.gpus_per_node;
  const auto stages = static_cast<int>(staged.stages.size());
  const schedule::Timing timing = schedule::replay(
      schedule::build(plan.schedule, {.ranks = stages, .micros = plan.micros}),
      {.time_of =
           [&](int rank, const schedule::Instruction& instruction) {
             const Passes& of = passes[static_cast<std::size_t>(rank)];
             if (instruction.op == schedule::Op::kForward) return of.forward + of.forward_sends;
             if (instruction.op == schedule::Op::kBackward) return of.backward + of.backward_sends;
             if (instruction.op == schedule::Op::kBackwardInput) return of.backward - of.weights + of.backward_sends;
             if (instruction.op == schedule::Op::kBackwardWeight) return of.weights;
             return 0.0;
           },
       .link_of =
           [&](int from, int to, const schedule::Instruction&) {
             const auto found = bytes.find({from, to});
             return found == bytes.end() ? 0.0
                                         : cost::message_seconds(pricing.hardware(), found->second, several_nodes);
           }});
  double last_update = 0;
  for (std::size_t s = 0; s < passes.size(); ++s) {
    const Passes& of = passes[s];
    const double computes = plan.micros * (of.forward + of.backward);
    if (computes >= step.compute_seconds) {
      step.compute_seconds = computes;
      step.communication_seconds = plan.micros * (of.forward_sends + of.backward_sends) + of.update_sends;
      step.update_seconds = of.update;
    }
    last_update = std::max(last_update, of.update + of.update_sends);
  }
  step.seconds = timing.makespan + last_update;
  step.waiting_seconds =
      std::max(0.0, step.seconds - step.compute_seconds - step.communication_seconds - step.update_seconds);
  return step;
}

}  // namespace trireme::plan::graph
