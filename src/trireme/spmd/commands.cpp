#include "trireme/spmd/commands.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/spmd/verify.h"

namespace trireme::spmd {
namespace {

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

/// The whole graph's losses and gradients of each step, which strategies are held against: rank 0 runs it, all get it.
class SharedReference {
 public:
  SharedReference(const pg::Graph& both, const RunRequest& request, comm::Group& world)
      : both_(both), request_(request), world_(world), values_(start_values(both, request.seed)) {}

  const Reference& step(int number) {
    while (static_cast<int>(steps_.size()) <= number) {
      steps_.push_back(next());
      for (std::size_t i = 0; i < values_.size(); ++i) {
        const at::Tensor& gradient = steps_.back().gradients[i];
        if (gradient.defined()) values_[i] = values_[i].sub(gradient, request_.learning_rate);
      }
    }
    return steps_[static_cast<std::size_t>(number)];
  }

 private:
  Reference next() {
    Reference reference{.gradients = Values(values_.size())};
    if (world_.rank() == 0)
      reference = run_reference(both_, values_, request_.seed, static_cast<std::int64_t>(steps_.size()));
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
  Values values_;
  std::vector<Reference> steps_;
};

RunReport run_strategy(const pg::Graph& both, const pg::Strategy& strategy, const RunRequest& request,
                       comm::Group& world, SharedReference& whole) {
  Executor executor(both, strategy, world, {.seed = request.seed, .learning_rate = request.learning_rate});
  const Values start = start_values(both, request.seed);
  executor.load(start);
  RunReport report;
  for (const pg::Inserted& one : executor.lowering().inserted) {
    if (one.step.kind == pg::StepKind::kSlice) continue;
    ++report.collectives;
    report.bytes += one.step.bytes;
  }
  for (int step = 0; step < request.steps; ++step) {
    world.barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    StepResult result = executor.step(start);
    world.barrier().wait();
    const double seconds = seconds_since(begin);
    report.seconds = step <= 1 ? seconds : std::min(report.seconds, seconds);
    report.losses.push_back(result.loss);
    report.peak_bytes = std::max(report.peak_bytes, result.peak_bytes);
    if (!request.verify) continue;
    const Reference& reference = whole.step(step);
    report.reference.push_back(reference.loss);
    const Deviation deviation = compare(both, executor, result, reference);
    report.parameters = deviation.compared;
    if (deviation.worst >= report.worst) report.worst = deviation.worst, report.worst_parameter = deviation.parameter;
    for (const std::string& what :
         compare_collectives(both, strategy, executor.lowering(), {with_most_bytes(world, std::move(result.executed))}))
      report.deviations.push_back(what);
  }
  const std::vector<double> most = largest_of_ranks(
      world, {report.worst, report.peak_bytes, report.seconds, static_cast<double>(report.deviations.size())});
  if (most[0] > report.worst) report.worst_parameter = "one of another rank's";
  report.worst = most[0], report.peak_bytes = most[1], report.seconds = most[2];
  if (most[3] > 0 && report.deviations.empty()) report.deviations.emplace_back("on another rank");
  return report;
}

std::vector<RunReport> run_graph(const RunRequest& request, comm::Rank& rank) {
  at::set_num_threads(std::max(1, usable_cores() / std::max(1, request.local_ranks)));
  device::initialise_mkl_vml();
  const pg::Graph both = with_backward(request.forward);
  SharedReference whole(both, request, rank.world());
  std::vector<RunReport> reports;
  for (const pg::Strategy& strategy : request.strategies)
    reports.push_back(run_strategy(both, strategy, request, rank.world(), whole));
  return reports;
}

constexpr Commands kSpmdCommands{.version = kVersion, .run = &run_graph};

}  // namespace

extern "C" const Commands* trireme_spmd() {
  device::keep_host_memory();
  return &kSpmdCommands;
}

}  // namespace trireme::spmd
