// bench/parallel_torch.cpp -- training on two cores as two ranks of one thread: data parallelism, ZeRO and tensor
// parallelism beside one rank and beside PyTorch's DDP and FSDP2 over Gloo.
//
//   build/release/bench/parallel_torch --python PYTHON         two sizes, bf16 and fp32
//   build/release/bench/parallel_torch --quick --num-layers 4 --hidden-size 256 --precision bf16 ...
//   build/release/bench/parallel_torch --mpi --python PYTHON   our ranks are processes too, as the peers' are
//
// All sides train the same GPT-2 with AdamW on the same number of tokens a rank (tensor parallelism and the rank with
// two threads: a step on one rank's rows). They take turns of a few steps each, the first of which is not timed; ratios
// are of the same turn. "two ranks apart" are two single runs at the same time: what the machine leaves of twice one
// rank before any word is said. Ours also reads its data, checks gradients and computes their norm in each step, which
// the peers do not.
#include <ATen/Parallel.h>

#include <chrono>
#include <functional>
#include <memory>

#include "bench/arguments.h"
#include "bench/gpt_recipe.h"
#include "bench/peer.h"
#include "bench/sides.h"
#include "bench/wait_asleep.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/process.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::gpt_recipe;
using bench::GptSize;
using bench::seconds_since;
using bench::Sides;

struct Options {
  GptSize size{.num_layers = 0};
  std::int64_t rows = 8;
  std::string precision, python, only;
  int rounds = 11, steps = 6;
  double bucket_mb = 4;
  bool json = false, mpi = false;
};

constexpr const char *kOne = "one rank, one thread", *kApart = "two ranks apart", *kDp = "dp = 2",
                     *kZero1 = "dp = 2, ZeRO-1", *kZero2 = "dp = 2, ZeRO-2", *kZero3 = "dp = 2, ZeRO-3",
                     *kWide = "one rank, two threads", *kTp = "tp = 2, sequence parallel",
                     *kTpOverlap = "tp = 2, sequence parallel, in parts", *kDdp = "PyTorch DDP",
                     *kFsdp = "PyTorch FSDP2";

/// A run of ours that some or all ranks take part in.
struct Trial {
  std::string name;
  spec::Recipe recipe;
  comm::Group* group = nullptr;  ///< null: this rank stands by
  int threads = 1;
  double tokens = 0;  ///< a step, all ranks
  std::unique_ptr<data::Samples> samples;
  std::unique_ptr<train::Trainer> trainer;

  void start() {
    if (group == nullptr) return;
    at::set_num_threads(threads);
    samples = data::open_samples(recipe, data::Split::kTrain);
    trainer = std::make_unique<train::Trainer>(recipe, train::model_shape(recipe), *group, *samples);
  }

  /// Seconds a step, on all ranks together; `world` is where ranks wait for each other.
  double turn(comm::Group& world, int steps) {
    if (trainer) {
      at::set_num_threads(threads);
      trainer->step();
    }
    world.barrier().wait();
    const auto begin = Clock::now();
    for (int i = 0; trainer && i < steps; ++i) trainer->step();
    world.barrier().wait();
    return seconds_since(begin) / steps;
  }
};

class Peer {
 public:
  Peer(const Options& options, const GptSize& size, spec::Precision precision, const std::string& kind)
      : process_(command(options, size, precision, kind)) {}
  double turn(int steps) {
    process_.ask("run 1");
    return process_.ask(fmt::format("run {}", steps))["seconds"].get<double>() / steps;
  }

 private:
  static std::vector<std::string> command(const Options& options, const GptSize& size, spec::Precision precision,
                                          const std::string& kind) {
    return {options.python,
            TRIREME_BENCH_DIR "/peers/parallel.py",
            fmt::format("--num-layers={}", size.num_layers),
            fmt::format("--hidden-size={}", size.hidden_size),
            fmt::format("--num-heads={}", size.num_heads()),
            fmt::format("--seq-len={}", size.seq_len),
            fmt::format("--vocab-size={}", size.vocab_size),
            fmt::format("--batch={}", options.rows),
            fmt::format("--bucket-mb={}", options.bucket_mb),
            fmt::format("--precision={}", bench::name_of(precision)),
            fmt::format("--kind={}", kind)};
  }
  bench::PeerProcess process_;
};

