// bench/slow_network_torch.cpp -- what compression gains on a slow network: time to the validation loss that dense data
// parallelism has after so many steps.
//
//   build/release/bench/slow_network_torch [--steps 400] [--mbit 100] [--latency-ms 5] [--only powersgd]
//   build/release/bench/slow_network_torch --device cuda --out curves    # curves on ranks that share a GPU
//
// Four ranks, GPT 4x256 on a Markov chain. A loss does not depend on how long its messages took, so each method is run
// twice: on a fast network for --steps, which gives the curve and the bytes, exactly; and on the emulated one, on the
// CPU, for some steps (--timed-steps at most), which gives the time of a step (schedules of warm-up and freezing are
// shortened to them, so that they are as large a part). The bound is the dense step's time over the longer of computing
// and of the bytes' time; beside it stands what the planner predicts for this computing time. --out DIR writes each
// method as the folder of a run, for `trireme report DIR/*`.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/arguments.h"
#include "bench/gpt_recipe.h"
#include "bench/times.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank.h"
#include "trireme/comm/transports/emulated.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/observe/records.h"
#include "trireme/plan/compress_price.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;

struct Options {
  std::int64_t steps = 400, timed_steps = 50, evaluate_every = 20, rows = 16;
  double mbit = 100, latency_ms = 5;
  int threads = 1;
  std::string only, device = "cpu", out;
};

struct Method {
  std::string name;
  spec::CompressConfig compress = {};
  spec::ReduceKind reduce = spec::ReduceKind::kFp32;
  double within = 0.01;  ///< of the dense loss at the last step
};

/// As for a run of so many steps.
std::vector<Method> methods(std::int64_t steps) {
  using spec::CompressKind;
  const auto part = [&](std::int64_t of, std::int64_t least) { return std::max(least, of * steps / 400); };
  return {{.name = "dense"},
          {.name = "bf16", .reduce = spec::ReduceKind::kBf16},
          {.name = "onebit-sgd", .compress = {.kind = CompressKind::kOnebitSgd}},
          {.name = "qsgd", .compress = {.kind = CompressKind::kQsgd}},
          {.name = "powersgd", .compress = {.kind = CompressKind::kPowerSgd}},
          {.name = "dgc", .compress = {.kind = CompressKind::kDgc, .sparsity = 0.99, .sparsity_warmup = part(40, 4)}},
          {.name = "csc", .compress = {.kind = CompressKind::kCsc}},
          {.name = "onebit-adam", .compress = {.kind = CompressKind::kOnebitAdam, .freeze_after = part(80, 1)}},
          {.name = "zero-one-adam",
           .compress = {.kind = CompressKind::kZeroOneAdam,
                        .variance_scale = static_cast<int>(part(16, 1)),
                        .local_scale = part(100, 1)}},
          {.name = "local-sgd", .compress = {.kind = CompressKind::kLocalSgd}, .within = 0.03},
          {.name = "diloco", .compress = {.kind = CompressKind::kDiloco, .interval = 50}, .within = 0.03},
          {.name = "diloco-int8",
           .compress = {.kind = CompressKind::kDiloco, .interval = 50, .delta_dtype = spec::DeltaDtype::kInt8},
           .within = 0.03},
          {.name = "streaming-diloco",
           .compress = {.kind = CompressKind::kDiloco, .interval = 50, .fragments = 2, .delay = 5, .mixing = 0.5},
           .within = 0.03}};
}

struct Curve {
  double bytes = 0;                                     ///< of a step
  std::vector<std::pair<std::int64_t, double>> losses;  ///< after so many steps, of validation
  std::vector<observe::StepRecord> steps;
  std::optional<parallel::CompressionReport> report;
};
struct Timing {
  double step_s = 0, compute_s = 0;
};

spec::Recipe recipe_of(const Options& options, const Method& method) {
  spec::Recipe recipe = bench::gpt_recipe({}, spec::Precision::kFp32, options.rows);
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.layout.dp = 4;
  recipe.layout.reduce = method.reduce;
  recipe.compress = method.compress;
  recipe.optim.learning_rate = 1e-3;
  recipe.optim.grad_clip_norm = 1;
  return recipe;
}

