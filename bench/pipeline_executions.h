// bench/pipeline_executions.h -- executions of a table on ranks, mostly threads: real layers on a core each, or layers
// that sleep on an emulated network.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/comm/transports/emulated.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/timeline.h"

namespace trireme::bench {

/// Steps of one table: seconds of each, from a barrier to a barrier; and, where asked for, every instruction of them.
struct Executions {
  std::vector<double> steps;
  std::vector<schedule::Timeline> timelines;
};

/// What one rank needs for it: made on the rank, kept until the end.
struct RankSetup {
  pipeline::Stage stage;
  std::unique_ptr<optim::Optimizer> optimizer;
  pipeline::MicroSource micro;
  std::function<void(pipeline::Executor&)> update;
};

/// On one of the ranks of the table; what was measured is on rank 0.
inline Executions execute_rank(comm::Rank& rank, const schedule::Schedule& table, int steps, bool keep,
                               const std::function<RankSetup(comm::Rank&)>& make) {
  constexpr int kWarm = 2;  // memory and caches
  Executions executions;
  at::set_num_threads(1);
  RankSetup setup = make(rank);
  pipeline::Executor executor({.table = table, .stage = setup.stage, .pipeline = rank.world()});
  pipeline::TimelineRecorder record(executor.table(), static_cast<std::size_t>(steps));
  for (int step = 0; step < steps + kWarm; ++step) {
    rank.world().barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    const auto report =
        executor.run({.micro = setup.micro, .update = [&](int) { setup.update(executor); }, .keep_spans = keep});
    rank.world().barrier().wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (step < kWarm) continue;
    if (rank.rank() == 0) executions.steps.push_back(took.count());
    if (keep) record.add(report);
  }
  auto timelines = record.gather(rank.world());
  if (rank.rank() == 0) executions.timelines = std::move(timelines);
  return executions;
}

/// On threads of this process.
inline Executions execute(const schedule::Schedule& table, int steps, bool keep, const comm::RanksOptions& options,
                          const std::function<RankSetup(comm::Rank&)>& make) {
  Executions executions;
  comm::run_ranks(
      static_cast<int>(table.ranks.size()),
      [&](comm::Rank& rank) {
        Executions mine = execute_rank(rank, table, steps, keep, make);
        if (rank.rank() == 0) executions = std::move(mine);
      },
      options);
  return executions;
}

struct GptSize {
  std::int64_t num_layers = 8, hidden_size = 256, seq_len = 128, vocab_size = 512;
  int micros = 16;
  nn::Precision precision = nn::Precision::kFp32;
};

/// A GPT with AdamW, one row of tokens a micro.
inline RankSetup make_gpt(const GptSize& size, const schedule::Schedule& table, comm::Rank& rank) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
  shape.num_layers = size.num_layers;
  shape.hidden_size = size.hidden_size;
  shape.num_heads = shape.num_kv_heads = std::max<std::int64_t>(1, size.hidden_size / 64);
  shape.head_dim = size.hidden_size / shape.num_heads;
  shape.ffn_size = 4 * size.hidden_size;
  shape.max_seq_len = size.seq_len;
  shape.vocab_size = size.vocab_size;
  shape.tied = false;
  const pipeline::Split split = pipeline::split_by_count(pipeline::chain_names(shape), table.chunks());
  RankSetup setup{
      .stage = pipeline::build_stage(
          {.shape = shape, .table = table, .split = split, .precision = size.precision, .rank = rank.rank()})};
  nn::initialise(setup.stage.model->params, size.precision, 1);
  spec::OptimConfig optim;
  optim.kind = spec::OptimizerKind::kAdamw;
  setup.optimizer = optim::make_optimizer(optim, setup.stage.model->params);
  const at::Tensor ids = at::randint(0, shape.vocab_size, {1, size.seq_len}, at::kLong);
  setup.micro = [ids, size](int) {
    pipeline::Micro micro{.inputs = {ids}};
    micro.context.training = true;
    micro.context.sequence = nn::plain_sequence(1, size.seq_len);
    micro.context.samples = at::full({1}, 0, at::kLong);
    micro.context.targets = ids;
    micro.context.gradient_scale = 1.0 / static_cast<double>(size.seq_len * size.micros);
    return micro;
  };
  setup.update = [optimizer = setup.optimizer.get()](pipeline::Executor& executor) {
    optim::update(*optimizer, {.learning_rate = 1e-4, .across = &executor.across()});
  };
  return setup;
}

struct SleepTimes {
  std::chrono::microseconds forward{4000}, backward_input{4000}, backward_weight{4000}, update{2000};
  std::int64_t floats = 65536;  // of a message
};

/// Takes time without taking a core.
class Sleeping final : public nn::Layer {
 public:
  Sleeping(const SleepTimes& times, double share) : times_(times), share_(share) {}
  nn::Tensors forward(nn::Tensors inputs, nn::Context&, nn::Tape*) override {
    std::this_thread::sleep_for(times_.forward * share_);
    return inputs;
  }
  nn::Tensors backward(nn::Tensors gradients, nn::Context&, nn::Tape& tape) override {
    std::this_thread::sleep_for(times_.backward_input * share_);
    tape.weight_gradient([this] { std::this_thread::sleep_for(times_.backward_weight * share_); });
    if (!gradients[0].defined()) gradients[0] = at::zeros({times_.floats});
    return gradients;
  }

 private:
  SleepTimes times_;
  double share_;
};

inline RankSetup make_sleeper(const SleepTimes& times, const schedule::Schedule& table, comm::Rank& rank) {
  RankSetup setup;
  setup.stage.model = std::make_unique<models::Model>();
  const std::vector<int> held = schedule::chunks_of(table, rank.rank());
  const double share = static_cast<double>(table.ranks.size()) / table.chunks();  // of a rank's work in a chunk
  for (const int number : held) {
    setup.stage.model->layers.push_back({"sleeping", std::make_unique<Sleeping>(times, share)});
    setup.stage.chunks.push_back({.number = number, .layers = {setup.stage.model->layers.back().layer.get()}});
  }
  setup.stage.boundaries = [floats = times.floats](int, const pipeline::Micro&) {
    return std::vector<pipeline::BoundaryTensor>{{{floats}, at::kFloat}};
  };
  setup.micro = [floats = times.floats](int) { return pipeline::Micro{.inputs = {at::zeros({floats})}}; };
  setup.update = [times](pipeline::Executor& executor) {
    executor.reduction().pipeline().barrier().wait();  // as the gradient norm makes them meet
    std::this_thread::sleep_for(times.update);
  };
  return setup;
}

}  // namespace trireme::bench