std::vector<Trial> make_runs(const Options& options, const GptSize& size, spec::Precision precision, comm::Group& world,
                             comm::Group& alone) {
  std::vector<Trial> runs;
  comm::Group* first_only = world.rank() == 0 ? &alone : nullptr;
  const auto add = [&](const char* name, std::int64_t rows, comm::Group* group, int threads, double tokens,
                       const std::function<void(spec::LayoutConfig&)>& set) {
    Trial run{.name = name,
              .recipe = gpt_recipe(size, precision, rows),
              .group = group,
              .threads = threads,
              .tokens = tokens * static_cast<double>(size.seq_len),
              .samples = nullptr,
              .trainer = nullptr};
    run.recipe.layout.bucket_mb = options.bucket_mb;
    if (set) set(run.recipe.layout);
    runs.push_back(std::move(run));
  };
  const std::int64_t rows = options.rows;
  const auto one = static_cast<double>(rows), two = 2 * one;
  add(kOne, rows, first_only, 1, one, {});
  add(kApart, rows, &alone, 1, two, {});
  add(kDp, 2 * rows, &world, 1, two, {});
  for (const int zero : {1, 2, 3}) {
    const char* name = zero == 1 ? kZero1 : zero == 2 ? kZero2 : kZero3;
    add(name, 2 * rows, &world, 1, two, [&](spec::LayoutConfig& layout) { layout.zero = zero; });
  }
  add(kWide, rows, first_only, 2, one, {});
  for (const bool overlap : {false, true}) {
    add(overlap ? kTpOverlap : kTp, rows, &world, 1, one, [&](spec::LayoutConfig& layout) {
      layout.tp = 2;
      layout.sequence_parallel = true;
      layout.tp_overlap = overlap;
    });
  }
  return runs;
}

/// One size in one precision; the sides as rank 0 saw them.
Sides measure(const Options& options, const GptSize& size, spec::Precision precision, comm::Rank& rank) {
  Sides sides;
  at::set_num_threads(1);
  comm::Group& world = rank.world();
  const auto alone = world.split(rank.rank(), 0, "alone");
  std::vector<Trial> runs = make_runs(options, size, precision, world, *alone);
  if (!options.only.empty()) std::erase_if(runs, [&](const Trial& run) { return run.name != options.only; });
  for (Trial& run : runs) run.start();
  std::unique_ptr<Peer> ddp, fsdp;
  if (rank.rank() == 0 && !options.python.empty()) {
    ddp = std::make_unique<Peer>(options, size, precision, "ddp");
    fsdp = std::make_unique<Peer>(options, size, precision, "fsdp");
  }
  for (int round = -1; round < options.rounds; ++round) {  // the first warms up
    const int steps = round < 0 ? 2 : options.steps;
    for (Trial& run : runs) {
      const double seconds = run.turn(world, steps);
      if (rank.rank() == 0 && round >= 0) sides.add(run.name, run.tokens, seconds);
    }
    for (const auto& [name, peer] : {std::pair{kDdp, ddp.get()}, {kFsdp, fsdp.get()}}) {
      if (peer == nullptr) continue;
      const double seconds = peer->turn(steps);
      if (round >= 0) sides.add(name, 2.0 * static_cast<double>(options.rows * size.seq_len), seconds);
    }
    bench::wait_asleep(world);
  }
  for (Trial& run : runs) run.trainer.reset();
  const bool low = precision == spec::Precision::kBf16;
  sides.compare("dp = 2 / PyTorch DDP", kDp, kDdp, low ? 2.0 : 1.5);
  sides.compare("dp = 2 / twice one rank", kDp, kOne, 0.9, 2);
  sides.compare("two ranks apart / twice one rank", kApart, kOne, 0, 2);
  sides.compare("dp = 2 / two ranks apart", kDp, kApart, 0);
  sides.compare("ZeRO-1 / dp = 2", kZero1, kDp, 0.95);
  sides.compare("ZeRO-2 / dp = 2", kZero2, kDp, 0.95);
  sides.compare("ZeRO-3 / PyTorch FSDP2", kZero3, kFsdp, 1.5);
  sides.compare("ZeRO-3 / dp = 2", kZero3, kDp, 0);
  sides.compare("tp = 2 / one rank, two threads", kTp, kWide, 0.8);
  sides.compare("tp = 2, in parts / one rank, two threads", kTpOverlap, kWide, 0);
  return sides;
}

