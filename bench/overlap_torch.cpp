// bench/overlap_torch.cpp -- how much of the communication of a training step is hidden behind its computation, on an
// emulated network.
//
//   build/release/bench/overlap_torch [--share 0.5] [--latency-us 10] [--only "ZeRO-2"]
//
// Two ranks of one thread. Each way of spreading the model first trains on an infinitely fast network, which tells how
// long a step computes and how many bytes a rank sends; then the bandwidth is set so that these bytes take `share` of
// that time. The two networks take turns. Exposed is what a step takes longer on the slow one; the total is
// bytes / bandwidth, latencies not counted. The same code runs on both, so that copying and adding numbers up cancels
// out. Rows marked "at once" do without overlap: what it earns.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <array>

#include "bench/arguments.h"
#include "bench/counting_transport.h"
#include "bench/gpt_recipe.h"
#include "bench/sides.h"
#include "trireme/comm/rank.h"
#include "trireme/comm/transports/emulated.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::GptSize;
using bench::seconds_since;
using bench::Times;

struct Options {
  GptSize size{.num_layers = 6, .hidden_size = 384};
  std::int64_t rows = 8;  ///< of one rank
  std::string precision = "fp32", only;
  int rounds = 9, steps = 5;
  double share = 0.5, latency_us = 10, bucket_mb = 2, goal = 0.3;
  bool json = false;
};

struct Variant {
  std::string name;
  spec::LayoutConfig layout;
  bool judged = true;
};

std::vector<Variant> ways_of(const Options& options) {
  std::vector<Variant> ways;
  const auto add = [&](std::string name, int zero, double bucket_mb, bool judged) {
    Variant way{.name = std::move(name), .layout = {}, .judged = judged};
    way.layout.zero = zero;
    way.layout.bucket_mb = bucket_mb;
    ways.push_back(std::move(way));
  };
  add("dp = 2", 0, options.bucket_mb, true);
  add("dp = 2, at once", 0, 0, false);
  add("ZeRO-1", 1, options.bucket_mb, false);
  add("ZeRO-2", 2, options.bucket_mb, true);
  add("ZeRO-3", 3, options.bucket_mb, true);
  for (const bool parts : {true, false}) {
    Variant way{.name = parts ? "tp = 2, in parts" : "tp = 2, at once", .layout = {}, .judged = parts};
    way.layout.tp = 2;
    way.layout.sequence_parallel = true;
    way.layout.tp_overlap = parts;
    ways.push_back(std::move(way));
  }
  return ways;
}

struct Turn {
  double seconds = 0, bytes = 0, messages = 0;  ///< a step
};

/// Seconds, bytes and messages of a step on a network of this bandwidth; 0: no limit and no latency.
Turn run_turn(const Options& options, const spec::Recipe& recipe, double bytes_per_second) {
  std::array<bench::Traffic, 2> traffic;
  comm::EmulatedNetwork network;
  if (bytes_per_second > 0) {
    network.inside = {.latency = std::chrono::nanoseconds(static_cast<std::int64_t>(options.latency_us * 1e3)),
                      .bytes_per_second = bytes_per_second};
    network.across = network.inside;
  }
  comm::RanksOptions ranks;
  ranks.wrap = [&](std::unique_ptr<comm::Transport> inner) {
    bench::Traffic& counted = traffic[static_cast<std::size_t>(inner->rank())];
    return comm::make_emulated_transport(std::make_unique<bench::CountingTransport>(std::move(inner), counted),
                                         network);
  };
  Turn turn;
  comm::run_ranks(
      2,
      [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
        for (int i = 0; i < 2; ++i) trainer.step();
        rank.world().barrier().wait();
        bench::Traffic& mine = traffic[static_cast<std::size_t>(rank.rank())];
        const std::uint64_t bytes = mine.bytes, messages = mine.messages;
        const auto begin = Clock::now();
        for (int i = 0; i < options.steps; ++i) trainer.step();
        rank.world().barrier().wait();
        if (rank.rank() == 0) {
          turn = {.seconds = seconds_since(begin) / options.steps,
                  .bytes = static_cast<double>(mine.bytes - bytes) / options.steps,
                  .messages = static_cast<double>(mine.messages - messages) / options.steps};
        }
      },
      ranks);
  return turn;
}

struct Row {
  Variant way;
  double bandwidth = 0, bytes = 0, messages = 0;
  Times fast, slow, exposed;
  double total() const { return bytes / bandwidth; }
};

