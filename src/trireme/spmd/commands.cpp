#include "trireme/spmd/commands.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/spmd/descent.h"
#include "trireme/spmd/gpu_steps.h"
#include "trireme/spmd/images.h"
#include "trireme/spmd/pipeline.h"
#include "trireme/spmd/profiling.h"
#include "trireme/spmd/verify.h"

namespace trireme::spmd {
namespace {

/// The kernels of kernels/image_ops.h pass their tests on a GPU; steps on them (bench/graph_torch.cpp --cuda) have not
/// been timed yet.
constexpr bool kFusedImages = false;

/// The largest of all ranks' numbers, one by one.
std::vector<double> largest_of_ranks(comm::Group& world, std::vector<double> numbers) {
  if (!numbers.empty())
    world.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, comm::Reduce::kMax).wait();
  return numbers;
}

/// Halos are received in different numbers by different ranks: this rank's list with the most of them.
std::vector<pg::Inserted> with_most_bytes(comm::Group& world, std::vector<pg::Inserted> executed) {
  const auto count = static_cast<double>(executed.size());
  const std::vector<double> counts = largest_of_ranks(world, {count, -count});
  if (counts[0] != -counts[1]) return executed;  // the comparison will say so
  std::vector<double> bytes;
  for (const pg::Inserted& one : executed) bytes.push_back(one.step.bytes);
  bytes = largest_of_ranks(world, std::move(bytes));
  for (std::size_t i = 0; i < executed.size(); ++i) {
    if (executed[i].step.kind == pg::StepKind::kHalo) executed[i].step.bytes = bytes[i];
  }
  return executed;
}

Values starting_point(const pg::Graph& both, const RunRequest& request) {
  Values values = start_values(both, request.seed);
  if (request.zero_gamma) values = with_zero_gammas(request.forward, std::move(values));
  return in_channels_last(std::move(values));
}

/// Into how many groups of samples local batch norms divide the batch: the whole graph is then run in so many
/// micro-batches. ConfigError where they do not all divide samples alike, so that no run of the whole is the same.
int groups_of_norms(const pg::Graph& both, const pg::Strategy& strategy) {
  int groups = 0;
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    const pg::Op& op = both.ops[i];
    if (op.function != "local-batch") continue;
    const pg::IterationSpace space = iteration_space(both, op);
    const std::vector<int> degrees = degrees_of(strategy.mesh, space, strategy.splits[i]);
    int parts = 1;
    bool by_sample = true;
    for (const int dim : op.dims) {
      const int degree = degrees[static_cast<std::size_t>(space.find(dim))];
      parts *= degree;
      by_sample = by_sample && (degree == 1 || dim == both.tensor(op.inputs[0]).dims[0]);
    }
    if (!by_sample || (groups != 0 && groups != parts))
      throw ConfigError(fmt::format("batch norm {} has the statistics of other samples than the others", op.name),
                        "split samples alike everywhere, or leave out --verify");
    groups = parts;
  }
  return std::max(1, groups);
}

/// The whole graph's losses and gradients of each step, which strategies are held against: rank 0 runs it, all get it.
class SharedReference {
 public:
  SharedReference(const pg::Graph& both, const RunRequest& request, comm::Group& world, int micros)
      : both_(both),
        request_(request),
        world_(world),
        micros_(micros),
        values_(starting_point(both, request)),
        descent_(both, request.descent) {
    descent_.load(Values(values_.size()), {});  // in the graph's own type: nothing is rounded
  }

  const Reference& step(int number) {
    while (static_cast<int>(steps_.size()) <= number) {
      steps_.push_back(next());
      descent_.step(values_, steps_.back().gradients, static_cast<std::int64_t>(steps_.size()) - 1);
    }
    return steps_[static_cast<std::size_t>(number)];
  }

