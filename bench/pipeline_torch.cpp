// bench/pipeline_torch.cpp -- what walking a schedule costs beside its passes, and how near a step comes to its replay.
//
//   build/release/bench/pipeline_torch                          the cost of an instruction; every synchronous kind, pp
//   = 2 build/release/bench/pipeline_torch --layers 8 --width 256 --sequence 128 --micros 16 --steps 20
//
// Ranks are threads, one core each. The replay is given the median time of each instruction of each chunk, measured in
// a run of its own before; what it leaves out (waking up, copying messages) is what the ratio shows.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <mutex>

#include "trireme/comm/rank.h"
#include "trireme/device/host_memory.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace {

using namespace trireme;
using pipeline::Executor;
using pipeline::Micro;
using schedule::Op;

struct Options {
  std::int64_t layers = 8, width = 256, sequence = 128;
  int micros = 16, steps = 15;
};

double median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  std::ranges::nth_element(numbers, numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2));
  return numbers[numbers.size() / 2];
}

schedule::Schedule table_of(std::string_view kind, const schedule::Shape& shape) {
  return schedule::complete(schedule::build(kind, shape));
}

/// Passes on what it is given: all that remains is the executor's own work.
class Nothing final : public nn::Layer {
  nn::Tensors forward(nn::Tensors inputs, nn::Context&, nn::Tape*) override { return inputs; }
  nn::Tensors backward(nn::Tensors gradients, nn::Context&, nn::Tape&) override {
    if (!gradients[0].defined()) gradients[0] = gradient_;
    return gradients;
  }
  at::Tensor gradient_ = at::ones({1});
};

/// Microseconds for each instruction of a table over layers that do nothing.
void measure_overhead() {
  fmt::print("walking a table of passes that do nothing\n{:>24} {:>13} {:>15}\n", "", "instructions", "us each");
  for (const int ranks : {1, 2}) {
    const auto table = table_of("interleaved", {.ranks = ranks, .micros = 64, .chunks_per_rank = 4});
    std::vector<double> each;
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      at::set_num_threads(1);
      pipeline::Stage stage;
      stage.model = std::make_unique<models::Model>();
      for (const int number : schedule::chunks_of(table, rank.rank())) {
        stage.model->layers.push_back({"nothing", std::make_unique<Nothing>()});
        stage.chunks.push_back({.number = number, .layers = {stage.model->layers.back().layer.get()}});
      }
      stage.crossings = [](int, const Micro&) { return std::vector<pipeline::Crossing>{{{1}, at::kFloat}}; };
      Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
      const auto instructions = static_cast<double>(table.ranks[static_cast<std::size_t>(rank.rank())].size());
      const at::Tensor input = at::ones({1});
      for (int i = 0; i < 50; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        executor.run({.micro = [&](int) { return Micro{.inputs = {input}}; }, .update = [](int) {}});
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        if (rank.rank() == 0) each.push_back(took.count() / instructions);
      }
    });
    fmt::print("{:>24} {:>13} {:>15.2f}\n", ranks == 1 ? "one rank, no messages" : "two ranks, messages",
               table.ranks[0].size(), median(each));
  }
}

/// Medians of a rank's instructions by what they do and through which chunk.
using Key = std::tuple<int, Op, int>;  // rank, op, chunk

struct Measured {
  std::vector<double> steps;  // seconds
  std::map<Key, std::vector<double>> times;
};

