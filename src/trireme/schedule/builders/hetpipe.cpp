// HetPipe (Park et al. 2020, 2005.14038): virtual workers, each a pipeline with a wave of minibatches in flight, that
// push once a wave and go on with weights at most clock_distance waves old (waves.h).
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/waves.h"

namespace trireme::schedule {

namespace {

/// One rank of a virtual worker: 1F1B without a flush, at most a wave in flight. A wave is pushed when its last
/// gradients are there; it is pulled as late as the law allows, so that what is in flight goes on meanwhile.
std::vector<Instruction> wave_list(const Shape& shape, const WaveLaw& law, int stage,
                                   const std::function<int(int minibatch)>& micro_of) {
  const int minibatches = shape.micros * shape.steps;
  // The last stage takes each back at once, so whoever comes before it never waits for more than the stages after it.
  const int in_flight = std::min(shape.micros, shape.ranks - stage);
  std::vector<Instruction> list;
  int pulled = 0, pushed = 0;
  const auto pull_until = [&](int version) {
    for (; pulled < version; ++pulled) list.push_back(make(Op::kOptimizerStep, -1, -1));
  };
  const auto forward = [&](int minibatch) {
    pull_until(law.version(minibatch));
    list.push_back(make(Op::kForward, stage, micro_of(minibatch)));
  };
  const auto backward = [&](int minibatch) {
    if (shape.recompute && in_flight > 1) list.push_back(make(Op::kRecompute, stage, micro_of(minibatch)));
    list.push_back(make(Op::kBackward, stage, micro_of(minibatch)));
    if ((minibatch + 1) % shape.micros != 0) return;
    list.push_back(make(Op::kReduceGradients, stage, -1));
    ++pushed;
  };
  for (int minibatch = 0; minibatch < std::min(in_flight, minibatches); ++minibatch) forward(minibatch);
  for (int minibatch = 0; minibatch < minibatches; ++minibatch) {
    backward(minibatch);
    if (minibatch + in_flight < minibatches) forward(minibatch + in_flight);
  }
  pull_until(pushed);
  return list;
}

Schedule build_hetpipe(const Shape& shape) {
  const int workers = std::max(1, shape.virtual_workers);
  const WaveLaw law{.minibatches = shape.micros, .clock_distance = shape.clock_distance};
  Schedule schedule;
  schedule.name = shape.clock_distance == 0 ? "hetpipe" : fmt::format("hetpipe:{}", shape.clock_distance);
  schedule.micros = shape.micros * shape.steps * workers;
  schedule.update_every = shape.micros * workers;
  schedule.weights = WeightChoice::kWaves;
  schedule.clock_distance = shape.clock_distance;
  for (int worker = 0; worker < workers; ++worker) {
    std::vector<int>& route = schedule.routes.emplace_back();
    const auto micro_of = [&](int minibatch) {
      return (minibatch / shape.micros * workers + worker) * shape.micros + minibatch % shape.micros;
    };
    for (int stage = 0; stage < shape.ranks; ++stage) {
      route.push_back(worker * shape.ranks + stage);
      schedule.ranks.push_back(wave_list(shape, law, stage, micro_of));
    }
  }
  if (workers == 1) return schedule;
  for (int micro = 0; micro < schedule.micros; ++micro) schedule.route_of.push_back(micro / shape.micros % workers);
  return schedule;
}

/// None where a wave fills the pipeline, pushes beside; the paper says nothing of smaller ones.
std::optional<double> wave_bubble(const Shape& shape, const Times&) {
  if (shape.micros < shape.ranks) return std::nullopt;
  return 0;
}

}  // namespace

Kind hetpipe() {
  return {
      .name = "hetpipe",
      .what = "waves of micros, pushed once each; weights at most D waves old (hetpipe:D)",
      .from = "Park et al. 2020, 2005.14038",
      .steady = true,
      .asynchronous = true,
      .build = build_hetpipe,
      .refuses = needs_one_chunk,
      .bubble = wave_bubble,
      .memory = [](const Shape& shape) -> std::optional<double> { return std::min(shape.ranks, shape.micros); },
      .weights = [](const Shape& shape) -> std::optional<double> { return 1 + std::min(shape.ranks, shape.micros); }};
}

}  // namespace trireme::schedule