 private:
  Reference next() {
    Reference reference{.gradients = Values(values_.size())};
    if (world_.rank() == 0)
      reference = run_micro_reference(both_, values_, request_.seed, static_cast<std::int64_t>(steps_.size()), micros_);
    world_.broadcast(comm::Buffer{&reference.loss, 1, comm::DType::kF64}, 0).wait();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (both_.tensors[i].role != pg::Role::kParameter || !values_[i].defined()) continue;
      std::int64_t made = reference.gradients[i].defined() ? 1 : 0;
      world_.broadcast(comm::Buffer{&made, 1, comm::DType::kI64}, 0).wait();
      if (made == 0) continue;
      at::Tensor& gradient = reference.gradients[i];
      gradient = world_.rank() == 0 ? gradient.contiguous() : at::empty_like(values_[i], at::MemoryFormat::Contiguous);
      world_.broadcast(device::to_buffer(gradient), 0).wait();
    }
    return reference;
  }

  const pg::Graph& both_;
  const RunRequest& request_;
  comm::Group& world_;
  const int micros_;
  Values values_;
  Descent descent_;
  std::vector<Reference> steps_;
};

/// One of the ways to run: steps, and what to hold against the reference and the list.
struct RunningGraph {
  std::function<StepResult(const Values&)> step;
  const Executor& executor;
  const pg::Graph& both;         ///< of the executor: of a stage, the stage's
  const pg::Strategy& strategy;  ///< likewise
  comm::Group& group;            ///< ranks with the same list of collectives
  std::function<std::vector<std::string>()> deviations;
};

RunReport run_steps(const RunningGraph& running, const RunRequest& request, comm::Group& world, SharedReference& whole,
                    RunReport report) {
  const Values start = starting_point(with_backward(request.forward), request);
  std::optional<ImageBatches> train, test;
  if (!request.train.labels.empty()) train.emplace(request.forward, request.train, request.seed);
  if (!request.test.labels.empty()) test.emplace(request.forward, request.test, request.seed);
  std::vector<double> seconds_of_steps;
  for (int step = 0; step < request.steps; ++step) {
    const Values inputs = train ? train->of_step(start, step) : start;
    world.barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    StepResult result = running.step(inputs);
    world.barrier().wait();
    const double seconds = seconds_since(begin);
    if (step == 1) seconds_of_steps.clear();  // the first one warms up
    seconds_of_steps.push_back(seconds);
    report.losses.push_back(result.loss);
    report.peak_bytes = std::max(report.peak_bytes, result.peak_bytes);
    if (!request.verify) continue;
    const Reference& reference = whole.step(step);
    report.reference.push_back(reference.loss);
    const Deviation deviation = compare(running.both, running.executor, result, reference);
    report.parameters = deviation.compared;
    if (deviation.worst >= report.worst) report.worst = deviation.worst, report.worst_parameter = deviation.parameter;
    for (std::vector<pg::Inserted>& executed : result.executed) {
      for (const std::string& what : compare_collectives(running.both, running.strategy, running.executor.lowering(),
                                                         {with_most_bytes(running.group, std::move(executed))}))
        report.deviations.push_back(what);
    }
    for (const std::string& what : running.deviations()) report.deviations.push_back(what);
  }
  if (test) report.accuracy = accuracy_of(request.forward, running.executor, *test, start, world);
  std::ranges::sort(seconds_of_steps);
  if (!seconds_of_steps.empty()) {
    report.seconds = seconds_of_steps.front();
    report.median_seconds = seconds_of_steps[seconds_of_steps.size() / 2];
  }
  const std::vector<double> most =
      largest_of_ranks(world, {report.worst, report.peak_bytes, report.seconds,
                               static_cast<double>(report.deviations.size()), report.median_seconds});
  if (most[0] > report.worst) report.worst_parameter = "one of another rank's";
  report.worst = most[0], report.peak_bytes = most[1], report.seconds = most[2], report.median_seconds = most[4];
  if (most[3] > 0 && report.deviations.empty()) report.deviations.emplace_back("on another rank");
  return report;
}

void count_collectives(const pg::Lowering& lowering, int times, RunReport& report) {
  for (const pg::Inserted& one : lowering.inserted) {
    if (one.step.kind == pg::StepKind::kSlice) continue;
    const int runs = one.phase == pg::Phase::kUpdate ? 1 : times;
    report.collectives += static_cast<std::size_t>(runs);
    report.bytes += one.step.bytes * runs;
  }
}