Curve learn(const Options& options, const Method& method) {
  spec::Recipe recipe = recipe_of(options, method);
  if (options.device == "cuda") recipe.run.device = spec::DeviceKind::kCuda;
  Curve curve;
  comm::run_ranks(4, [&](comm::Rank& rank) {
    at::set_num_threads(options.threads);
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    const auto validation = data::open_samples(recipe, data::Split::kValidation);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    for (std::int64_t step = 1; step <= options.steps; ++step) {
      const train::StepReport report = trainer.step();
      if (rank.rank() == 0) {
        curve.steps.push_back({.step = step,
                               .loss = report.loss,
                               .grad_norm = report.gradient_norm,
                               .lr = recipe.optim.learning_rate,
                               .tokens = step * recipe.batch.global_batch_tokens});
      }
      if (step % options.evaluate_every != 0) continue;
      const double loss = trainer.evaluate(*validation, {.count = 32, .rows = 8}).loss();
      if (rank.rank() == 0) curve.losses.emplace_back(step, loss);
    }
    if (rank.rank() != 0) return;
    const parallel::BucketReducer& reducer = trainer.engine().data_parallel().reducer();
    for (const parallel::Bucket& bucket : trainer.engine().data_parallel().buckets())
      curve.bytes += reducer.sent_bytes(bucket, 1);
    if (reducer.report() == nullptr) return;
    curve.report = *reducer.report();
    curve.bytes = reducer.report()->sent_bytes / static_cast<double>(options.steps);
  });
  return curve;
}

Timing measure(const Options& options, const Method& method, std::int64_t steps) {
  const spec::Recipe recipe = recipe_of(options, method);
  comm::EmulatedNetwork network;
  network.inside = {.latency = std::chrono::nanoseconds(static_cast<std::int64_t>(options.latency_ms * 1e6)),
                    .bytes_per_second = options.mbit * 1e6 / 8};
  network.across = network.inside;
  comm::RanksOptions ranks;
  ranks.wrap = [&](std::unique_ptr<comm::Transport> inner) {
    return comm::make_emulated_transport(std::move(inner), network);
  };
  Timing timing;
  comm::run_ranks(
      4,
      [&](comm::Rank& rank) {
        at::set_num_threads(options.threads);
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
        const auto begin = bench::Clock::now();
        double compute = 0;
        for (std::int64_t step = 0; step < steps; ++step) compute += trainer.step().compute_s;
        if (rank.rank() != 0) return;
        timing.step_s = bench::seconds_since(begin) / static_cast<double>(steps);
        timing.compute_s = compute / static_cast<double>(steps);
      },
      ranks);
  return timing;
}

/// Enough for what a method does from step to step; DiLoCo's interval is 50.
std::int64_t timed_steps(const Options& options, const Method& method) {
  using spec::CompressKind;
  const CompressKind kind = method.compress.kind;
  if (kind == CompressKind::kDiloco) return options.timed_steps;
  const bool changes = kind == CompressKind::kOnebitAdam || kind == CompressKind::kZeroOneAdam;
  return std::min<std::int64_t>(options.timed_steps, kind == CompressKind::kNone ? 6 : changes ? 20 : 16);
}

/// The first step after which the loss is no larger; 0: none.
std::int64_t steps_to(const Curve& curve, double loss) {
  for (const auto& [step, found] : curve.losses) {
    if (found <= loss) return step;
  }
  return 0;
}

