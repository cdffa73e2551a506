// bench/pipeline_torch.cpp -- what executing a schedule costs beside its passes, how near a step comes to its replay,
// and to torch.distributed.pipelining.
//
//   build/release/bench/pipeline_torch --python python3               all four parts
//   build/release/bench/pipeline_torch --parts replay --kinds 1f1b,zb-v --svg zb.svg
//   build/release/bench/pipeline_torch --mpi --python PYTHON         the last, with our ranks as processes, as the
//   peer's are
//
// overhead  executing tables of passes that do nothing: microseconds an instruction
// replay    every synchronous kind, a GPT in two stages on two thread ranks of one core each: a step beside its replay
// network   the same with four ranks whose passes sleep, on an emulated network
// torch     1F1B beside torch.distributed.pipelining over Gloo, in turns
//
// The replay is given the median time of each single instruction and of messages, measured in runs of their own that
// take turns with the others; `ideal` is the replay with passes and updates alone, as if communication were free.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/pipeline_executions.h"
#include "bench/times.h"
#include "bench/wait_asleep.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/process.h"
#include "trireme/device/cpu_setup.h"

namespace {

using namespace trireme;
using bench::Executions;
using bench::Times;

struct Options {
  bench::GptSize gpt;
  int steps = 10, rounds = 9;
  std::string precision = "fp32";
  std::string parts = "overhead,replay,network,torch", kinds, python, svg;
  bool mpi = false;
};

bool listed(const std::string& list, std::string_view word) {
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) {
    if (item == word) return true;
  }
  return false;
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

void measure_overhead() {
  fmt::print("executing a table of passes that do nothing (goal: below 10 us)\n{:>24} {:>13} {:>15}\n", "",
             "instructions", "us each");
  for (const int ranks : {1, 2}) {
    const auto table = table_of("interleaved", {.ranks = ranks, .micros = 64, .chunks_per_rank = 4});
    const Executions executions = bench::execute(table, 50, /*keep=*/false, {}, [&](comm::Rank& rank) {
      bench::RankSetup setup;
      setup.stage.model = std::make_unique<models::Model>();
      for (const int number : schedule::chunks_of(table, rank.rank())) {
        setup.stage.model->layers.push_back({"nothing", std::make_unique<Nothing>()});
        setup.stage.chunks.push_back({.number = number, .layers = {setup.stage.model->layers.back().layer.get()}});
      }
      setup.stage.boundaries = [](int, const pipeline::Micro&) {
        return std::vector<pipeline::BoundaryTensor>{{{1}, at::kFloat}};
      };
      setup.micro = [input = at::ones({1})](int) { return pipeline::Micro{.inputs = {input}}; };
      setup.update = [](pipeline::Executor&) {};
      return setup;
    });
    fmt::print("{:>24} {:>13} {:>15.2f}\n", ranks == 1 ? "one rank, no messages" : "two ranks, messages",
               table.ranks[0].size(),
               1e6 * Times{executions.steps}.median() / static_cast<double>(table.ranks[0].size()));
  }
}

using ExecuteTable = std::function<Executions(const schedule::Schedule& table, bool keep)>;

/// A run that calibrates, then one that nobody looks into, in turns: each step of the latter beside what the former
/// predicts, so that a machine that is slow for a while is slow for both.
void compare(const Options& options, int ranks, int micros, const ExecuteTable& execute_table) {
  fmt::print("{:>14} {:>19} {:>9} {:>25} {:>9} {:>10}\n", "kind", "measured, quartiles", "replayed",
             "measured/replay, quartiles", "of ideal", "bubble");
  std::vector<double> medians;
  for (const schedule::Kind& kind : schedule::kinds()) {
    if (kind.asynchronous || (!options.kinds.empty() && !listed(options.kinds, kind.name))) continue;
    const schedule::Shape shape{.ranks = ranks,
                                .micros = micros,
                                .chunks_per_rank = std::max(kind.default_chunks, kind.name == "interleaved" ? 2 : 1)};
    if (const std::string why = kind.refuses(shape); !why.empty()) {
      fmt::print("{:>14} not defined: {}\n", kind.name, why);
      continue;
    }
    const schedule::Schedule table = table_of(kind.name, shape);
    Times measured, replayed, ratios, of_ideal, bubbles;
    schedule::Timing drawn;
    for (int round = 0; round < options.rounds; ++round) {
      schedule::Calibration calibration(table);
      for (const auto& timeline : execute_table(table, /*keep=*/true).timelines) calibration.add(timeline);
      const Times steps{execute_table(table, /*keep=*/false).steps};
      schedule::ReplayOptions predicting = calibration.options();
      predicting.keep_spans = true;
      drawn = schedule::replay(table, predicting);
      measured.seconds.push_back(steps.median());
      replayed.seconds.push_back(drawn.makespan);
      ratios.seconds.push_back(steps.median() / drawn.makespan);
      of_ideal.seconds.push_back(schedule::replay(table, calibration.ideal()).makespan / steps.median());
      bubbles.seconds.push_back(drawn.bubble());
    }
    medians.push_back(ratios.median());
    fmt::print("{:>14} {:>7.1f} {:>5.1f}-{:>5.1f} {:>9.1f} {:>14.3f} {:.3f}-{:.3f} {:>8.1f}% {:>9.1f}%\n", kind.name,
               1e3 * measured.median(), 1e3 * measured.quantile(0.25), 1e3 * measured.quantile(0.75),
               1e3 * replayed.median(), ratios.median(), ratios.quantile(0.25), ratios.quantile(0.75),
               100 * of_ideal.median(), 100 * bubbles.median());
    std::fflush(stdout);
    if (options.svg.empty()) continue;
    const Executions shown = execute_table(table, /*keep=*/true);
    std::ofstream(options.svg) << schedule::to_svg(schedule::Comparison{table, shown.timelines.back(), drawn});
  }
  if (medians.empty()) return;
  const auto [least, most] = std::ranges::minmax(medians);
  fmt::print("measured/replay from {:.3f} to {:.3f} (goal: within 0.05 of 1)\n", least, most);
}

void measure_against_replay(const Options& options) {
  fmt::print("\nGPT {}x{}, {} tokens a micro, {} micros, {}, two ranks of one thread: a step in ms\n",
             options.gpt.num_layers, options.gpt.hidden_size, options.gpt.seq_len, options.gpt.micros,
             options.precision);
  compare(options, 2, options.gpt.micros, [&](const schedule::Schedule& table, bool keep) {
    return bench::execute(table, options.steps, keep, {},
                          [&](comm::Rank& rank) { return bench::make_gpt(options.gpt, table, rank); });
  });
}

void measure_on_a_network(const Options& options) {
  const bench::SleepTimes times;
  comm::RanksOptions network;
  network.ranks_per_node = 1;
  network.wrap = [](std::unique_ptr<comm::Transport> inner) {
    const comm::EmulatedLink link{.latency = std::chrono::microseconds(50), .bytes_per_second = 1e9};
    return comm::make_emulated_transport(std::move(inner), {.across = link, .inside = link});
  };
  network.comm.spin = std::chrono::nanoseconds(0);  // more ranks than cores
  fmt::print(
      "\nfour ranks whose passes sleep (4 ms each for a rank's share), messages of {} KiB on a network of 50 us and "
      "1 GB/s: a step in ms\n",
      times.floats * 4 / 1024);
  compare(options, 4, 8, [&](const schedule::Schedule& table, bool keep) {
    return bench::execute(table, options.steps, keep, network,
                          [&](comm::Rank& rank) { return bench::make_sleeper(times, table, rank); });
  });
}

void measure_beside_torch(const Options& options) {
  if (options.python.empty()) {
    fmt::print("\ntorch: no peer; give --python a Python that has PyTorch\n");
    return;
  }
  const auto& gpt = options.gpt;
  std::vector<std::string> words{options.python, std::string(TRIREME_BENCH_DIR) + "/peers/gpt_pipeline.py"};
  const auto add = [&](const char* name, std::int64_t value) {
    words.insert(words.end(), {std::string("--") + name, std::to_string(value)});
  };
  add("num-layers", gpt.num_layers);
  add("hidden-size", gpt.hidden_size);
  add("num-heads", std::max<std::int64_t>(1, gpt.hidden_size / 64));
  add("seq-len", gpt.seq_len);
  add("vocab-size", gpt.vocab_size);
  add("micros", gpt.micros);
  words.insert(words.end(), {"--precision", options.precision});
  const auto table = table_of("1f1b", {.ranks = 2, .micros = gpt.micros});
  spec::Recipe ranks;
  ranks.comm.transport = options.mpi ? spec::Transport::kMpi : spec::Transport::kThreads;
  if (comm::detect_launch().kind == comm::Launch::Kind::kSingle) ranks.comm.ranks = 2;
  cli::start_ranks(ranks, [&](comm::Rank& rank) {
    Times ours, theirs, ratios;
    std::unique_ptr<bench::PeerProcess> peer;
    if (rank.rank() == 0) {
      peer = std::make_unique<bench::PeerProcess>(words);
      peer->ask("run 2");
    }
    for (int round = 0; round < options.rounds; ++round) {  // in turns, so that both meet the same machine
      bench::wait_asleep(rank.world());
      const Executions executions =
          bench::execute_rank(rank, table, options.steps, /*keep=*/false,
                              [&](comm::Rank& self) { return bench::make_gpt(gpt, table, self); });
      if (!peer) continue;
      ours.seconds.insert(ours.seconds.end(), executions.steps.begin(), executions.steps.end());
      const nlohmann::json answer = peer->ask(fmt::format("run {}", options.steps));
      Times turn;
      for (const double seconds : answer.at("seconds")) turn.seconds.push_back(seconds);
      ratios.seconds.push_back(turn.median() / Times{executions.steps}.median());
      theirs.seconds.insert(theirs.seconds.end(), turn.seconds.begin(), turn.seconds.end());
    }
    bench::wait_asleep(rank.world());
    if (rank.rank() != 0) return;
    fmt::print(
        "\n1f1b beside torch.distributed.pipelining over Gloo, the same GPT in {}, two ranks of one thread, ours "
        "are {}: a step in ms\n",
        options.precision, options.mpi ? "processes" : "threads");
    for (const auto& [name, times] : {std::pair<const char*, const Times&>{"trireme", ours}, {"torch", theirs}}) {
      fmt::print("{:>14} {:>7.1f} ({:.1f}-{:.1f})\n", name, 1e3 * times.median(), 1e3 * times.quantile(0.25),
                 1e3 * times.quantile(0.75));
    }
    fmt::print("{:>14} {:>6.2f}x ({:.2f}-{:.2f}) of the same turn (goal: 1.5x)\n", "ratio", ratios.median(),
               ratios.quantile(0.25), ratios.quantile(0.75));
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::Arguments app(
      "Executes pipeline schedules on real layers, and sets their steps beside the replay and beside PyTorch.");
  app.add_option("--num-layers", options.gpt.num_layers, "blocks of the model").show_default();
  app.add_option("--hidden-size", options.gpt.hidden_size, "its width, a multiple of 64").show_default();
  app.add_option("--seq-len", options.gpt.seq_len, "tokens of a micro").show_default();
  app.add_option("--microbatches", options.gpt.micros, "of a step").show_default();
  app.add_option("--precision", options.precision, "fp32 or bf16").show_default().one_of({"fp32", "bf16"});
  app.add_option("--steps", options.steps, "steps of a turn").show_default();
  app.add_option("--rounds", options.rounds, "turns of each side").show_default();
  app.add_option("--parts", options.parts, "of overhead, replay, network, torch").show_default();
  app.add_option("--kinds", options.kinds, "only these, as a list with commas");
  app.add_option("--python", options.python, "a Python that has PyTorch, for the peer");
  app.add_flag("--mpi", options.mpi,
               "part torch: our ranks are MPI processes, as the peer's are processes; else threads");
  app.add_option("--svg", options.svg, "draw the last kind's step above its replay");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (options.mpi) options.parts = "torch";  // the others hold ours beside ours
  if (options.precision == "bf16") options.gpt.precision = nn::Precision::kBf16;
  device::keep_host_memory();
  if (listed(options.parts, "overhead")) measure_overhead();
  if (listed(options.parts, "replay")) measure_against_replay(options);
  if (listed(options.parts, "network")) measure_on_a_network(options);
  if (listed(options.parts, "torch")) measure_beside_torch(options);
  return 0;
}
