// bench/slow_network_torch.cpp -- what compression gains on a slow network: time to the validation loss that dense data
// parallelism has after so many steps.
//
//   build/release/bench/slow_network_torch [--steps 400] [--mbit 100] [--latency-ms 5] [--only powersgd,dgc]
//   build/release/bench/slow_network_torch --device cuda --out curves    # curves on ranks that share a GPU
//   build/release/bench/slow_network_torch --curves curves/table.json    # times of this machine beside those curves
//   build/release/bench/slow_network_torch --times-only --mbit 10000     # where it should not pay
//
// Four ranks, GPT 4x256 (--num-layers, --hidden-size) on a Markov chain. A loss does not depend on how long its
// messages took, so each method is run twice: on a fast network for --steps (and half as many again, until it has
// dense's last loss), which gives the curve and the bytes of each step, exactly; and on the emulated one, on the CPU,
// for some steps
// (--timed-steps at most), which gives the time of a step (schedules of warm-up and freezing are shortened to them, so
// that they are as large a part). The bound is dense's time over the sum of bounds of steps: of a dense one what dense
// takes; of one in which weights come together computing and the bytes' time; of any other the longer of the two.
// Computing is that of the same run, without the method's own kernels: what else a machine does meanwhile must not show
// as a loss of the method. The bound knows no latency; "simulated" does: messages that wait for each other, in the
// method and in what every step has (the count of targets, the sum of losses), and buckets that wait for backward, on
// this network, with kernels that cost nothing. Beside them stands what the planner predicts, kernels included. --out
// DIR writes each method as the folder of a run, for `trireme report DIR/*`.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "bench/arguments.h"
#include "bench/gpt_recipe.h"
#include "bench/times.h"
#include "trireme/base/error.h"
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
  std::int64_t steps = 400, timed_steps = 50, evaluate_every = 10, rows = 16;
  double mbit = 100, latency_ms = 5, bucket_mb = 4;
  bench::GptSize size;
  int threads = 1;
  std::string only, device = "cpu", out, curves;
  bool times_only = false;

  bool wants(const std::string& name) const {
    return only.empty() || name == "dense" || ("," + only + ",").find("," + name + ",") != std::string::npos;
  }
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
  return {
      {.name = "dense"},
      {.name = "bf16", .reduce = spec::ReduceKind::kBf16},
      {.name = "onebit-sgd", .compress = {.kind = CompressKind::kOnebitSgd}},
      {.name = "qsgd", .compress = {.kind = CompressKind::kQsgd}},
      {.name = "powersgd", .compress = {.kind = CompressKind::kPowerSgd}},
      {.name = "powersgd-16", .compress = {.kind = CompressKind::kPowerSgd, .rank = 16}},
      {.name = "dgc", .compress = {.kind = CompressKind::kDgc, .sparsity = 0.99, .sparsity_warmup = part(40, 4)}},
      {.name = "dgc-95", .compress = {.kind = CompressKind::kDgc, .sparsity = 0.95, .sparsity_warmup = part(40, 4)}},
      {.name = "csc", .compress = {.kind = CompressKind::kCsc}},
      // Frozen after a single gradient the variance is next to nothing somewhere, and the run diverges.
      {.name = "onebit-adam", .compress = {.kind = CompressKind::kOnebitAdam, .freeze_after = part(80, 4)}},
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
  std::vector<double> bytes;                            ///< of each step
  std::vector<std::pair<std::int64_t, double>> losses;  ///< after so many steps, of validation
  std::vector<observe::StepRecord> steps;
  std::optional<parallel::CompressionReport> report;

  double loss_at(std::int64_t step) const {
    for (const auto& [at, loss] : losses) {
      if (at == step) return loss;
    }
    return std::numeric_limits<double>::quiet_NaN();
  }
  /// After how many steps the loss is no larger, between two evaluations by a straight line; 0: never.
  double steps_to(double loss) const {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const auto& [step, found] = losses[i];
      if (found > loss) continue;
      if (i == 0) return static_cast<double>(step);
      const auto& [before, larger] = losses[i - 1];
      return static_cast<double>(before) + static_cast<double>(step - before) * (larger - loss) / (larger - found);
    }
    return 0;
  }
};
struct Timing {
  double step_s = 0, compute_s = 0;
  double data_s = 0, comm_s = 0;   ///< waiting for the batch, and for other ranks
  double slowest_s = 0;            ///< the mean over steps of the rank that computed longest
  double kernel_s = 0;             ///< of compression, on rank 0
  std::vector<double> bytes = {};  ///< of each step, by rank 0
};