void tell(const Options& options, const GptSize& size, spec::Precision precision, const Sides& sides,
          nlohmann::ordered_json& document) {
  if (options.json) {
    nlohmann::ordered_json entry = sides.json();
    entry["model"] = size.text(), entry["precision"] = bench::name_of(precision), entry["rows"] = options.rows;
    entry["ranks"] = options.mpi ? "processes" : "threads";
    document.push_back(std::move(entry));
    return;
  }
  fmt::print("GPT {}, {} rows a rank, {}, our ranks are {}: a step\n{}", size.text(), options.rows,
             bench::name_of(precision), options.mpi ? "processes" : "threads", sides.text("tokens/s"));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("Two ranks of one thread beside one rank, PyTorch DDP and FSDP2 over Gloo");
  app.add_option("--python", options.python, "a Python with torch, for the peers; without: ours only");
  app.add_option("--num-layers", options.size.num_layers, "one size instead of the two");
  app.add_option("--hidden-size", options.size.hidden_size).show_default();
  app.add_option("--seq-len", options.size.seq_len).show_default();
  app.add_option("--vocab-size", options.size.vocab_size).show_default();
  app.add_option("--rows", options.rows, "sequences a step and rank").show_default();
  app.add_option("--precision", options.precision, "fp32 or bf16; both when not given");
  app.add_option("--bucket-mb", options.bucket_mb, "gradients summed together, ours and DDP's").show_default();
  app.add_option("--rounds", options.rounds, "turns of each side").show_default();
  app.add_option("--steps", options.steps, "steps in a turn").show_default();
  app.add_option("--only", options.only, "of our sides, this one: for a profile");
  app.add_flag("--quick", quick, "two rounds of two steps: whether it runs, not how fast");
  app.add_flag("--mpi", options.mpi, "our ranks are MPI processes, as the peers' are processes; else threads");
  app.add_flag("--json", options.json, "one JSON document");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) options.rounds = options.steps = 2;
  device::keep_host_memory();
  std::vector<GptSize> sizes{{.num_layers = 4, .hidden_size = 256}, {.num_layers = 6, .hidden_size = 384}};
  if (options.size.num_layers > 0) sizes = {options.size};
  nlohmann::ordered_json document = nlohmann::ordered_json::array();
  spec::Recipe ranks;
  ranks.comm.transport = options.mpi ? spec::Transport::kMpi : spec::Transport::kThreads;
  if (comm::detect_launch().kind == comm::Launch::Kind::kSingle) ranks.comm.ranks = 2;
  bool is_first = true;
  cli::start_ranks(ranks, [&](comm::Rank& rank) {
    if (options.mpi) is_first = rank.rank() == 0;
    for (const GptSize& size : sizes) {
      for (const spec::Precision precision : {spec::Precision::kBf16, spec::Precision::kFp32}) {
        if (!options.precision.empty() && options.precision != bench::name_of(precision)) continue;
        const Sides sides = measure(options, size, precision, rank);
        if (rank.rank() == 0) tell(options, size, precision, sides, document);
      }
    }
  });
  if (options.json && is_first) fmt::print("{}\n", document.dump(2));
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
