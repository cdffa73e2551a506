#include "trireme/spmd/pipeline.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/schedule/builders.h"
#include "trireme/spmd/reference.h"

namespace trireme::spmd {
namespace {

/// A box of a tensor, cut out of a block of it.
at::Tensor cut_out(const at::Tensor& data, const std::vector<Index>& origin, const Place& box) {
  at::Tensor part = data;
  for (std::size_t dim = 0; dim < origin.size(); ++dim)
    part = part.narrow(static_cast<std::int64_t>(dim), box.origin[dim] - origin[dim], box.sizes[dim]);
  return part;
}

}  // namespace

class PipelineExecutor::Impl : public Neighbours {
 public:
  Impl(const pg::Graph& forward, const pg::StagedPlan& plan, comm::Group& world, const ExecutorOptions& options)
      : plan_(plan), world_(world) {
    refuse(forward);
    pg::MicroGraph micro = micro_graph(with_backward(forward), plan.micros);
    both_ = std::move(micro.graph);
    micro_dims_ = std::move(micro.dims);
    staged_ = stage_graphs(both_, plan_);
    while (mine_ + 1 < plan_.stages.size() && plan_.first_rank(mine_ + 1) <= world.rank()) ++mine_;
    stage_ranks_ = world.split(static_cast<int>(mine_), world.rank(), fmt::format("stage{}", mine_));
    schedule_ =
        schedule::build(plan_.schedule, {.ranks = static_cast<int>(plan_.stages.size()), .micros = plan_.micros});
    list_messages();
    ExecutorOptions own = options;
    own.micros = plan_.micros;
    own.micro_dims = micro_dims_;
    own.neighbours = this;
    executor_ = std::make_unique<Executor>(stage().graph, stage().strategy, *stage_ranks_, own);
  }

  const pg::Stage& stage() const { return staged_.stages[mine_]; }
  const Executor& executor() const { return *executor_; }
  comm::Group& stage_ranks() { return *stage_ranks_; }
  void load(const Values& start) { executor_->load(start); }