/// What this rank has sent in its reductions so far.
double sent_so_far(train::Trainer& trainer, std::int64_t steps) {
  const parallel::BucketReducer& reducer = trainer.engine().data_parallel().reducer();
  if (reducer.report() != nullptr) return reducer.report()->sent_bytes;
  double bytes = 0;
  for (const parallel::Bucket& bucket : trainer.engine().data_parallel().buckets())
    bytes += reducer.sent_bytes(bucket, 1);
  return bytes * static_cast<double>(steps);
}

spec::Recipe recipe_of(const Options& options, const Method& method) {
  spec::Recipe recipe = bench::gpt_recipe(options.size, spec::Precision::kFp32, options.rows);
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.layout.dp = 4;
  recipe.layout.reduce = method.reduce;
  recipe.layout.bucket_mb = options.bucket_mb;  // small enough that dense sums begin in the midst of backward
  recipe.compress = method.compress;
  recipe.optim.learning_rate = 1e-3;
  recipe.optim.grad_clip_norm = 1;
  return recipe;
}

/// From the table of another run; its bytes are those of the timed steps.
Curve read_curve(const std::string& file, const std::string& method) {
  Curve curve;
  std::ifstream in(file);
  if (!in) throw ConfigError(fmt::format("{} cannot be read", file), "name the table.json of a run with --out");
  for (const auto& row : nlohmann::json::parse(in)) {
    if (row.at("method") != method || !row.contains("losses")) continue;
    curve.losses = row.at("losses").get<std::vector<std::pair<std::int64_t, double>>>();
  }
  return curve;
}

/// `target`: past the last step until the loss is no larger.
Curve learn(const Options& options, const Method& method, std::optional<double> target) {
  spec::Recipe recipe = recipe_of(options, method);
  if (options.device == "cuda") recipe.run.device = spec::DeviceKind::kCuda;
  Curve curve;
  comm::run_ranks(4, [&](comm::Rank& rank) {
    at::set_num_threads(options.threads);
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    const auto validation = data::open_samples(recipe, data::Split::kValidation);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    const parallel::BucketReducer& reducer = trainer.engine().data_parallel().reducer();
    double sent = 0;
    double loss = std::numeric_limits<double>::infinity();
    for (std::int64_t step = 1; step <= options.steps + options.steps / 2; ++step) {
      if (step > options.steps && (!target || loss <= *target)) break;  // the same on all ranks
      const train::StepReport report = trainer.step();
      const double all_bytes = sent_so_far(trainer, step);
      if (rank.rank() == 0 && step <= options.steps) {
        curve.bytes.push_back(all_bytes - sent);
        curve.steps.push_back({.step = step,
                               .loss = report.loss,
                               .grad_norm = report.gradient_norm,
                               .lr = recipe.optim.learning_rate,
                               .tokens = step * recipe.batch.global_batch_tokens});
        if (step == options.steps && reducer.report() != nullptr) curve.report = *reducer.report();
      }
      sent = all_bytes;
      if (step % options.evaluate_every != 0) continue;
      loss = trainer.evaluate(*validation, {.count = 64, .rows = 8}).loss();
      if (rank.rank() == 0) curve.losses.emplace_back(step, loss);
    }
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
  // As recipes with [emulated] do: collectives are chosen for this network.
  ranks.comm.costs.of("emulated").links = comm::links_of(network, 1e-10);
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
        std::vector<double> computed, bytes;
        double data = 0, comm = 0, sent = 0;
        for (std::int64_t step = 0; step < steps; ++step) {
          const train::StepReport report = trainer.step();
          computed.push_back(report.compute_s);
          data += report.data_s, comm += report.comm_s;
          const double all_bytes = sent_so_far(trainer, step + 1);
          bytes.push_back(all_bytes - std::exchange(sent, all_bytes));
        }
        const double seconds = bench::seconds_since(begin),
                     mine = std::accumulate(computed.begin(), computed.end(), 0.0);
        rank.world()
            .all_reduce(comm::Buffer{computed.data(), computed.size(), comm::DType::kF64}, comm::Reduce::kMax)
            .wait();
        if (rank.rank() != 0) return;
        const auto count = static_cast<double>(steps);
        const auto* compressed = trainer.engine().data_parallel().reducer().report();
        timing = {.step_s = seconds / count,
                  .compute_s = mine / count,
                  .data_s = data / count,
                  .comm_s = comm / count,
                  .slowest_s = std::accumulate(computed.begin(), computed.end(), 0.0) / count,
                  .kernel_s = compressed != nullptr ? compressed->kernel_seconds / count : 0,
                  .bytes = std::move(bytes)};
      },
      ranks);
  return timing;
}

