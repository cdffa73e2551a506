#include "trireme/spmd/profiling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/build.h"
#include "trireme/plan/graph/profile.h"
#include "trireme/spmd/executor.h"
#include "trireme/spmd/lifetimes.h"
#include "trireme/spmd/lstm_groups.h"
#include "trireme/spmd/ops/kernel.h"
#include "trireme/spmd/transfers.h"
#include "trireme/spmd/values.h"

namespace trireme::spmd {
namespace {

constexpr int kMostRuns = 5;
constexpr std::size_t kCacheBytes = std::size_t{32} << 20;

/// One graph with one strategy, whose mesh may have fewer ranks than there are: a stage's. Ranks then do the same work
/// in several places at once, as the stages of a pipeline do.
class GraphProfiler {
 public:
  GraphProfiler(const ProfileTask& task, double seconds, comm::Group& world, pg::OperatorProfile& profile)
      : both_(task.both),
        strategy_(task.strategy),
        conversions_(task.conversions),
        seconds_(seconds),
        world_(world),
        profile_(profile) {
    const int ranks = strategy_.mesh.ranks();
    TRIREME_CHECK(ranks <= world.size(), "a mesh of {} ranks is measured on {}", ranks, world.size());
    sum_of_.assign(both_.tensors.size(), -1);
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      spaces_.push_back(iteration_space(both_, both_.ops[i]));
      if (!is_parameter_sum(both_, both_.ops[i])) continue;
      for (const int piece : both_.ops[i].inputs) sum_of_[static_cast<std::size_t>(piece)] = static_cast<int>(i);
    }
    groups_ = lstm_groups_of(both_, spaces_, links_of(both_, strategy_.stored), strategy_);
    part_ = world.split(world.rank() / ranks, world.rank(), "profile");
    coordinates_ = strategy_.mesh.coordinates(part_->rank());
    complete_ = part_->size() == ranks;
  }

  void run() {
    const c10::NoGradGuard no_gradients;
    for (std::size_t i = 0; i < both_.ops.size() && both_.ops[i].forward < 0; ++i) profile_family(static_cast<int>(i));
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      if (is_parameter_sum(both_, both_.ops[i])) profile_sum(static_cast<int>(i));
    }
    if (conversions_) profile_conversions();
  }

 private:
  const pg::Split& split_of(int op) const { return strategy_.splits[static_cast<std::size_t>(family_of(both_, op))]; }
  const pg::IterationSpace& space(int op) const { return spaces_[static_cast<std::size_t>(op)]; }
  std::string key_of(int op) const {
    return profile_key(both_, both_.op(op), space(op), degrees_of(strategy_.mesh, space(op), split_of(op)));
  }

  /// In a step an operator finds its weights in memory, not in caches: so it does here.
  void empty_caches() {
    for (std::size_t i = 0; i < caches_.size(); i += 64) ++caches_[i];
  }

