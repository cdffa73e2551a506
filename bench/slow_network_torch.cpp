// bench/slow_network_torch.cpp -- what compression gains on a slow network: time to the validation loss that dense data
// parallelism has after so many steps.
//
//   build/release/bench/slow_network_torch [--steps 400] [--mbit 100] [--latency-ms 5] [--only powersgd]
//
// Four ranks of one thread each, GPT 4x256. Each method trains on the emulated network until its validation loss is
// that of the dense run at its last step, or for as many steps; at most it gains what its bytes allow: the bound is the
// dense step's time over the time of computing and of the bytes that the method was counted to send.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "bench/arguments.h"
#include "bench/gpt_recipe.h"
#include "bench/times.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank.h"
#include "trireme/comm/transports/emulated.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;

struct Options {
  std::int64_t steps = 400, evaluate_every = 20, rows = 16;
  double mbit = 100, latency_ms = 5;
  std::string only;
};

struct Method {
  std::string name;
  spec::CompressConfig compress = {};
  spec::ReduceKind reduce = spec::ReduceKind::kFp32;
};

std::vector<Method> methods() {
  using spec::CompressKind;
  return {{.name = "dense"},
          {.name = "bf16", .reduce = spec::ReduceKind::kBf16},
          {.name = "onebit-sgd", .compress = {.kind = CompressKind::kOnebitSgd}},
          {.name = "qsgd", .compress = {.kind = CompressKind::kQsgd}},
          {.name = "powersgd", .compress = {.kind = CompressKind::kPowerSgd}},
          {.name = "dgc", .compress = {.kind = CompressKind::kDgc, .sparsity = 0.99, .sparsity_warmup = 40}},
          {.name = "csc", .compress = {.kind = CompressKind::kCsc}},
          {.name = "onebit-adam", .compress = {.kind = CompressKind::kOnebitAdam, .freeze_after = 80}},
          {.name = "zero-one-adam", .compress = {.kind = CompressKind::kZeroOneAdam, .local_scale = 100}},
          {.name = "local-sgd", .compress = {.kind = CompressKind::kLocalSgd}},
          {.name = "diloco", .compress = {.kind = CompressKind::kDiloco, .interval = 50}},
          {.name = "streaming-diloco",
           .compress = {.kind = CompressKind::kDiloco, .interval = 50, .fragments = 2, .delay = 5, .mixing = 0.5}}};
}

struct Run {
  double step_s = 0, compute_s = 0, bytes = 0;    ///< of a step
  std::vector<std::pair<double, double>> losses;  ///< seconds of training and validation loss
};

Run train_with(const Options& options, const Method& method) {
  spec::Recipe recipe = bench::gpt_recipe({}, spec::Precision::kFp32, options.rows);
  recipe.layout.dp = 4;
  recipe.layout.reduce = method.reduce;
  recipe.compress = method.compress;
  recipe.optim.learning_rate = 1e-3;
  recipe.optim.grad_clip_norm = 1;
  comm::EmulatedNetwork network;
  network.inside = {.latency = std::chrono::nanoseconds(static_cast<std::int64_t>(options.latency_ms * 1e6)),
                    .bytes_per_second = options.mbit * 1e6 / 8};
  network.across = network.inside;
  comm::RanksOptions ranks;
  ranks.wrap = [&](std::unique_ptr<comm::Transport> inner) {
    return comm::make_emulated_transport(std::move(inner), network);
  };
  Run run;
  comm::run_ranks(
      4,
      [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        const auto validation = data::open_samples(recipe, data::Split::kValidation);
        train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
        double seconds = 0, compute = 0;
        for (std::int64_t step = 1; step <= options.steps; ++step) {
          const auto begin = bench::Clock::now();
          compute += trainer.step().compute_s;
          seconds += bench::seconds_since(begin);
          if (step % options.evaluate_every != 0) continue;
          const double loss = trainer.evaluate(*validation, {.count = 16, .rows = 4}).loss();
          if (rank.rank() == 0) run.losses.emplace_back(seconds, loss);
        }
        if (rank.rank() != 0) return;
        run.step_s = seconds / static_cast<double>(options.steps);
        run.compute_s = compute / static_cast<double>(options.steps);
        const parallel::BucketReducer& reducer = trainer.engine().data_parallel().reducer();
        for (const parallel::Bucket& bucket : trainer.engine().data_parallel().buckets())
          run.bytes += reducer.sent_bytes(bucket, 1);
        if (reducer.report() != nullptr) run.bytes = reducer.report()->sent_bytes / static_cast<double>(options.steps);
      },
      ranks);
  return run;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("Time to a validation loss on a slow emulated network, dense and compressed");
  app.add_option("--steps", options.steps).show_default();
  app.add_option("--rows", options.rows, "sequences of a step, of all ranks").show_default();
  app.add_option("--mbit", options.mbit, "bandwidth of each rank, Mbit/s").show_default();
  app.add_option("--latency-ms", options.latency_ms).show_default();
  app.add_option("--only", options.only, "one method beside dense, by its name");
  app.add_flag("--quick", quick, "a few steps: whether it runs, not how well");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) options.steps = 4, options.evaluate_every = 2;
  device::keep_host_memory();
  TextTable table(
      {{"method"}, {"MB a step"}, {"step s"}, {"gain"}, {"bound"}, {"of it"}, {"last loss"}, {"to dense's loss"}});
  Run dense;
  for (const Method& method : methods()) {
    const bool is_dense = method.name == "dense";
    if (!is_dense && !options.only.empty() && method.name != options.only) continue;
    const Run run = train_with(options, method);
    if (is_dense) dense = run;
    const double wire = run.bytes / (options.mbit * 1e6 / 8);
    const double bound = dense.step_s / std::max(run.compute_s, wire), gain = dense.step_s / run.step_s;
    std::string reached = "not reached";
    for (const auto& [seconds, loss] : run.losses) {
      if (loss > dense.losses.back().second) continue;
      reached = fmt::format("{:.2f}x", dense.losses.back().first / seconds);
      break;
    }
    table.add({method.name, fmt::format("{:.3f}", run.bytes / 1e6), fmt::format("{:.3f}", run.step_s),
               fmt::format("{:.2f}x", gain), fmt::format("{:.2f}x", bound), fmt::format("{:.0f} %", 100 * gain / bound),
               fmt::format("{:.4f}", run.losses.back().second), reached});
  }
  fmt::print("GPT 4x256, 4 ranks, {} steps of {} sequences, {} Mbit/s, {} ms\n{}", options.steps, options.rows,
             options.mbit, options.latency_ms, table.text());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