  StepResult step(const Values& start) {
    sent_messages_ = 0, sent_bytes_ = 0;
    std::vector<Values> inputs;
    for (int micro = 0; micro < plan_.micros; ++micro)
      inputs.push_back(values_of_micro(both_, start, {.number = micro, .count = plan_.micros, .dims = micro_dims_}));
    for (const schedule::Instruction& one : schedule_.ranks[mine_]) {
      if (one.op == schedule::Op::kForward) {
        executor_->forward(one.micro, inputs[static_cast<std::size_t>(one.micro)]);
      } else if (one.op == schedule::Op::kBackward) {
        executor_->backward(one.micro);
      } else if (one.op == schedule::Op::kBackwardInput) {
        executor_->backward_input(one.micro);
      } else if (one.op == schedule::Op::kBackwardWeight) {
        executor_->backward_weight(one.micro);
      }
    }
    StepResult result = executor_->update();
    for (Pending& pending : pending_) pending.work.wait();
    pending_.clear();
    // Every rank of a stage knows its loss: the first of each counts.
    double loss = stage_ranks_->rank() == 0 ? result.loss : 0;
    world_.all_reduce(comm::Buffer{&loss, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
    result.loss = loss;
    return result;
  }

  at::Tensor receive(int tensor, int micro, const Place& place) override {
    return collect(incoming_.at(tensor), tensor, tag_of(tensor, micro), place);
  }

  void made(int tensor, int micro, const Block& block, Transfers& transfers) override {
    const auto found = outgoing_.find(tensor);
    if (found == outgoing_.end()) return;
    at::Tensor whole = block.data;
    for (const pg::Step& step : found->second.steps) whole = transfers.take(step, whole);
    deliver(found->second.messages, whole, block.origin, tag_of(tensor, micro));
  }

  void sum_gradients(Values& gradients) override {
    for (const Shared& shared : shared_) {
      at::Tensor& gradient = gradients[static_cast<std::size_t>(shared.tensor)];
      const Place place = executor_->parameter_place(shared.tensor);
      const int tag = tag_of(static_cast<int>(both_.tensors.size()) + shared.tensor, 0);
      if (shared.is_first) {
        for (const auto& from : shared.collected) gradient = gradient + collect(from, shared.tensor, tag, place);
        for (const auto& to : shared.returned) deliver(to, gradient, place.origin, tag);
      } else {
        deliver(shared.collected[0], gradient, place.origin, tag);
        gradient = collect(shared.returned[0], shared.tensor, tag, place);
      }
    }
  }

  std::vector<pg::MeshAxes> axes() const override {
    std::vector<pg::MeshAxes> sets;
    for (const auto& [tensor, outgoing] : outgoing_) {
      for (const pg::Step& step : outgoing.steps) sets.push_back(step.axes);
    }
    return sets;
  }

  std::size_t listed_messages() const { return listed_messages_; }
  double listed_bytes() const { return listed_bytes_; }
  std::vector<std::string> deviations() const {
    if (sent_messages_ == my_messages_ && sent_bytes_ == my_bytes_) return {};
    return {fmt::format("rank {} sent {} messages of {} bytes to other stages, {} of {} are listed", world_.rank(),
                        sent_messages_, sent_bytes_, my_messages_, my_bytes_)};
  }

 private:
  struct Outgoing {
    std::vector<pg::Step> steps;  // partial sums become whole
    std::vector<pg::Message> messages;
  };
  struct Shared {
    int tensor = -1;
    bool is_first = false;
    std::vector<std::vector<pg::Message>> collected, returned;  // [other stage], or one
  };
  struct Pending {
    at::Tensor data;
    comm::Work work;
  };

  void refuse(const pg::Graph& forward) const {
    std::vector<std::string> problems = find_problems(forward, plan_);
    if (problems.empty() && world_.size() != plan_.ranks())
      problems.push_back(fmt::format("the plan is for {} ranks, and there are {}", plan_.ranks(), world_.size()));
    if (problems.empty()) return;
    std::string all;
    for (const std::string& problem : problems) all += "\n  " + problem;
    throw ConfigError(fmt::format("the plan of {} cannot run:{}", forward.name, all), "change what these lines name");
  }

  int tag_of(int number, int micro) const { return number * plan_.micros + micro; }

  pg::Holders holders(int stage, const pg::Sharding& sharding) const {
    const pg::Stage& of = staged_.stages[static_cast<std::size_t>(stage)];
    return {of.first_rank, of.strategy.mesh, sharding};
  }
  double bytes_in(const pg::Message& message, int tensor) const {
    double bytes = plan::graph::bytes_of(both_.tensor(tensor).dtype);
    for (const Index size : message.box.sizes) bytes *= static_cast<double>(size);
    return bytes;
  }
  /// Counts what is listed; gives back what this rank has a part in.
  std::vector<pg::Message> listed(int tensor, const pg::Holders& from, const pg::Holders& to, int times) {
    std::vector<pg::Message> own;
    for (pg::Message& message : messages_of(both_, tensor, from, to)) {
      const double bytes = bytes_in(message, tensor) * times;
      listed_messages_ += static_cast<std::size_t>(times), listed_bytes_ += bytes;
      if (message.from == world_.rank()) my_messages_ += static_cast<std::size_t>(times), my_bytes_ += bytes;
      if (message.from == world_.rank() || message.to == world_.rank()) own.push_back(std::move(message));
    }
    return own;
  }

  void list_messages() {
    const int mine = static_cast<int>(mine_);
    for (const pg::Delivery& delivery : staged_.deliveries) {
      std::vector<pg::Message> own = listed(delivery.tensor, holders(delivery.from_stage, delivery.from),
                                            holders(delivery.to_stage, delivery.to), plan_.micros);
      if (delivery.from_stage == mine) {
        Outgoing& outgoing = outgoing_[delivery.tensor];
        outgoing.steps =
            convert(stage().strategy.mesh, both_.bytes(both_.tensor(delivery.tensor)), delivery.made, delivery.from);
        outgoing.messages.insert(outgoing.messages.end(), own.begin(), own.end());
      } else if (delivery.to_stage == mine) {
        incoming_[delivery.tensor] = std::move(own);
      }
    }
    for (const pg::SharedParameter& shared : staged_.shared) {
      const auto place = std::ranges::find(shared.stages, mine);
      Shared own{.tensor = shared.tensor, .is_first = place == shared.stages.begin()};
      for (std::size_t i = 1; i < shared.stages.size(); ++i) {
        const pg::Holders first = holders(shared.stages[0], shared.shardings[0]),
                          other = holders(shared.stages[i], shared.shardings[i]);
        std::vector<pg::Message> there = listed(shared.tensor, other, first, 1),
                                 back = listed(shared.tensor, first, other, 1);
        if (!own.is_first && shared.stages[i] != mine) continue;
        own.collected.push_back(std::move(there));
        own.returned.push_back(std::move(back));
      }
      if (place != shared.stages.end()) shared_.push_back(std::move(own));
    }
  }

  void deliver(const std::vector<pg::Message>& messages, const at::Tensor& data, const std::vector<Index>& origin,
               int tag) {
    for (const pg::Message& message : messages) {
      if (message.from != world_.rank()) continue;
      at::Tensor part = cut_out(data, origin, message.box).contiguous();
      ++sent_messages_;
      sent_bytes_ += static_cast<double>(part.nbytes());
      comm::Work work = world_.send(device::to_const_buffer(part), message.to, tag);
      pending_.push_back({std::move(part), std::move(work)});
    }
  }

  at::Tensor collect(const std::vector<pg::Message>& messages, int tensor, int tag, const Place& place) {
    at::Tensor block = at::empty(place.sizes, scalar_type(both_.tensor(tensor).dtype));
    for (const pg::Message& message : messages) {
      if (message.to != world_.rank()) continue;
      at::Tensor part = at::empty(message.box.sizes, block.options());
      world_.recv(device::to_buffer(part), message.from, tag).wait();
      cut_out(block, place.origin, message.box).copy_(part);
    }
    return block;
  }

  const pg::StagedPlan plan_;
  comm::Group& world_;
  pg::Graph both_;  // of a micro-batch
  std::vector<int> micro_dims_;
  pg::StagedGraph staged_;
  std::size_t mine_ = 0;  // this rank's stage
  std::unique_ptr<comm::Group> stage_ranks_;
  schedule::Schedule schedule_;
  std::map<int, Outgoing> outgoing_;                  // [tensor]
  std::map<int, std::vector<pg::Message>> incoming_;  // [tensor]
  std::vector<Shared> shared_;
  std::size_t listed_messages_ = 0, my_messages_ = 0, sent_messages_ = 0;
  double listed_bytes_ = 0, my_bytes_ = 0, sent_bytes_ = 0;
  std::vector<Pending> pending_;
  std::unique_ptr<Executor> executor_;
};

PipelineExecutor::PipelineExecutor(const pg::Graph& forward, const pg::StagedPlan& plan, comm::Group& world,
                                   const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(forward, plan, world, options)) {}
PipelineExecutor::~PipelineExecutor() = default;

void PipelineExecutor::load(const Values& start) { impl_->load(start); }
StepResult PipelineExecutor::step(const Values& start) { return impl_->step(start); }
const Executor& PipelineExecutor::executor() const { return impl_->executor(); }
const pg::Stage& PipelineExecutor::stage() const { return impl_->stage(); }
comm::Group& PipelineExecutor::stage_ranks() { return impl_->stage_ranks(); }
std::size_t PipelineExecutor::listed_messages() const { return impl_->listed_messages(); }
double PipelineExecutor::listed_bytes() const { return impl_->listed_bytes(); }
std::vector<std::string> PipelineExecutor::deviations() const { return impl_->deviations(); }

}  // namespace trireme::spmd