  /// The median of several runs, the mean over all ranks. What is run may not wait for other ranks more often on one
  /// rank than on another, so conversions are run a fixed number of times.
  double measure(const std::function<void()>& run, int fixed_runs = 0) {
    run();  // memory and the library's choices
    world_.barrier().wait();
    std::vector<double> runs;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; fixed_runs > 0 ? i < fixed_runs : i < 3 || (i < kMostRuns && seconds_since(begin) < seconds_);
         ++i) {
      if (fixed_runs == 0) empty_caches();
      const auto start = std::chrono::steady_clock::now();
      run();
      runs.push_back(seconds_since(start));
    }
    std::ranges::nth_element(runs, runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2));
    const int whole = world_.size() / strategy_.mesh.ranks() * strategy_.mesh.ranks();
    const bool counts = fixed_runs == 0 || complete_;
    double mean = counts ? runs[runs.size() / 2] / (fixed_runs == 0 ? world_.size() : whole) : 0;
    world_.all_reduce(comm::Buffer{&mean, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
    return mean;
  }

  /// Of indices: any that the operator has rows or classes for.
  at::Tensor drawn(int tensor, const std::vector<Index>& sizes, const pg::Op* reader = nullptr) const {
    const pg::DType dtype = both_.tensor(tensor).dtype;
    if (dtype == pg::DType::kInt32) {
      Index most = 2;
      if (reader && reader->kind == pg::OpKind::kGather) most = both_.size(both_.tensor(reader->inputs[0]).dims[0]);
      if (reader && reader->kind == pg::OpKind::kSoftmaxLoss) most = both_.size(reader->dims[0]);
      return at::randint(most, sizes, at::kLong);
    }
    return in_channels_last(at::randn(sizes).to(scalar_type(dtype)));
  }

  Place place(int tensor, const pg::Sharding& sharding) const {
    return place_of(both_, strategy_.mesh, coordinates_, tensor, sharding);
  }

  /// Blocks with halos as a rank has them: the neighbours' rows are drawn, too.
  void extend(int index, OpCall& call, std::map<int, Block>& extended) const {
    const pg::Op &op = both_.op(index), &forward = both_.op(family_of(both_, index));
    std::vector<int> fresh;
    for (const pg::Exchange& exchange : exchanges_of(both_, strategy_.mesh, op, space(index), split_of(index))) {
      if (exchange.tensor < 0) {
        call.shares_statistics = true;
        continue;
      }
      const bool is_fresh = std::ranges::find(fresh, exchange.tensor) != fresh.end();
      if (extended.contains(exchange.tensor) && !is_fresh) continue;
      fresh.push_back(exchange.tensor);
      const auto input = static_cast<std::size_t>(std::ranges::find(op.inputs, exchange.tensor) - op.inputs.begin());
      const Block& block = extended.contains(exchange.tensor) ? extended.at(exchange.tensor) : call.inputs[input];
      const auto dim = static_cast<std::size_t>(exchange.step.from_dim);
      const Index whole = both_.size(both_.tensor(exchange.tensor).dims[dim]), own = block.size(dim);
      const auto [before, after] = halo_rows(both_, forward.windows[static_cast<std::size_t>(exchange.window)],
                                             tiles_input(op), block.origin[dim] / own, whole / own);
      std::vector<Index> sizes = block.data.sizes().vec();
      sizes[dim] += before + after;
      // The neighbours' rows of what max pooling keeps are numbers of a window's elements.
      const bool is_drawn = forward.kind != pg::OpKind::kPooling || exchange.tensor != forward.outputs[0];
      Block wider{is_drawn ? drawn(exchange.tensor, sizes) : at::zeros(sizes, block.data.options()), block.origin};
      wider.origin[dim] -= before;
      extended[exchange.tensor] = std::move(wider);
    }
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const auto found = extended.find(op.inputs[k]);
      if (found != extended.end() && reads_halo(op, op.inputs[k])) call.inputs[k] = found->second;
    }
  }

  /// A forward operator and its gradients, which need what it keeps.
  void profile_family(int forward) {
    std::vector<int> members;
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      if (family_of(both_, static_cast<int>(i)) == forward && !is_parameter_sum(both_, both_.ops[i]))
        members.push_back(static_cast<int>(i));
    }
    if (std::ranges::all_of(members, [&](int op) { return profile_.seconds.contains(key_of(op)); })) return;
    Kept kept;
    std::map<int, Block> extended;
    for (const int index : members) {
      const pg::Op& op = both_.op(index);
      OpCall call{.graph = both_, .op = op, .inputs = {}, .outputs = {}, .kept = kept, .all_reduce = {}};
      call.all_reduce = [](at::Tensor&, comm::Reduce) {};
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        const int tensor = op.inputs[k];
        const Place at = place(tensor, input_sharding(space(index), split_of(index), k));
        const pg::Op& family = both_.op(forward);
        const bool is_winner = family.kind == pg::OpKind::kPooling && index != forward && tensor == family.outputs[0];
        call.inputs.push_back({is_winner ? kept.at("winner") : drawn(tensor, at.sizes, &family), at.origin});
      }
      extend(index, call, extended);
      for (std::size_t k = 0; k < op.outputs.size(); ++k)
        call.outputs.push_back(place(op.outputs[k], output_sharding(space(index), split_of(index), k)));
      std::vector<DeferredParts> deferred(op.outputs.size());
      for (std::size_t k = 0; k < op.outputs.size(); ++k)
        call.deferred.push_back(sum_of_[static_cast<std::size_t>(op.outputs[k])] >= 0 ? &deferred[k] : nullptr);
      const double shared = index == forward ? input_sums_seconds(index, call) : 0;
      DeferredInputs later;
      if (index != forward && in_group(forward)) call.deferred_input = &later;
      double seconds = measure([&] {
        for (DeferredParts& parts : deferred) parts = {};
        later = {};
        run_op(call);
      });
      if (call.deferred_input && !later.gates.empty()) seconds += input_gradients_seconds(forward, later);
      profile_.seconds[key_of(index)] = seconds + shared;
      for (std::size_t k = 0; k < op.outputs.size(); ++k) {
        if (const int sum = sum_of_[static_cast<std::size_t>(op.outputs[k])]; sum >= 0)
          parts_[sum] = std::move(deferred[k]);
      }
    }
  }

  bool in_group(int cell) const { return groups_.of[static_cast<std::size_t>(cell)] >= 0; }
  std::size_t group_size(int cell) const {
    return groups_.cells[static_cast<std::size_t>(groups_.of[static_cast<std::size_t>(cell)])].size();
  }

  /// Cells of an LSTM that go through one GEMM: a cell's share of it, which the cell is then given.
  double input_sums_seconds(int index, OpCall& call) {
    if (both_.op(index).kind != pg::OpKind::kLstmCell || !in_group(index) || group_size(index) < 2) return 0;
    const std::vector<at::Tensor> rows(group_size(index), call.inputs[0].data);
    call.input_sums = lstm_input_sums(call.inputs[0].data, call.inputs[3].data, call.inputs[5].data);
    return measure([&] { lstm_input_sums(at::cat(rows), call.inputs[3].data, call.inputs[5].data); }) /
           static_cast<double>(rows.size());
  }
  double input_gradients_seconds(int cell, const DeferredInputs& one) {
    DeferredInputs all{.tensors = {}, .gates = {}, .weight = one.weight};
    all.gates.assign(group_size(cell), one.gates[0]);
    return measure([&] { lstm_input_gradients(all); }) / static_cast<double>(all.gates.size());
  }

  /// Parts that were left for one call at the end are joined; others are added as they are made.
  void profile_sum(int index) {
    const std::string key = key_of(index);
    if (profile_.seconds.contains(key)) return;
    const pg::Op& op = both_.op(index);
    const auto found = parts_.find(index);
    if (found != parts_.end() && !found->second.right.empty()) {
      const DeferredParts& one = found->second;
      const std::vector<at::Tensor> right(op.inputs.size(), one.right[0]);
      const std::vector<at::Tensor> left(one.left.empty() ? 0 : op.inputs.size(),
                                         one.left.empty() ? at::Tensor() : one.left[0]);
      profile_.seconds[key] = measure([&] { one.sum_of(left.empty() ? at::Tensor() : at::cat(left), at::cat(right)); });
      return;
    }
    const pg::Sharding lies = output_sharding(space(index), split_of(index), 0);
    const at::Tensor part = drawn(op.outputs[0], place(op.outputs[0], lies).sizes);
    profile_.seconds[key] = measure([&] {
      at::Tensor sum = part + part;
      for (std::size_t i = 2; i < op.inputs.size(); ++i) sum.add_(part);
    });
  }

  void profile_conversions() {
    const std::vector<pg::Link> links = links_of(both_, strategy_.stored);
    std::vector<pg::MeshAxes> axes;
    for (const pg::Inserted& inserted : lower(both_, strategy_).inserted) {
      if (inserted.step.kind != pg::StepKind::kSlice) axes.push_back(inserted.step.axes);
    }
    std::unique_ptr<Transfers> transfers;
    if (complete_) transfers = std::make_unique<Transfers>(strategy_.mesh, *part_, axes);
    for (const pg::Link& link : links) {
      const pg::LinkEnds ends = ends_of(both_, spaces_, link, strategy_);
      const pg::DType dtype = both_.tensor(link.tensor).dtype;
      std::vector<Index> sizes = place(link.tensor, ends.from).sizes;
      for (const pg::Step& step : convert(strategy_.mesh, both_.bytes(both_.tensor(link.tensor)), ends.from, ends.to)) {
        int ranks = 1;
        for (const int axis : step.axes) ranks *= strategy_.mesh.axes()[static_cast<std::size_t>(axis)].size;
        const std::string key = profile_key(step, ranks, sizes, dtype);
        if (!profile_.seconds.contains(key)) {
          const at::Tensor block = drawn(link.tensor, sizes);
          profile_.seconds[key] = measure(
              [&] {
                if (transfers) transfers->take(step, block);
              },
              10);
        }
        sizes = sizes_after(step, ranks, std::move(sizes));
      }
    }
  }

  const pg::Graph& both_;
  const pg::Strategy& strategy_;
  const bool conversions_;
  const double seconds_;
  comm::Group& world_;
  pg::OperatorProfile& profile_;
  std::vector<pg::IterationSpace> spaces_;
  LstmGroups groups_;
  std::vector<int> sum_of_;  // [tensor] a part of a parameter's gradient: the operator that sums them; -1: none
  std::unique_ptr<comm::Group> part_;
  std::vector<int> coordinates_;
  bool complete_ = true;  // whether this rank is one of a whole mesh
  std::vector<unsigned char> caches_ = std::vector<unsigned char>(kCacheBytes);
  std::map<int, DeferredParts> parts_;  // [sum] of one piece
};

}  // namespace