RunReport run_strategy(const pg::Graph& both, const pg::Strategy& strategy, const RunRequest& request,
                       comm::Group& world, SharedReference& whole) {
  Executor executor(both, strategy, world,
                    {.seed = request.seed,
                     .descent = request.descent,
                     .defer_loss = request.cuda && world.size() == 1,
                     .fused_images = request.cuda && kFusedImages});
  RunReport report;
  count_collectives(executor.lowering(), 1, report);
  if (request.cuda) {
    const c10::Device device = parallel::init_device_exchange(spec::DeviceKind::kCuda, world);
    const Values start = on_device(starting_point(both, request), device);
    executor.load(start);
    GpuSteps steps(both, executor, start, device, request.cuda_graphs);
    return run_steps({.step = [&](const Values&) { return steps.step(); },
                      .executor = executor,
                      .both = both,
                      .strategy = strategy,
                      .group = world,
                      .deviations = [] { return std::vector<std::string>{}; }},
                     request, world, whole, std::move(report));
  }
  executor.load(start_values(both, request.seed));
  return run_steps({.step = [&](const Values& start) { return executor.step(start); },
                    .executor = executor,
                    .both = both,
                    .strategy = strategy,
                    .group = world,
                    .deviations = [] { return std::vector<std::string>{}; }},
                   request, world, whole, std::move(report));
}

RunReport run_staged(const pg::Graph& both, const pg::StagedPlan& plan, const RunRequest& request, comm::Group& world) {
  PipelineExecutor pipeline(request.forward, plan, world, {.seed = request.seed, .descent = request.descent});
  pipeline.load(starting_point(both, request));
  SharedReference whole(both, request, world, plan.micros);
  RunReport report{.messages = pipeline.listed_messages(), .message_bytes = pipeline.listed_bytes()};
  count_collectives(pipeline.executor().lowering(), plan.micros, report);
  return run_steps({.step = [&](const Values& start) { return pipeline.step(start); },
                    .executor = pipeline.executor(),
                    .both = pipeline.stage().graph,
                    .strategy = pipeline.stage().strategy,
                    .group = pipeline.stage_ranks(),
                    .deviations = [&] { return pipeline.deviations(); }},
                   request, world, whole, std::move(report));
}

std::vector<RunReport> run_graph(const RunRequest& request, comm::Rank& rank) {
  at::set_num_threads(std::max(1, usable_cores() / std::max(1, request.local_ranks)));
  device::initialise_mkl_vml();
  if (request.cuda) {
    if (!request.train.labels.empty())
      throw ConfigError("images are trained on CPUs", "leave out --device cuda, or the images");
    if (!request.staged.empty())
      throw ConfigError("plans with pipeline stages run on CPUs", "leave out --device cuda, or take one stage's plan");
    if (request.cuda_graphs && rank.world().size() != 1)
      throw ConfigError(fmt::format("a step is captured on one rank, and there are {}", rank.world().size()),
                        "leave out --cuda-graphs");
    if (request.cuda_graphs && (request.descent.warmup_steps > 0 || !request.descent.decay_at.empty()))
      throw ConfigError("a captured step has one learning rate", "leave out --cuda-graphs, or --warmup and --decay-at");
    // Sums are compared with the CPU's: no shorter mantissas behind one's back.
    at::globalContext().setAllowTF32CuDNN(!request.verify);
  }
  if (request.verify && !request.train.labels.empty())
    throw ConfigError("--verify compares steps on drawn inputs", "leave out the images, or --verify");
  const pg::Graph both = with_backward(request.forward);
  std::map<int, SharedReference> whole;  // by groups of samples
  std::vector<RunReport> reports;
  for (const pg::Strategy& strategy : request.strategies) {
    const int groups = request.verify ? groups_of_norms(both, strategy) : 1;
    reports.push_back(run_strategy(both, strategy, request, rank.world(),
                                   whole.try_emplace(groups, both, request, rank.world(), groups).first->second));
  }
  for (const pg::StagedPlan& plan : request.staged) reports.push_back(run_staged(both, plan, request, rank.world()));
  return reports;
}

pg::OperatorProfile profile_graph(const ProfileRequest& request, comm::Rank& rank) {
  at::set_num_threads(std::max(1, usable_cores() / std::max(1, request.local_ranks)));
  device::initialise_mkl_vml();
  return profile_operators(request, rank);
}

constexpr Commands kSpmdCommands{.version = kVersion, .run = &run_graph, .profile = &profile_graph};

}  // namespace

extern "C" const Commands* trireme_spmd() {
  device::keep_host_memory();
  return &kSpmdCommands;
}

}  // namespace trireme::spmd