/// Enough for what a method does from step to step; DiLoCo's interval is 50.
std::int64_t timed_steps(const Options& options, const Method& method) {
  using spec::CompressKind;
  const CompressKind kind = method.compress.kind;
  if (kind == CompressKind::kDiloco) return options.timed_steps;
  if (options.mbit >= 1000) return options.timed_steps;  // small differences, in short steps
  const bool changes = kind == CompressKind::kOnebitAdam || kind == CompressKind::kZeroOneAdam;
  return std::min<std::int64_t>(options.timed_steps, kind == CompressKind::kNone ? 8 : changes ? 40 : 20);
}

/// Seconds of a step, the mean over steps of these bytes, dense ones as they were measured.
struct Bounds {
  double least = 0;      ///< that no implementation of the method could undercut
  double simulated = 0;  ///< with the network's latency, and buckets that wait for backward
};
Bounds bounds_of(const Options& options, const Method& method, const Timing& own, const Timing& dense,
                 const plan::CompressPrice& price, std::span<const double> bytes) {
  constexpr double kSum = 2;  // messages of a small sum over four ranks: of targets before, of losses beside gradients
  const double bandwidth = options.mbit * 1e6 / 8, latency = options.latency_ms * 1e-3, compute = own.slowest_s;
  const double dense_bytes = std::accumulate(dense.bytes.begin(), dense.bytes.end(), 0.0) /
                             static_cast<double>(std::max<std::size_t>(1, dense.bytes.size()));
  const bool whole = method.compress.kind == spec::CompressKind::kNone,
             meets = spec::has_local_updates(method.compress.kind), late = meets && method.compress.delay > 0;
  const double backward = 2.0 / 3 * compute, common = kSum * latency,
               buckets = whole ? std::ceil(dense_bytes / 1.5e6 / options.bucket_mb) : price.buckets;
  Bounds sum;
  double mean = 0;
  for (const double sent : bytes) mean += sent / static_cast<double>(bytes.size());
  for (const double sent : bytes) {
    const double wire = (late ? mean : sent) / bandwidth;
    if (!whole && !meets && sent > 0.99 * dense_bytes) {
      sum.least += dense.step_s, sum.simulated += dense.step_s;
      continue;
    }
    const double exposed = std::max(backward / buckets + wire, backward + wire / buckets) - backward;
    const double messages = std::max(whole ? 6 : price.messages, kSum);
    sum.least += meets && !late ? compute + wire : std::max(compute, wire);
    sum.simulated +=
        common + (late ? std::max(compute + kSum * latency, wire) : compute + exposed + messages * latency);
  }
  return {sum.least / static_cast<double>(bytes.size()), sum.simulated / static_cast<double>(bytes.size())};
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

std::string planner_says(const plan::CompressPrice& price, const plan::CompressTask& task, double bandwidth) {
  const bool pays = price.step(task, bandwidth) < price.dense_step(task, bandwidth);
  if (!price.pays_below) return "never pays";
  return fmt::format("{}, pays below {:.3g} Gbit/s", pays ? "pays" : "does not pay", *price.pays_below * 8e-9);
}

struct Row {
  Method method;
  Curve curve;
  Timing timing;
  plan::CompressPrice price;
  plan::CompressTask task;
};

/// One line of the table, and the same as JSON.
nlohmann::ordered_json told(const Options& options, const Row& row, const Row& dense, TextTable& table) {
  const bool whole = row.method.compress.kind == spec::CompressKind::kNone, learned = !row.curve.losses.empty();
  const double bandwidth = options.mbit * 1e6 / 8, gain = dense.timing.step_s / row.timing.step_s;
  nlohmann::ordered_json result{{"method", row.method.name},
                                {"step_s", row.timing.step_s},
                                {"compute_s", row.timing.compute_s},
                                {"slowest_s", row.timing.slowest_s},
                                {"data_s", row.timing.data_s},
                                {"comm_s", row.timing.comm_s},
                                {"gain", gain}};
  std::vector<std::string> cells{row.method.name, fmt::format("{:.3f}", row.timing.step_s),
                                 fmt::format("{:.2f}x", gain)};
  double predicted = gain;
  if (!whole) {
    predicted = row.price.dense_step(row.task, bandwidth) / row.price.step(row.task, bandwidth);
    result["predicted"] = predicted;
    result["planner"] = planner_says(row.price, row.task, bandwidth);
  }
  const std::vector<double>& bytes = row.curve.bytes.empty() ? row.timing.bytes : row.curve.bytes;
  const Bounds bounds = bounds_of(options, row.method, row.timing, dense.timing, row.price, bytes);
  const double bound = dense.timing.step_s / bounds.least, simulated = dense.timing.step_s / bounds.simulated;
  const double mean_bytes = std::accumulate(bytes.begin(), bytes.end(), 0.0) / static_cast<double>(bytes.size());
  for (std::string& cell : std::vector<std::string>{
           whole ? "-" : fmt::format("{:.2f}x", predicted), whole ? "-" : planner_says(row.price, row.task, bandwidth),
           fmt::format("{:.3f}", mean_bytes / 1e6), fmt::format("{:.3f}", row.timing.slowest_s),
           fmt::format("{:.3f}", row.timing.kernel_s), fmt::format("{:.2f}x", bound),
           fmt::format("{:.0f} %", 100 * gain / bound), fmt::format("{:.2f}x", simulated),
           fmt::format("{:.0f} %", 100 * gain / simulated)})
    cells.push_back(cell);
  result.update({{"kernel_s", row.timing.kernel_s},
                 {"bytes", mean_bytes},
                 {"bound", bound},
                 {"step_of_bound", gain / bound},
                 {"simulated", simulated},
                 {"step_of_simulated", gain / simulated}});
  if (learned) {
    const double last = row.curve.loss_at(options.steps), target = dense.curve.loss_at(options.steps);
    const double reached = row.curve.steps_to(target);
    const double faster = reached > 0 ? gain * static_cast<double>(options.steps) / reached : 0;
    for (std::string& cell : std::vector<std::string>{
             fmt::format("{:.4f}", last), fmt::format("{:+.2f} %", 100 * (last / target - 1)),
             reached > 0 ? fmt::format("{:.0f}", reached) : "none",
             reached > 0 ? fmt::format("{:.2f}x", faster) : "not reached",
             fmt::format("{:.0f} %", 100 * faster / bound), fmt::format("{:.0f} %", 100 * faster / simulated)})
      cells.push_back(cell);
    result.update({{"loss", last},
                   {"of_dense", last / target - 1},
                   {"within", last <= target * (1 + row.method.within)},
                   {"steps_to_dense", reached},
                   {"faster", faster},
                   {"of_bound", faster / bound},
                   {"of_simulated", faster / simulated},
                   {"losses", row.curve.losses}});
  } else if (!options.times_only) {
    cells.insert(cells.end(), 6, "-");
  }
  table.add(cells);
  return result;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("Time to a validation loss on a slow emulated network, dense and compressed");
  app.add_option("--steps", options.steps, "of a curve").show_default();
  app.add_option("--timed-steps", options.timed_steps, "on the emulated network, at most").show_default();
  app.add_option("--num-layers", options.size.num_layers).show_default();
  app.add_option("--hidden-size", options.size.hidden_size).show_default();
  app.add_option("--seq-len", options.size.seq_len, "tokens").show_default();
  app.add_option("--rows", options.rows, "sequences of a step, of all ranks").show_default();
  app.add_option("--threads", options.threads, "of each rank").show_default();
  app.add_option("--mbit", options.mbit, "bandwidth of each rank, Mbit/s").show_default();
  app.add_option("--latency-ms", options.latency_ms).show_default();
  app.add_option("--bucket-mb", options.bucket_mb, "of dense sums").show_default();
  app.add_option("--only", options.only, "methods beside dense, by name: powersgd,dgc");
  app.add_flag("--times-only", options.times_only, "no curves");
  app.add_option("--curves", options.curves, "the table.json of a run with --out, in place of computing them");
  app.add_option("--device", options.device, "cpu or cuda: where curves are computed; times are the CPU's")
      .show_default();
  app.add_option("--out", options.out, "a folder for the runs and the table");
  app.add_flag("--quick", quick, "a few steps: whether it runs, not how well");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) options.steps = 4, options.evaluate_every = 2, options.timed_steps = 2;
  device::keep_host_memory();
  std::vector<TextTable::Column> columns{{"method"},  {"step s"},     {"gain"},      {"predicted"},
                                         {"planner"}, {"MB a step"},  {"compute"},   {"kernels"},
                                         {"bound"},   {"step of it"}, {"simulated"}, {"step of it"}};
  if (!options.times_only) {
    for (const char* name : {"loss", "of dense", "steps to dense's loss", "faster", "of bound", "of simulated"})
      columns.push_back({name});
  }
  TextTable table(columns);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  Row dense;
  for (std::size_t i = 0; i < methods(options.steps).size(); ++i) {
    Row row{.method = methods(options.steps)[i]};
    const bool is_dense = row.method.name == "dense";
    if (!options.wants(row.method.name)) continue;
    if (!options.curves.empty()) {
      row.curve = read_curve(options.curves, row.method.name);
    } else if (!options.times_only) {
      row.curve = learn(options, row.method,
                        is_dense ? std::nullopt : std::optional<double>(dense.curve.loss_at(options.steps)));
    }
    const std::int64_t timed = timed_steps(options, row.method);
    row.timing = measure(options, methods(timed)[i], timed);
    if (is_dense) dense = row;
    row.task = {.copies = 4, .compute_s = row.timing.slowest_s, .latency_s = options.latency_ms * 1e-3};
    double predicted_gain_s = 0;
    if (row.method.compress.kind != spec::CompressKind::kNone) {
      const spec::Recipe recipe = recipe_of(options, row.method);
      row.price = plan::price_compression(recipe, train::model_shape(recipe), row.task);
      const double bandwidth = options.mbit * 1e6 / 8;
      predicted_gain_s = static_cast<double>(options.steps) *
                         (row.price.dense_step(row.task, bandwidth) - row.price.step(row.task, bandwidth));
    }
    if (!options.out.empty() && !row.curve.steps.empty())
      write_run(std::filesystem::path(options.out) / row.method.name, row.curve, row.timing, predicted_gain_s);
    results.push_back(told(options, row, dense, table));
    nlohmann::ordered_json line = results.back();
    line.erase("losses");
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
    if (!options.out.empty()) {  // after each method: what is done is not lost
      std::filesystem::create_directories(options.out);
      std::ofstream(std::filesystem::path(options.out) / "table.json") << results.dump(1) << "\n";
    }
  }
  fmt::print(
      "GPT {}, 4 ranks, {}times of at most {} steps at {} Mbit/s and {} ms; a step computes {:.3f} s on the slowest "
      "rank\n{}",
      options.size.text(),
      options.times_only
          ? ""
          : fmt::format("curves of {} steps of {} sequences ({}), ", options.steps, options.rows, options.device),
      options.timed_steps, options.mbit, options.latency_ms, dense.timing.slowest_s, table.text());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
