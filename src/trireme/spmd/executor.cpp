#include "trireme/spmd/executor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/spmd/descent.h"
#include "trireme/spmd/held_memory.h"
#include "trireme/spmd/lifetimes.h"
#include "trireme/spmd/lstm_groups.h"
#include "trireme/spmd/norm_tails.h"
#include "trireme/spmd/ops/kernel.h"
#include "trireme/spmd/transfers.h"

namespace trireme::spmd {

namespace {

constexpr double kMomentum = 0.1;  // of running statistics

}  // namespace

class Executor::Impl {
 public:
  Impl(const pg::Graph& both, const pg::Strategy& strategy, comm::Group& world, const ExecutorOptions& options)
      : both_(both), strategy_(strategy), options_(options), descent_(both, options.descent) {
    refuse_what_cannot_run();
    for (const pg::Op& op : both_.ops) spaces_.push_back(iteration_space(both_, op));
    uses_ = uses_of(both_);
    links_ = links_of(both_, strategy_.stored);
    lstm_groups_ = lstm_groups_of(both_, spaces_, links_, strategy_);
    lowering_ = lower(both_, strategy_);
    program_ = program_of(both_, strategy_);
    // What goes to another stage is made where its operator stands.
    tails_ = options_.fused_images && !options_.neighbours
                 ? norm_tails_of(both_, uses_, spaces_, links_, program_, strategy_)
                 : no_norm_tails(both_);
    over_ = lifetimes_of(both_, spaces_, links_, program_);
    backward_begins_ = static_cast<std::size_t>(
        std::ranges::find_if(program_, [&](const auto& step) { return step.again || both_.op(step.op).forward >= 0; }) -
        program_.begin());
    weights_begin_ = program_.size();
    while (weights_begin_ > backward_begins_ && !program_[weights_begin_ - 1].again &&
           makes_weight_gradients(both_, both_.op(program_[weights_begin_ - 1].op)))
      --weights_begin_;
    into_.resize(both_.ops.size());
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!links_[i].is_update) into_[static_cast<std::size_t>(links_[i].consumer)].push_back(i);
    }
    for (const pg::Op& op : both_.ops) {
      if (op.kind == pg::OpKind::kSoftmaxLoss && op.part == pg::Part::kForward) losses_.push_back(op.outputs[0]);
    }
    std::vector<pg::MeshAxes> axes;
    for (const pg::Inserted& inserted : lowering_.inserted) {
      if (inserted.step.kind != pg::StepKind::kSlice) axes.push_back(inserted.step.axes);
    }
    for (const int loss : losses_) axes.push_back(sharding_of_output(uses_.producer[std::size_t(loss)], loss).partial);
    if (options_.neighbours) {
      for (const pg::MeshAxes& set : options_.neighbours->axes()) axes.push_back(set);
    }
    transfers_ = std::make_unique<Transfers>(strategy_.mesh, world, axes);
    parameters_.resize(both_.tensors.size());
    sum_of_.assign(both_.tensors.size(), -1);
    for (const pg::Op& op : both_.ops) {
      if (!is_parameter_sum(both_, op)) continue;
      for (const int piece : op.inputs) sum_of_[static_cast<std::size_t>(piece)] = op.outputs[0];
    }
  }

  const pg::Lowering& lowering() const { return lowering_; }

  void load(const Values& start) {
    Values own(both_.tensors.size());
    for (std::size_t i = 0; i < both_.tensors.size(); ++i) {
      if (both_.tensors[i].role != pg::Role::kParameter || uses_.consumers[i].empty()) continue;
      own[i] = packed(box_of(start[i], parameter_place(static_cast<int>(i))));
      parameters_[i] = own[i].to(scalar_type(both_.tensors[i].dtype)).clone();
    }
    descent_.load(parameters_, own);
    steps_ = 0;
  }

  Place parameter_place(int tensor) const {
    return place_of(both_, strategy_.mesh, transfers_->coordinates(), tensor,
                    parameter_sharding(both_, uses_, spaces_, strategy_, tensor));
  }
  bool holds(int tensor) const {
    return both_.tensor(tensor).role == pg::Role::kParameter &&
           !uses_.consumers[static_cast<std::size_t>(tensor)].empty();
  }
  const at::Tensor& parameter(int tensor) const { return parameters_[static_cast<std::size_t>(tensor)]; }

  const RunningStatistics& statistics() const { return statistics_; }

  void forward(int micro, const Values& inputs) {
    const c10::NoGradGuard no_gradients;
    if (micros_.empty() && executed_.empty()) begin_step();
    Micro& state = micros_[micro];
    state.number = micro;
    state.inputs = &inputs;
    state.values.assign(both_.tensors.size(), {});
    for (std::size_t position = 0; position < backward_begins_; ++position) run(state, position);
  }

  void backward_input(int micro) {
    const c10::NoGradGuard no_gradients;
    Micro& state = micros_.at(micro);
    for (std::size_t position = backward_begins_; position < weights_begin_; ++position) run(state, position);
  }

  void backward_weight(int micro) {
    const c10::NoGradGuard no_gradients;
    Micro& state = micros_.at(micro);
    for (std::size_t position = weights_begin_; position < program_.size(); ++position) run(state, position);
    for (const pg::Link& link : links_) {
      if (!link.is_update) continue;
      at::Tensor& value = state.values[static_cast<std::size_t>(link.tensor)];
      TRIREME_CHECK(value.defined(), "{} was freed before the update", both_.tensor(link.tensor).name);
      at::Tensor& sum = sums_[static_cast<std::size_t>(link.tensor)];
      const at::Tensor next = sum.defined() ? sum + value : value;
      memory_.add(next);
      memory_.remove(sum);
      sum = next;
      memory_.remove(value);
      value = at::Tensor();
    }
    TRIREME_CHECK(state.converted.empty() && state.extended.empty() && state.kept.empty(),
                  "a micro-batch of {} holds on to tensors", both_.name);
    executed_[micro] = std::move(state.executed);
    micros_.erase(micro);
  }

  StepResult update() {
    const c10::NoGradGuard no_gradients;
    TRIREME_CHECK(micros_.empty() && static_cast<int>(executed_.size()) == options_.micros,
                  "an update of {} before all micro-batches are through", both_.name);
    StepResult result{.gradients = Values(both_.tensors.size())};
    std::vector<pg::Inserted> executed;
    for (const pg::Link& link : links_) {
      if (!link.is_update) continue;
      at::Tensor& sum = sums_[static_cast<std::size_t>(link.tensor)];
      at::Tensor mean = options_.micros > 1 ? sum / static_cast<double>(options_.micros) : sum;
      result.gradients[static_cast<std::size_t>(both_.tensor(link.tensor).grad_of)] =
          converted(link, pg::Phase::kUpdate, std::move(mean), executed);
      memory_.remove(sum);
      sum = at::Tensor();
    }
    if (options_.neighbours) options_.neighbours->sum_gradients(result.gradients);
    if (options_.descent.learning_rate != 0) descent_.step(parameters_, result.gradients, steps_);
    update_statistics();
    for (auto& [micro, list] : executed_) {
      list.insert(list.end(), executed.begin(), executed.end());
      result.executed.push_back(std::move(list));
    }
    executed_.clear();
    if (options_.defer_loss) {
      result.loss_value = losses_.empty() ? at::Tensor() : loss_sums_[0];
      for (std::size_t i = 1; i < loss_sums_.size(); ++i) result.loss_value = result.loss_value + loss_sums_[i];
    } else {
      result.loss = total_loss();
    }
    result.peak_bytes = memory_.peak();
    ++steps_;
    return result;
  }

  StepResult step(const Values& start) {
    forward(0, start);
    backward_input(0);
    backward_weight(0);
    return update();
  }

 private:
  /// What one micro-batch holds while it is on its way.
  struct Micro {
    int number = 0;
    const Values* inputs = nullptr;
    Values values;
    std::map<Wanted, at::Tensor> converted;
    std::map<std::pair<int, int>, Block> extended;  // tensor, forward operator
    std::map<int, Kept> kept;                       // [forward operator]
    std::set<int> own_sums;                         // gradients whose memory nothing else reads
    std::map<int, DeferredParts> deferred;          // [gradient]
    std::map<int, at::Tensor> input_sums;           // [cell of an LSTM]
    std::map<int, DeferredInputs> inputs_later;     // [group of cells]
    std::map<int, int> later;                       // [gradient that is not made yet] group of cells
    std::map<int, NormTail> tails;                  // [tail of a norm]
    std::vector<pg::Inserted> executed;
  };

  void begin_step() {
    memory_ = {};
    for (const at::Tensor& parameter : parameters_) memory_.add(parameter);
    sums_.assign(both_.tensors.size(), {});
    loss_sums_.assign(losses_.size(), {});
  }

  int family(int op) const { return family_of(both_, op); }
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

  bool is_unmade(int tensor) const { return tails_.unmade[static_cast<std::size_t>(tensor)]; }

  Wanted wanted_of(int op, std::size_t input) const {
    return {both_.op(op).inputs[input], family(op), wanted_dims(space(op), input)};
  }

  void record(std::vector<pg::Inserted>& executed, pg::Phase phase, int op, int tensor, pg::Step step) {
    step.bytes = transfers_->last_bytes();
    executed.push_back({phase, op, tensor, std::move(step)});
  }

  at::Tensor converted(const pg::Link& link, pg::Phase phase, at::Tensor data, std::vector<pg::Inserted>& executed) {
    const pg::LinkEnds ends = ends_of(both_, spaces_, link, strategy_);
    for (const pg::Step& step : convert(strategy_.mesh, both_.bytes(both_.tensor(link.tensor)), ends.from, ends.to)) {
      data = transfers_->take(step, data);
      record(executed, phase, link.consumer, link.tensor, step);
    }
    return data;
  }

  const at::Tensor& source(Micro& state, int tensor) {
    const pg::Role role = both_.tensor(tensor).role;
    at::Tensor& data = (role == pg::Role::kParameter ? parameters_ : state.values)[static_cast<std::size_t>(tensor)];
    if (!data.defined()) {
      if (const auto found = state.later.find(tensor); found != state.later.end())
        make_input_gradients(state, found->second);
    }
    if (!data.defined() && role == pg::Role::kReceived) {
      data = options_.neighbours->receive(tensor, state.number, received_place(tensor));
      memory_.add(data);
    }
    TRIREME_CHECK(data.defined(), "{} is read after it was freed", both_.tensor(tensor).name);
    return data;
  }

  /// As its first reader wants it.
  Place received_place(int tensor) const {
    const int reader = uses_.consumers[static_cast<std::size_t>(tensor)][0];
    const auto& inputs = both_.op(reader).inputs;
    const auto input = static_cast<std::size_t>(std::ranges::find(inputs, tensor) - inputs.begin());
    return place_of(both_, strategy_.mesh, transfers_->coordinates(), tensor,
                    input_sharding(space(reader), split_of(reader), input));
  }

  /// An input as the operator wants it, without its halo.
  Block operand(Micro& state, int op, std::size_t input) {
    const int tensor = both_.op(op).inputs[input];
    const Place place = place_of(both_, strategy_.mesh, transfers_->coordinates(), tensor,
                                 input_sharding(space(op), split_of(op), input));
    if (both_.tensor(tensor).role == pg::Role::kInput)
      return {packed(box_of((*state.inputs)[static_cast<std::size_t>(tensor)], place)), place.origin};
    if (is_unmade(tensor)) return {at::Tensor(), place.origin};
    // Of max pooling not the output is read again, but which element of each window it was.
    const pg::Op& forward = both_.op(family(op));
    if (forward.kind == pg::OpKind::kPooling && op != family(op) && tensor == forward.outputs[0])
      return {state.kept.at(family(op)).at("winner"), place.origin};
    const auto found = state.converted.find(wanted_of(op, input));
    const at::Tensor& data = found != state.converted.end() ? found->second : source(state, tensor);
    TRIREME_CHECK(data.sizes().vec() == place.sizes, "{} does not lie as {} wants it", both_.tensor(tensor).name,
                  both_.op(op).name);
    return {data, place.origin};
  }

  void run(Micro& state, std::size_t position) {
    const auto [index, again] = program_[position];
    const pg::Op& op = both_.op(index);
    const pg::Phase phase = op.forward >= 0 || again ? pg::Phase::kBackward : pg::Phase::kForward;
    if (is_parameter_sum(both_, op)) {  // its parts were added as they were made
      add_deferred(state, op.outputs[0]);
      return release(state, position);
    }
    for (const std::size_t i : into_[static_cast<std::size_t>(index)]) {
      const pg::Link& link = links_[i];
      if (is_unmade(link.tensor)) continue;
      at::Tensor data = converted(link, phase, source(state, link.tensor), state.executed);
      memory_.add(data);
      state.converted[wanted_of(index, static_cast<std::size_t>(link.input))] = std::move(data);
    }
    OpCall call{.graph = both_,
                .op = op,
                .inputs = {},
                .outputs = {},
                .kept = state.kept[family(index)],
                .all_reduce = {},
                .seed = options_.seed,
                .step = steps_,
                .micro = {.number = state.number, .count = options_.micros, .dims = options_.micro_dims}};
    for (std::size_t k = 0; k < op.inputs.size(); ++k) call.inputs.push_back(operand(state, index, k));
    std::vector<pg::Step> statistics;
    exchange_halos(state, index, phase, call, statistics);
    std::size_t next = 0;
    call.all_reduce = [&](at::Tensor& data, comm::Reduce reduce) {
      if (statistics.empty()) return;
      TRIREME_CHECK(next < statistics.size(), "operator {} has more statistics than the lowering lists", op.name);
      transfers_->all_reduce(statistics[next], data, reduce);
      record(state.executed, phase, index, -1, statistics[next++]);
    };
    call.shares_statistics = !statistics.empty();
    for (const int output : op.outputs)
      call.outputs.push_back(
          place_of(both_, strategy_.mesh, transfers_->coordinates(), output, sharding_of_output(index, output)));
    for (const int output : op.outputs) {
      const int sum = sum_of_[static_cast<std::size_t>(output)];
      call.deferred.push_back(sum >= 0 ? &state.deferred[sum] : nullptr);
    }
    call.fused_images = options_.fused_images;
    if (options_.fused_images) call.gemm_is_faster = &gemm_is_faster_;
    call.member = tails_.members[static_cast<std::size_t>(index)];
    if (call.member.tail >= 0) call.tail = &state.tails[call.member.tail];
    const int cells = op.kind == pg::OpKind::kLstmCell ? lstm_groups_.of[static_cast<std::size_t>(family(index))] : -1;
    call.odd_cell = cells >= 0 && lstm_groups_.odd[static_cast<std::size_t>(family(index))];
    if (cells >= 0 && op.forward < 0 && !again) call.input_sums = input_sums(state, index, call);
    // What goes to another stage is made at once.
    if (cells >= 0 && op.forward >= 0 && !options_.neighbours) call.deferred_input = &state.inputs_later[cells];
    const at::Tensor transposed = call.deferred_input ? call.deferred_input->transposed : at::Tensor();
    std::vector<at::Tensor> made = run_op(call);
    if (call.deferred_input && !call.deferred_input->transposed.is_same(transposed)) {
      memory_.add(call.deferred_input->transposed);
      memory_.remove(transposed);
    }
    TRIREME_CHECK(next == statistics.size(), "operator {} has fewer statistics than the lowering lists", op.name);
    if (op.forward < 0) {
      for (const auto& [name, tensor] : call.kept) memory_.add(tensor);
      memory_.remove(call.input_sums);
    }
    for (std::size_t k = 0; k < made.size(); ++k) {
      if (const int sum = sum_of_[static_cast<std::size_t>(op.outputs[k])]; sum >= 0) {
        if (made[k].defined()) {
          add_part(state, sum, made[k]);
        } else {
          hold_last_part(state.deferred[sum]);
        }
        continue;
      }
      if (is_unmade(op.outputs[k])) continue;
      if (!made[k].defined()) {  // the gradient of a cell's input, made when it is read
        state.later[op.outputs[k]] = cells;
        memory_.add(call.deferred_input->gates.back());
        continue;
      }
      at::Tensor& value = state.values[static_cast<std::size_t>(op.outputs[k])];
      memory_.remove(value);
      memory_.add(made[k]);
      value = std::move(made[k]);
      if (again) continue;
      if (options_.neighbours)
        options_.neighbours->made(op.outputs[k], state.number, {value, call.outputs[k].origin}, *transfers_);
      for (std::size_t loss = 0; loss < losses_.size(); ++loss) {
        if (losses_[loss] != op.outputs[k]) continue;
        const at::Tensor wide = value.to(at::kDouble);
        loss_sums_[loss] = loss_sums_[loss].defined() ? loss_sums_[loss] + wide : wide.clone();
      }
    }
    if (is_batch_norm(op) && op.forward < 0 && !again && !options_.defer_loss) add_statistics(index, call);
    release(state, position);
  }

  /// What a cell's input adds to its gates: by one GEMM for all cells of its group whose inputs are there.
  at::Tensor input_sums(Micro& state, int index, const OpCall& call) {
    if (!state.input_sums.contains(index)) {
      std::vector<int> cells;
      std::vector<at::Tensor> rows;
      for (const int cell :
           lstm_groups_.cells[static_cast<std::size_t>(lstm_groups_.of[static_cast<std::size_t>(index)])]) {
        const at::Tensor& x = state.values[static_cast<std::size_t>(both_.op(cell).inputs[0])];
        if (cell < index || !x.defined()) continue;
        cells.push_back(cell);
        rows.push_back(x);
      }
      if (cells.size() < 2) return {};
      const at::Tensor sums = lstm_input_sums(at::cat(rows), call.inputs[3].data, call.inputs[5].data);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        at::Tensor& own = state.input_sums[cells[i]] = sums.narrow(0, row, rows[i].size(0));
        memory_.add(own);
        row += rows[i].size(0);
      }
    }
    at::Tensor own = std::move(state.input_sums.at(index));
    state.input_sums.erase(index);
    return own;
  }

  /// Gradients of the inputs of all cells of a group that have run their backward.
  void make_input_gradients(Micro& state, int group) {
    const auto found = state.inputs_later.find(group);
    const at::Tensor made = lstm_input_gradients(found->second);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < found->second.tensors.size(); ++i) {
      const int tensor = found->second.tensors[i];
      const at::Tensor& gates = found->second.gates[i];
      at::Tensor& value = state.values[static_cast<std::size_t>(tensor)];
      value = made.narrow(0, row, gates.size(0));
      row += gates.size(0);
      memory_.add(value);
      memory_.remove(gates);
      state.later.erase(tensor);
    }
    memory_.remove(found->second.transposed);
    state.inputs_later.erase(found);
  }

  /// Means and mean squares of a micro-batch.
  void add_statistics(int index, const OpCall& call) {
    const at::Tensor mean = call.kept.at("mean").flatten().to(at::kDouble),
                     rstd = call.kept.at("rstd").flatten().to(at::kDouble);
    const at::Tensor squares = rstd.pow(-2) - kNormEps + mean * mean;
    at::Tensor& sum = moments_[index];
    const at::Tensor next = at::stack({mean, squares});
    sum = sum.defined() ? sum + next : next;
    statistics_[both_.op(index).name].origin = call.inputs[1].origin[0];
  }

  /// One step further: PyTorch's momentum and its unbiased variance, over the whole mini-batch.
  void update_statistics() {
    for (auto& [index, sum] : moments_) {
      const pg::Op& op = both_.op(index);
      double elements = options_.micros;
      for (const int dim : op.dims) elements *= static_cast<double>(both_.size(dim));
      if (op.function == "local-batch") {  // of this rank's samples
        const std::vector<int> degrees = degrees_of(strategy_.mesh, space(index), split_of(index));
        for (const int dim : op.dims) elements /= degrees[static_cast<std::size_t>(space(index).find(dim))];
      }
      const at::Tensor mean = sum[0] / options_.micros;
      const at::Tensor variance = (sum[1] / options_.micros - mean * mean) * (elements / std::max(1.0, elements - 1));
      at::Tensor& moments = statistics_[op.name].moments;
      if (!moments.defined()) moments = at::stack({at::zeros_like(mean), at::ones_like(mean)});
      moments = moments * (1 - kMomentum) + at::stack({mean, variance}) * kMomentum;
    }
    moments_.clear();
  }

  /// One more part of a parameter's gradient. The first may be memory that others read, so the second makes a new one.
  void add_part(Micro& state, int sum, const at::Tensor& part) {
    at::Tensor& value = state.values[static_cast<std::size_t>(sum)];
    if (!value.defined()) {
      value = part;
    } else if (state.own_sums.contains(sum)) {
      value.add_(part);
      return;
    } else {
      memory_.remove(value);
      value = value + part;
      state.own_sums.insert(sum);
    }
    memory_.add(value);
  }

  void hold_last_part(const DeferredParts& parts) {
    if (!parts.left.empty()) memory_.add(parts.left.back());
    memory_.add(parts.right.back());
  }

  /// What was left over of a sum's parts, at once.
  void add_deferred(Micro& state, int sum) {
    const auto found = state.deferred.find(sum);
    if (found == state.deferred.end()) return;
    DeferredParts& parts = found->second;
    if (!parts.right.empty()) {
      const at::Tensor left = parts.left.empty() ? at::Tensor() : at::cat(parts.left);
      add_part(state, sum, parts.sum_of(left, at::cat(parts.right)));
      for (const at::Tensor& one : parts.left) memory_.remove(one);
      for (const at::Tensor& one : parts.right) memory_.remove(one);
    }
    state.deferred.erase(found);
  }

  void exchange_halos(Micro& state, int index, pg::Phase phase, OpCall& call, std::vector<pg::Step>& statistics) {
    const pg::Op &op = both_.op(index), &forward = both_.op(family(index));
    std::set<int> fresh;  // tensors whose halo this operator is the first to need
    for (const pg::Exchange& exchange : exchanges_of(both_, strategy_.mesh, op, space(index), split_of(index))) {
      if (exchange.tensor < 0) {
        statistics.push_back(exchange.step);
        continue;
      }
      const std::pair key{exchange.tensor, family(index)};
      if (state.extended.contains(key) && !fresh.contains(exchange.tensor)) continue;
      fresh.insert(exchange.tensor);
      const auto input = static_cast<std::size_t>(std::ranges::find(op.inputs, exchange.tensor) - op.inputs.begin());
      const Block& block = state.extended.contains(key) ? state.extended.at(key) : call.inputs[input];
      const pg::Window& window = forward.windows[static_cast<std::size_t>(exchange.window)];
      Block wider = transfers_->extend(exchange.step, block, [&](Index part, Index parts) {
        return halo_rows(both_, window, tiles_input(op), part, parts);
      });
      record(state.executed, phase, index, exchange.tensor, exchange.step);
      state.extended[key] = std::move(wider);
    }
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const auto found = state.extended.find({op.inputs[k], family(index)});
      if (found == state.extended.end() || !reads_halo(op, op.inputs[k])) continue;
      if (fresh.contains(op.inputs[k])) memory_.add(found->second.data);
      call.inputs[k] = found->second;
    }
  }

  void release(Micro& state, std::size_t position) {
    const Over& over = over_[position];
    for (const Wanted& wanted : over.converted) {
      const auto found = state.converted.find(wanted);
      if (found == state.converted.end()) continue;
      memory_.remove(found->second);
      state.converted.erase(found);
    }
    for (const auto& key : over.extended) {
      const auto found = state.extended.find(key);
      if (found == state.extended.end()) continue;
      memory_.remove(found->second.data);
      state.extended.erase(found);
    }
    for (const int op : over.kept) {
      for (const auto& [name, tensor] : state.kept.at(op)) memory_.remove(tensor);
      state.kept.erase(op);
    }
    for (const int tensor : over.values) {
      at::Tensor& value = state.values[static_cast<std::size_t>(tensor)];
      memory_.remove(value);
      value = at::Tensor();
    }
  }

  /// The mean over micro-batches, summed over the ranks that hold summands: for people, not a part of the step.
  double total_loss() {
    double total = 0;
    for (std::size_t i = 0; i < losses_.size(); ++i) {
      at::Tensor value = loss_sums_[i].to(at::kCPU) / static_cast<double>(options_.micros);
      const pg::Sharding lies = sharding_of_output(uses_.producer[static_cast<std::size_t>(losses_[i])], losses_[i]);
      if (!lies.partial.empty()) transfers_->all_reduce({.axes = lies.partial}, value, comm::Reduce::kSum);
      total += value.item<double>();
    }
    return total;
  }

  const pg::Graph both_;
  const pg::Strategy strategy_;
  const ExecutorOptions options_;
  std::vector<pg::IterationSpace> spaces_;
  pg::Uses uses_;
  std::vector<pg::Link> links_;
  std::vector<std::vector<std::size_t>> into_;  // [operator] links
  LstmGroups lstm_groups_;
  NormTails tails_;
  pg::Lowering lowering_;
  std::vector<pg::ProgramStep> program_;
  std::vector<Over> over_;           // [step of the program]
  std::size_t backward_begins_ = 0;  // in the program
  std::size_t weights_begin_ = 0;    // and what of backward only makes gradients of weights
  std::vector<int> losses_;
  std::unique_ptr<Transfers> transfers_;

  std::vector<int> sum_of_;  // [tensor] a part of a parameter's gradient: the sum; -1: none
  Values parameters_;
  Descent descent_;
  std::int64_t steps_ = 0;

  // Of the step that runs.
  std::map<int, Micro> micros_;
  std::map<int, std::vector<pg::Inserted>> executed_;  // [micro-batch that is through]
  Values sums_;                                        // [tensor] of gradients, over micro-batches
  std::vector<at::Tensor> loss_sums_;
  std::map<int, at::Tensor> moments_;  // [batch norm] sums over micro-batches of mean and mean square
  RunningStatistics statistics_;
  HeldMemory memory_;
  std::map<std::vector<Index>, bool> gemm_is_faster_;
};

Executor::Executor(const pg::Graph& both, const pg::Strategy& strategy, comm::Group& world,
                   const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(both, strategy, world, options)) {}
Executor::~Executor() = default;

const pg::Lowering& Executor::lowering() const { return impl_->lowering(); }
void Executor::load(const Values& start) { impl_->load(start); }
StepResult Executor::step(const Values& start) { return impl_->step(start); }
void Executor::forward(int micro, const Values& inputs) { impl_->forward(micro, inputs); }
void Executor::backward(int micro) {
  impl_->backward_input(micro);
  impl_->backward_weight(micro);
}
void Executor::backward_input(int micro) { impl_->backward_input(micro); }
void Executor::backward_weight(int micro) { impl_->backward_weight(micro); }
StepResult Executor::update() { return impl_->update(); }
const RunningStatistics& Executor::statistics() const { return impl_->statistics(); }
bool Executor::holds(int tensor) const { return impl_->holds(tensor); }
Place Executor::parameter_place(int tensor) const { return impl_->parameter_place(tensor); }
at::Tensor Executor::parameter(int tensor) const { return impl_->parameter(tensor); }

}  // namespace trireme::spmd