Measured run_kind(const Options& options, const schedule::Schedule& table, bool keep_spans) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
  shape.layers = options.layers;
  shape.width = options.width;
  shape.heads = std::max<std::int64_t>(1, options.width / 64);
  shape.kv_heads = shape.heads;
  shape.head_size = options.width / shape.heads;
  shape.inner = 4 * options.width;
  shape.positions = options.sequence;
  shape.vocabulary = 512;
  Measured measured;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(table.ranks.size()), [&](comm::Rank& rank) {
    at::set_num_threads(1);
    const pipeline::Split split = pipeline::split_by_count(pipeline::chain_names(shape), table.chunks());
    pipeline::Stage stage =
        pipeline::build_stage({.shape = shape, .table = table, .split = split, .rank = rank.rank()});
    nn::initialise(stage.model->params, nn::Precision::kFp32, 1);
    spec::OptimConfig optim;
    optim.kind = spec::OptimizerKind::kAdamw;
    const auto optimizer = optim::make_optimizer(optim, stage.model->params);
    Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
    const at::Tensor ids = at::randint(0, shape.vocabulary, {1, options.sequence}, at::kLong);
    for (int step = 0; step < options.steps + 2; ++step) {
      rank.world().barrier().wait();
      const auto begin = std::chrono::steady_clock::now();
      const auto report = executor.run(
          {.micro =
               [&](int) {
                 Micro micro{.inputs = {ids}};
                 micro.context.training = true;
                 micro.context.sequence = nn::plain_sequence(1, options.sequence);
                 micro.context.samples = at::full({1}, 0, at::kLong);
                 micro.context.targets = ids;
                 micro.context.gradient_scale = 1.0 / static_cast<double>(options.sequence * options.micros);
                 return micro;
               },
           .update = [&](int) { optim::update(*optimizer, {.learning_rate = 1e-4, .across = &executor.across()}); },
           .keep_spans = keep_spans});
      rank.world().barrier().wait();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (step < 2) continue;  // memory and caches warm up
      const std::lock_guard lock(mutex);
      if (rank.rank() == 0) measured.steps.push_back(took.count());
      for (const pipeline::Ran& ran : report.spans) {
        if (schedule::is_transfer(ran.instruction.op)) continue;
        measured.times[{rank.rank(), ran.instruction.op, ran.instruction.chunk}].push_back(
            std::chrono::duration<double>(ran.end - ran.start).count());
      }
    }
  });
  return measured;
}

void measure_against_replay(const Options& options) {
  fmt::print("\nGPT {}x{}, {} tokens a micro, {} micros, fp32, two ranks of one thread: a step in ms\n", options.layers,
             options.width, options.sequence, options.micros);
  fmt::print("{:>14} {:>9} {:>9} {:>16} {:>14}\n", "kind", "measured", "replayed", "measured/replay", "bubble replay");
  for (const schedule::Kind& kind : schedule::kinds()) {
    if (kind.asynchronous) continue;
    const schedule::Shape shape{.ranks = 2,
                                .micros = options.micros,
                                .chunks_per_rank = std::max(kind.default_chunks, kind.name == "interleaved" ? 2 : 1)};
    if (!kind.refuses(shape).empty()) continue;
    const auto table = table_of(kind.name, shape);
    std::map<Key, double> times;
    for (auto& [key, numbers] : run_kind(options, table, /*keep_spans=*/true).times) {
      // An update waits for the norm of the other rank: its own work is the shortest one.
      const bool waits = std::get<Op>(key) == Op::kOptimizerStep;
      times[key] = waits ? *std::ranges::min_element(numbers) : median(numbers);
    }
    const double measured = median(run_kind(options, table, /*keep_spans=*/false).steps);
    const schedule::Timing replayed =
        schedule::replay(table, {.time_of = [&](int rank, const schedule::Instruction& it) {
                           const auto found = times.find({rank, it.op, it.chunk});
                           return found == times.end() ? 0.0 : found->second;
                         }});
    fmt::print("{:>14} {:>9.1f} {:>9.1f} {:>16.3f} {:>13.1f}%\n", kind.name, 1e3 * measured, 1e3 * replayed.makespan,
               measured / replayed.makespan, 100 * replayed.bubble());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Walks pipeline schedules on real layers, and sets their steps beside the replay.");
  app.add_option("--layers", options.layers, "blocks of the model");
  app.add_option("--width", options.width, "its width, a multiple of 64");
  app.add_option("--sequence", options.sequence, "tokens of a micro");
  app.add_option("--micros", options.micros, "micros of a step");
  app.add_option("--steps", options.steps, "steps that are measured");
  CLI11_PARSE(app, argc, argv);
  device::keep_host_memory();
  measure_overhead();
  measure_against_replay(options);
  return 0;
}