namespace {

/// Steps of a chain of operators that hardly compute, less what these take by themselves.
double seconds_between_operators(const ProfileRequest& request, comm::Rank& rank) {
  pg::Builder build("chain");
  const int n = build.dim("n", 2);
  int x = build.input("x", {n, build.dim("w0", 2)});
  for (int i = 1; i <= 32; ++i)
    x = build.linear("fc" + std::to_string(i), x, build.dim("w" + std::to_string(i), 2), /*bias=*/false);
  build.loss("loss", x, build.indices("labels", {n}), build.dims_of(x)[1]);
  const pg::Graph forward = build.finish(), both = with_backward(forward);
  const ProfileTask task{both, replicated(forward, layout::Mesh()), /*conversions=*/false};
  pg::OperatorProfile own;
  GraphProfiler(task, request.seconds, rank.world(), own).run();
  double operators = 0;
  for (const pg::Op& op : both.ops) {
    const pg::IterationSpace space = iteration_space(both, op);
    operators += own.of(profile_key(both, op, space)).value_or(0);
  }
  const std::unique_ptr<comm::Group> alone = rank.world().split(rank.rank(), 0, "profile.alone");
  Executor executor(both, task.strategy, *alone, {});
  const Values start = start_values(both, 0);
  executor.load(start);
  std::vector<double> steps;
  for (int i = 0; i < 12; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    executor.step(start);
    if (i >= 2) steps.push_back(seconds_since(begin));
  }
  std::ranges::nth_element(steps, steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2));
  double mean =
      std::max(0.0, steps[steps.size() / 2] - operators) / static_cast<double>(both.ops.size()) / rank.world().size();
  rank.world().all_reduce(comm::Buffer{&mean, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  return mean;
}

}  // namespace

pg::OperatorProfile profile_operators(const ProfileRequest& request, comm::Rank& rank) {
  pg::OperatorProfile profile;
  profile.seconds[std::string(pg::kBetweenOperators)] = seconds_between_operators(request, rank);
  for (const ProfileTask& task : request.tasks) GraphProfiler(task, request.seconds, rank.world(), profile).run();
  return profile;
}

}  // namespace trireme::spmd