/// As if the run had taken as long as the timed steps say.
void write_run(const std::filesystem::path& folder, Curve curve, const Timing& timing, double predicted_gain_s) {
  std::filesystem::create_directories(folder / "ranks");
  std::ofstream metrics(folder / "metrics.jsonl"), events(folder / "events.jsonl"), rank(folder / "ranks/00000.jsonl");
  for (observe::StepRecord& step : curve.steps) {
    step.seconds = timing.step_s;
    step.tokens_per_s =
        static_cast<double>(step.tokens) / static_cast<double>(std::max<std::int64_t>(1, step.step)) / timing.step_s;
    step.breakdown = {.compute = timing.compute_s, .comm = std::max(0.0, timing.step_s - timing.compute_s)};
    metrics << observe::to_json(step).dump() << "\n";
  }
  for (const auto& [step, loss] : curve.losses)
    events << nlohmann::ordered_json{{"event", "eval"}, {"time", 0}, {"step", step}, {"loss", loss}}.dump() << "\n";
  if (!curve.report) return;
  nlohmann::ordered_json figures{
      {"step/exposed_comm_seconds", static_cast<double>(curve.steps.size()) * (timing.step_s - timing.compute_s)},
      {"compress/sent_bytes", curve.report->sent_bytes},
      {"compress/saved_bytes", curve.report->dense_bytes - curve.report->sent_bytes},
      {"compress/rounds", curve.report->rounds},
      {"compress/seconds", curve.report->seconds},
      {"compress/relative_error", curve.report->relative_error},
      {"compress/predicted_gain_seconds", predicted_gain_s}};
  for (const auto& [name, error] : curve.report->errors) figures["compress/error/" + name] = error;
  rank << nlohmann::ordered_json{{"step", curve.steps.back().step}, {"metrics", figures}}.dump() << "\n";
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("Time to a validation loss on a slow emulated network, dense and compressed");
  app.add_option("--steps", options.steps, "of a curve").show_default();
  app.add_option("--timed-steps", options.timed_steps, "on the emulated network, at most").show_default();
  app.add_option("--rows", options.rows, "sequences of a step, of all ranks").show_default();
  app.add_option("--threads", options.threads, "of each rank").show_default();
  app.add_option("--mbit", options.mbit, "bandwidth of each rank, Mbit/s").show_default();
  app.add_option("--latency-ms", options.latency_ms).show_default();
  app.add_option("--only", options.only, "one method beside dense, by its name");
  app.add_option("--device", options.device, "cpu or cuda: where curves are computed; times are the CPU's")
      .show_default();
  app.add_option("--out", options.out, "a folder for the runs and the table");
  app.add_flag("--quick", quick, "a few steps: whether it runs, not how well");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) options.steps = 4, options.evaluate_every = 2, options.timed_steps = 2;
  device::keep_host_memory();
  TextTable table({{"method"},
                   {"MB a step"},
                   {"loss"},
                   {"of dense"},
                   {"step s"},
                   {"gain"},
                   {"bound"},
                   {"of it"},
                   {"predicted"},
                   {"to dense's loss"}});
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Curve dense;
  Timing dense_time;
  for (std::size_t i = 0; i < methods(options.steps).size(); ++i) {
    const Method method = methods(options.steps)[i];
    const bool is_dense = method.name == "dense";
    if (!is_dense && !options.only.empty() && method.name != options.only) continue;
    const Curve curve = learn(options, method);
    const bool whole = method.compress.kind == spec::CompressKind::kNone;
    const std::int64_t timed = timed_steps(options, method);
    const Timing timing = measure(options, methods(timed)[i], timed);
    if (is_dense) dense = curve, dense_time = timing;
    const double bandwidth = options.mbit * 1e6 / 8, wire = curve.bytes / bandwidth;
    const double bound = dense_time.step_s / std::max(timing.compute_s, wire), gain = dense_time.step_s / timing.step_s;
    const double last = curve.losses.back().second, target = dense.losses.back().second;
    double predicted = gain, predicted_gain_s = 0;
    if (!whole) {
      const plan::CompressTask task{.copies = 4, .compute_s = timing.compute_s, .latency_s = options.latency_ms * 1e-3};
      const spec::Recipe recipe = recipe_of(options, method);
      const plan::CompressPrice price = plan::price_compression(recipe, train::model_shape(recipe), task);
      predicted = price.dense_step(task, bandwidth) / price.step(task, bandwidth);
      predicted_gain_s =
          static_cast<double>(options.steps) * (price.dense_step(task, bandwidth) - price.step(task, bandwidth));
    }
    const std::int64_t reached = steps_to(curve, target);
    const double faster = reached > 0 ? static_cast<double>(options.steps) * dense_time.step_s /
                                            (static_cast<double>(reached) * timing.step_s)
                                      : 0;
    table.add({method.name, fmt::format("{:.3f}", curve.bytes / 1e6), fmt::format("{:.4f}", last),
               fmt::format("{:+.2f} %", 100 * (last / target - 1)), fmt::format("{:.3f}", timing.step_s),
               fmt::format("{:.2f}x", gain), fmt::format("{:.2f}x", bound), fmt::format("{:.0f} %", 100 * gain / bound),
               whole ? "-" : fmt::format("{:.2f}x", predicted),
               reached > 0 ? fmt::format("{:.2f}x", faster) : "not reached"});
    if (!options.out.empty())
      write_run(std::filesystem::path(options.out) / method.name, curve, timing, predicted_gain_s);
    results.push_back({{"method", method.name},
                       {"bytes", curve.bytes},
                       {"step_s", timing.step_s},
                       {"compute_s", timing.compute_s},
                       {"gain", gain},
                       {"bound", bound},
                       {"predicted", predicted},
                       {"steps_to_dense", reached},
                       {"faster", faster},
                       {"loss", last},
                       {"within", last <= target * (1 + method.within)}});
    fmt::print("{:<18} {:.3f} MB, loss {:.4f}, step {:.3f} s (compute {:.3f}), gain {:.2f}x of {:.2f}x\n", method.name,
               curve.bytes / 1e6, last, timing.step_s, timing.compute_s, gain, bound);
    std::fflush(stdout);
  }
  fmt::print(
      "GPT 4x256, 4 ranks, curves of {} steps of {} sequences ({}), times of at most {} steps at {} Mbit/s and {} "
      "ms\n{}",
      options.steps, options.rows, options.device, options.timed_steps, options.mbit, options.latency_ms, table.text());
  if (!options.out.empty()) std::ofstream(std::filesystem::path(options.out) / "table.json") << results.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
