#include "trireme/spmd/executor.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernel.h"
#include "trireme/spmd/transfers.h"

namespace trireme::spmd {
namespace {

/// A tensor as one forward operator and its gradient operators want it.
using Wanted = std::tuple<int, int, std::vector<int>>;  // tensor, forward operator, wanted dimensions

}  // namespace

class Executor::Impl {
 public:
  Impl(const pg::Graph& both, const pg::Strategy& strategy, comm::Group& world, const ExecutorOptions& options)
      : both_(both), strategy_(strategy), options_(options) {
    refuse_what_cannot_run();
    for (const pg::Op& op : both_.ops) spaces_.push_back(iteration_space(both_, op));
    links_ = links_of(both_);
    lowering_ = lower(both_, strategy_);
    into_.resize(both_.ops.size());
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!links_[i].is_update) into_[static_cast<std::size_t>(links_[i].consumer)].push_back(i);
    }
    find_last_uses();
    std::vector<pg::MeshAxes> axes;
    for (const pg::Inserted& inserted : lowering_.inserted) {
      if (inserted.step.kind != pg::StepKind::kSlice) axes.push_back(inserted.step.axes);
    }
    for (const int loss : losses_) axes.push_back(sharding_of_output(uses_.producer[std::size_t(loss)], loss).partial);
    transfers_ = std::make_unique<Transfers>(strategy_.mesh, world, axes);
    parameters_.resize(both_.tensors.size());
  }

  const pg::Lowering& lowering() const { return lowering_; }

  void load(const Values& start) {
    for (std::size_t i = 0; i < both_.tensors.size(); ++i) {
      if (both_.tensors[i].role != pg::Role::kParameter || uses_.consumers[i].empty()) continue;
      parameters_[i] = box_of(start[i], parameter_place(static_cast<int>(i))).clone(at::MemoryFormat::Contiguous);
    }
    steps_ = 0;
  }

  Place parameter_place(int tensor) const {
    const int owner = uses_.consumers[static_cast<std::size_t>(tensor)][0];
    const auto& inputs = both_.op(owner).inputs;
    const auto input = static_cast<std::size_t>(std::ranges::find(inputs, tensor) - inputs.begin());
    return place_of(both_, strategy_.mesh, transfers_->coordinates(), tensor,
                    input_sharding(spaces_[static_cast<std::size_t>(owner)], split_of(owner), input));
  }
  const at::Tensor& parameter(int tensor) const { return parameters_[static_cast<std::size_t>(tensor)]; }

  StepResult step(const Values& start) {
    const c10::NoGradGuard no_gradients;
    start_ = &start;
    result_ = StepResult{.gradients = Values(both_.tensors.size())};
    values_.assign(both_.tensors.size(), {});
    memory_ = {};
    for (const at::Tensor& parameter : parameters_) memory_.add(parameter);
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      run(static_cast<int>(i));
      release(static_cast<int>(i));
    }
    for (const pg::Link& link : links_) {
      if (link.is_update) update(link);
    }
    result_.loss = total_loss();
    result_.peak_bytes = memory_.peak();
    TRIREME_CHECK(converted_.empty() && extended_.empty() && kept_.empty(), "a step of {} holds on to tensors",
                  both_.name);
    values_.clear();
    ++steps_;
    return std::move(result_);
  }

 private:
  /// Bytes of the memory behind all tensors that are held, each counted once.
  class HeldMemory {
   public:
    void add(const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      auto& [bytes, holders] = held_[tensor.storage().data()];
      bytes = static_cast<double>(tensor.storage().nbytes());
      if (holders++ == 0) now_ += bytes;
      peak_ = std::max(peak_, now_);
    }
    void remove(const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const auto found = held_.find(tensor.storage().data());
      if (found == held_.end() || --found->second.second > 0) return;
      now_ -= found->second.first;
      held_.erase(found);
    }
    double peak() const { return peak_; }

   private:
    std::map<const void*, std::pair<double, int>> held_;
    double now_ = 0, peak_ = 0;
  };

  int family(int op) const { return both_.op(op).forward >= 0 ? both_.op(op).forward : op; }
  const pg::Split& split_of(int op) const { return strategy_.splits[static_cast<std::size_t>(family(op))]; }
  const pg::IterationSpace& space(int op) const { return spaces_[static_cast<std::size_t>(op)]; }

  void refuse_what_cannot_run() {
    std::vector<std::string> problems = find_unsupported(both_);
    if (problems.empty()) problems = find_problems(both_, strategy_);
    if (problems.empty()) return;
    std::string all;
    for (const std::string& problem : problems) all += "\n  " + problem;
    throw ConfigError(fmt::format("graph {} cannot run so:{}", both_.name, all), "change what these lines name");
  }

  pg::Sharding sharding_of_output(int op, int tensor) const {
    if (is_parameter_sum(both_, both_.op(op))) {
      const int piece = both_.op(op).inputs[0];
      return sharding_of_output(uses_.producer[static_cast<std::size_t>(piece)], piece);
    }
    const auto& outputs = both_.op(op).outputs;
    return output_sharding(space(op), split_of(op),
                           static_cast<std::size_t>(std::ranges::find(outputs, tensor) - outputs.begin()));
  }

  Wanted wanted_of(int op, std::size_t input) const {
    return {both_.op(op).inputs[input], family(op), wanted_dims(space(op), input)};
  }

  /// When each thing is read last: then it goes.
  void find_last_uses() {
    uses_ = uses_of(both_);
    last_read_.assign(both_.tensors.size(), -1);
    std::map<Wanted, int> last_wanted;
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      const pg::Op& op = both_.ops[i];
      const int index = static_cast<int>(i);
      for (const int output : op.outputs) last_read_[static_cast<std::size_t>(output)] = index;
      if (op.kind == pg::OpKind::kSoftmaxLoss && op.part == pg::Part::kForward) losses_.push_back(op.outputs[0]);
      last_of_family_[family(index)] = index;
      for (std::size_t k = 0; k < op.inputs.size(); ++k) {
        if (is_parameter_sum(both_, op)) {
          last_read_[static_cast<std::size_t>(op.inputs[k])] = index;
        } else {
          last_wanted[wanted_of(index, k)] = index;
        }
      }
    }
    const int end = static_cast<int>(both_.ops.size());
    for (const pg::Link& link : links_) {
      int& last = last_read_[static_cast<std::size_t>(link.tensor)];
      last = std::max(last, link.is_update ? end : link.consumer);
    }
    for (const int loss : losses_) last_read_[static_cast<std::size_t>(loss)] = end;
    std::map<std::pair<int, int>, int> last_extended;
    over_.resize(both_.ops.size());
    for (const auto& [wanted, last] : last_wanted) {
      over_[static_cast<std::size_t>(last)].converted.push_back(wanted);
      int& until = last_extended[{std::get<0>(wanted), std::get<1>(wanted)}];
      until = std::max(until, last);
    }
    // The rows of a halo are kept as long as some operator of the family reads the tensor.
    for (const auto& [extended, last] : last_extended)
      over_[static_cast<std::size_t>(last)].extended.push_back(extended);
  }

  void record(pg::Phase phase, int op, int tensor, pg::Step step) {
    step.bytes = transfers_->last_bytes();
    result_.executed.push_back({phase, op, tensor, std::move(step)});
  }

  pg::Phase phase_of(int op) const { return both_.op(op).forward >= 0 ? pg::Phase::kBackward : pg::Phase::kForward; }

  at::Tensor converted(const pg::Link& link, pg::Phase phase, at::Tensor data) {
    const pg::LinkEnds ends = ends_of(both_, spaces_, link, split_of(link.producer), split_of(link.consumer));
    for (const pg::Step& step : convert(strategy_.mesh, both_.bytes(both_.tensor(link.tensor)), ends.from, ends.to)) {
      data = transfers_->take(step, data);
      record(phase, link.consumer, link.tensor, step);
    }
    return data;
  }

  const at::Tensor& source(int tensor) const {
    const bool is_parameter = both_.tensor(tensor).role == pg::Role::kParameter;
    const at::Tensor& data = (is_parameter ? parameters_ : values_)[static_cast<std::size_t>(tensor)];
    TRIREME_CHECK(data.defined(), "{} is read after it was freed", both_.tensor(tensor).name);
    return data;
  }

  /// An input as the operator wants it, without its halo.
  Block operand(int op, std::size_t input) {
    const int tensor = both_.op(op).inputs[input];
    if (is_parameter_sum(both_, both_.op(op))) {
      const Place place = place_of(both_, strategy_.mesh, transfers_->coordinates(), tensor,
                                   sharding_of_output(uses_.producer[static_cast<std::size_t>(tensor)], tensor));
      return {source(tensor), place.origin};
    }
    const Place place = place_of(both_, strategy_.mesh, transfers_->coordinates(), tensor,
                                 input_sharding(space(op), split_of(op), input));
    if (both_.tensor(tensor).role == pg::Role::kInput)
      return {box_of((*start_)[static_cast<std::size_t>(tensor)], place).contiguous(), place.origin};
    // Of max pooling not the output is read again, but which element of each window it was.
    const pg::Op& forward = both_.op(family(op));
    if (forward.kind == pg::OpKind::kPooling && op != family(op) && tensor == forward.outputs[0])
      return {kept_.at(family(op)).at("winner"), place.origin};
    const auto found = converted_.find(wanted_of(op, input));
    const at::Tensor& data = found != converted_.end() ? found->second : source(tensor);
    TRIREME_CHECK(data.sizes().vec() == place.sizes, "{} does not lie as {} wants it", both_.tensor(tensor).name,
                  both_.op(op).name);
    return {data, place.origin};
  }

  void run(int index) {
    const pg::Op& op = both_.op(index);
    for (const std::size_t i : into_[static_cast<std::size_t>(index)]) {
      const pg::Link& link = links_[i];
      at::Tensor data = converted(link, phase_of(index), source(link.tensor));
      memory_.add(data);
      converted_[wanted_of(index, static_cast<std::size_t>(link.input))] = std::move(data);
    }
    OpCall call{.graph = both_,
                .op = op,
                .inputs = {},
                .outputs = {},
                .kept = kept_[family(index)],
                .all_reduce = {},
                .seed = options_.seed,
                .step = steps_};
    for (std::size_t k = 0; k < op.inputs.size(); ++k) call.inputs.push_back(operand(index, k));
    std::vector<pg::Step> statistics;
    exchange_halos(index, call, statistics);
    std::size_t next = 0;
    call.all_reduce = [&](at::Tensor& data, comm::Reduce reduce) {
      if (statistics.empty()) return;
      TRIREME_CHECK(next < statistics.size(), "operator {} has more statistics than the lowering lists", op.name);
      transfers_->all_reduce(statistics[next], data, reduce);
      record(phase_of(index), index, -1, statistics[next++]);
    };
    for (const int output : op.outputs)
      call.outputs.push_back(
          place_of(both_, strategy_.mesh, transfers_->coordinates(), output, sharding_of_output(index, output)));
    std::vector<at::Tensor> made = run_op(call);
    TRIREME_CHECK(next == statistics.size(), "operator {} has fewer statistics than the lowering lists", op.name);
    if (op.forward < 0) {
      for (const auto& [name, tensor] : call.kept) memory_.add(tensor);
    }
    for (std::size_t k = 0; k < made.size(); ++k) {
      memory_.add(made[k]);
      values_[static_cast<std::size_t>(op.outputs[k])] = std::move(made[k]);
    }
  }

  void exchange_halos(int index, OpCall& call, std::vector<pg::Step>& statistics) {
    const pg::Op &op = both_.op(index), &forward = both_.op(family(index));
    std::set<int> fresh;  // tensors whose halo this operator is the first to need
    for (const pg::Exchange& exchange : exchanges_of(both_, strategy_.mesh, op, space(index), split_of(index))) {
      if (exchange.tensor < 0) {
        statistics.push_back(exchange.step);
        continue;
      }
      const std::pair key{exchange.tensor, family(index)};
      if (extended_.contains(key) && !fresh.contains(exchange.tensor)) continue;
      fresh.insert(exchange.tensor);
      const auto input = static_cast<std::size_t>(std::ranges::find(op.inputs, exchange.tensor) - op.inputs.begin());
      const Block& block = extended_.contains(key) ? extended_.at(key) : call.inputs[input];
      const pg::Window& window = forward.windows[static_cast<std::size_t>(exchange.window)];
      Block wider = transfers_->extend(exchange.step, block, [&](Index part, Index parts) {
        return halo_rows(both_, window, tiles_input(op), part, parts);
      });
      record(phase_of(index), index, exchange.tensor, exchange.step);
      extended_[key] = std::move(wider);
    }
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const auto found = extended_.find({op.inputs[k], family(index)});
      if (found == extended_.end() || !reads_halo(op, op.inputs[k])) continue;
      if (fresh.contains(op.inputs[k])) memory_.add(found->second.data);
      call.inputs[k] = found->second;
    }
  }

  /// A weight gradient reads the gradient's own rows, though others of the family have its halo.
  bool reads_halo(const pg::Op& op, int tensor) const {
    return op.kind != pg::OpKind::kEinsum && !(op.part == pg::Part::kBackwardWeight && op.inputs[1] == tensor);
  }

  void release(int index) {
    for (const Wanted& wanted : over_[static_cast<std::size_t>(index)].converted) {
      const auto found = converted_.find(wanted);
      if (found == converted_.end()) continue;
      memory_.remove(found->second);
      converted_.erase(found);
    }
    for (const auto& key : over_[static_cast<std::size_t>(index)].extended) {
      const auto found = extended_.find(key);
      if (found == extended_.end()) continue;
      memory_.remove(found->second.data);
      extended_.erase(found);
    }
    if (last_of_family_.at(family(index)) == index) {
      for (const auto& [name, tensor] : kept_.at(family(index))) memory_.remove(tensor);
      kept_.erase(family(index));
    }
    const pg::Op& op = both_.op(index);
    const auto drop = [&](int tensor) {
      at::Tensor& value = values_[static_cast<std::size_t>(tensor)];
      if (!value.defined() || last_read_[static_cast<std::size_t>(tensor)] > index) return;
      memory_.remove(value);
      value = at::Tensor();
    };
    for (const int input : op.inputs) drop(input);
    for (const int output : op.outputs) drop(output);
  }

  void update(const pg::Link& link) {
    const int of = both_.tensor(link.tensor).grad_of;
    at::Tensor gradient = converted(link, pg::Phase::kUpdate, source(link.tensor));
    if (options_.learning_rate != 0) parameters_[static_cast<std::size_t>(of)].sub_(gradient, options_.learning_rate);
    result_.gradients[static_cast<std::size_t>(of)] = std::move(gradient);
  }

  /// Summed over the ranks that hold summands: for people, not a part of the step.
  double total_loss() {
    double total = 0;
    for (const int loss : losses_) {
      at::Tensor value = values_[static_cast<std::size_t>(loss)].to(at::kDouble).clone();
      const pg::Sharding lies = sharding_of_output(uses_.producer[static_cast<std::size_t>(loss)], loss);
      if (!lies.partial.empty()) transfers_->all_reduce({.axes = lies.partial}, value, comm::Reduce::kSum);
      total += value.item<double>();
    }
    return total;
  }

  const pg::Graph both_;
  const pg::Strategy strategy_;
  const ExecutorOptions options_;
  std::vector<pg::IterationSpace> spaces_;
  std::vector<pg::Link> links_;
  std::vector<std::vector<std::size_t>> into_;  // [operator] links
  pg::Lowering lowering_;
  pg::Uses uses_;
  std::vector<int> losses_;
  std::vector<int> last_read_;  // [tensor] the operator after which the block that was made goes
  struct Over {
    std::vector<Wanted> converted;
    std::vector<std::pair<int, int>> extended;
  };
  std::vector<Over> over_;  // [operator] what nobody reads after it
  std::map<int, int> last_of_family_;
  std::unique_ptr<Transfers> transfers_;

  Values parameters_;
  std::int64_t steps_ = 0;

  // Of the step that runs.
  const Values* start_ = nullptr;
  Values values_;
  std::map<Wanted, at::Tensor> converted_;
  std::map<std::pair<int, int>, Block> extended_;  // tensor, forward operator
  std::map<int, Kept> kept_;                       // [forward operator]
  HeldMemory memory_;
  StepResult result_;
};

Executor::Executor(const pg::Graph& both, const pg::Strategy& strategy, comm::Group& world,
                   const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(both, strategy, world, options)) {}
Executor::~Executor() = default;

const pg::Lowering& Executor::lowering() const { return impl_->lowering(); }
void Executor::load(const Values& start) { impl_->load(start); }
StepResult Executor::step(const Values& start) { return impl_->step(start); }
Place Executor::parameter_place(int tensor) const { return impl_->parameter_place(tensor); }
at::Tensor Executor::parameter(int tensor) const { return impl_->parameter(tensor); }

}  // namespace trireme::spmd