Row measure(const Options& options, const Variant& way) {
  const bool tensor = way.layout.tp > 1;
  spec::Recipe recipe =
      bench::gpt_recipe(options.size, options.precision == "bf16" ? spec::Precision::kBf16 : spec::Precision::kFp32,
                        tensor ? options.rows : 2 * options.rows);
  recipe.layout = way.layout;
  Row row{.way = way, .fast = {}, .slow = {}, .exposed = {}};
  Times first;
  for (int i = 0; i < 3; ++i) {
    const Turn turn = run_turn(options, recipe, 0);
    first.seconds.push_back(turn.seconds);
    row.bytes = turn.bytes, row.messages = turn.messages;
  }
  row.bandwidth = row.bytes / (options.share * first.median());
  for (int round = 0; round < options.rounds; ++round) {
    row.fast.seconds.push_back(run_turn(options, recipe, 0).seconds);
    row.slow.seconds.push_back(run_turn(options, recipe, row.bandwidth).seconds);
    row.exposed.seconds.push_back((row.slow.seconds.back() - row.fast.seconds.back()) / row.total());
  }
  return row;
}

nlohmann::ordered_json json_of(const Row& row, const Options& options) {
  nlohmann::ordered_json out{{"way", row.way.name},
                             {"bytes", row.bytes},
                             {"messages", row.messages},
                             {"bytes_per_second", row.bandwidth},
                             {"total_seconds", row.total()},
                             {"fast_seconds", bench::json_of(row.fast)},
                             {"slow_seconds", bench::json_of(row.slow)},
                             {"exposed", bench::json_of(row.exposed)}};
  if (row.way.judged) out["goal"] = options.goal, out["met"] = row.exposed.median() <= options.goal;
  return out;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("Communication that a training step waits for, on an emulated network");
  app.add_option("--num-layers", options.size.num_layers).show_default();
  app.add_option("--hidden-size", options.size.hidden_size).show_default();
  app.add_option("--seq-len", options.size.seq_len).show_default();
  app.add_option("--rows", options.rows, "sequences a step and rank").show_default();
  app.add_option("--precision", options.precision, "fp32 or bf16").show_default();
  app.add_option("--share", options.share, "communication, of computation").show_default();
  app.add_option("--latency-us", options.latency_us).show_default();
  app.add_option("--bucket-mb", options.bucket_mb, "layout.bucket_mb").show_default();
  app.add_option("--rounds", options.rounds, "turns of each network").show_default();
  app.add_option("--steps", options.steps, "steps in a turn").show_default();
  app.add_option("--only", options.only, "one way, by its name");
  app.add_flag("--quick", quick, "two rounds of two steps: whether it runs, not how well");
  app.add_flag("--json", options.json, "one JSON document");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) options.rounds = options.steps = 2;
  device::keep_host_memory();
  TextTable table({{"way"},
                   {"MB sent"},
                   {"MB/s"},
                   {"step, fast"},
                   {"step, slow"},
                   {"total"},
                   {"exposed"},
                   {"quartiles"},
                   {"goal"},
                   {"met"}});
  nlohmann::ordered_json document = nlohmann::ordered_json::array();
  for (const Variant& way : ways_of(options)) {
    if (!options.only.empty() && way.name != options.only) continue;
    const Row row = measure(options, way);
    document.push_back(json_of(row, options));
    table.add({way.name, fmt::format("{:.2f}", row.bytes / 1e6), fmt::format("{:.0f}", row.bandwidth / 1e6),
               fmt::format("{:.1f} ms", row.fast.median() * 1e3), fmt::format("{:.1f} ms", row.slow.median() * 1e3),
               fmt::format("{:.1f} ms", row.total() * 1e3), fmt::format("{:.0f} %", 100 * row.exposed.median()),
               fmt::format("{:.0f}-{:.0f}", 100 * row.exposed.quantile(0.25), 100 * row.exposed.quantile(0.75)),
               way.judged ? fmt::format("<= {:.0f} %", 100 * options.goal) : "-",
               !way.judged                            ? "-"
               : row.exposed.median() <= options.goal ? "yes"
                                                      : "no"});
    if (!options.json) {
      fmt::print(stderr, "{}: exposed {:.0f} %\n", way.name, 100 * row.exposed.median());
    }
  }
  if (options.json) {
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("GPT {}, {} rows a rank, {}; communication set to {:.0f} % of a step's computation\n{}",
               options.size.text(), options.rows, options.precision, 100 * options.share, table.text("  "));
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
