// bench/comm_ucx.cpp -- all_reduce over UCX between processes of one machine, without shared memory: beside the same
// bytes sent plainly, which no algorithm can beat, and beside Gloo.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/ranks.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cost/collectives.h"

namespace {

using namespace trireme;
using namespace trireme::comm;

struct Options {
  int rounds = 7;
  double batch_s = 0.2;
  std::string python;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of one call: the median of rounds, each of as many calls as fit into batch_s; of the slowest rank.
template <typename Body>
double measure(Group& world, const Options& options, Body&& body) {
  const auto batch = [&](int calls) {
    world.barrier().wait();
    const double begin = seconds_now();
    for (int i = 0; i < calls; ++i) body();
    double took = (seconds_now() - begin) / calls;
    world.all_reduce(Buffer{&took, 1, DType::kF64}, Reduce::kMax).wait();
    return took;
  };
  const double first = batch(3);
  const int calls = std::clamp(static_cast<int>(options.batch_s / first), 3, 5000);
  std::vector<double> times;
  for (int i = 0; i < options.rounds; ++i) times.push_back(batch(calls));
  std::ranges::nth_element(times, times.begin() + options.rounds / 2);
  return times[static_cast<std::size_t>(options.rounds / 2)];
}

void run(Rank& rank, const Options& options) {
  Group& world = rank.world();
  const int right = (rank.rank() + 1) % rank.ranks(), left = (rank.rank() + rank.ranks() - 1) % rank.ranks();
  TextTable table({{"bytes"}, {"all_reduce"}, {"the bytes alone"}, {"of that speed"}, {"Gloo"}, {"ratio"}});
  for (const std::size_t bytes :
       {std::size_t{1} << 10, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{64} << 20}) {
    std::vector<float> values(bytes / sizeof(float), 0.0f), arrived(values.size());
    const double ours = measure(world, options, [&] {
      world.all_reduce(Buffer{values.data(), values.size(), DType::kF32}, Reduce::kSum).wait();
    });
    // What every rank must send at least, once around.
    const auto least = static_cast<std::size_t>(
        cost::wire_bytes(cost::Collective::kAllReduce, rank.ranks(), static_cast<double>(bytes)));
    const std::size_t count = std::min(least / sizeof(float), values.size());
    const double plain = measure(world, options, [&] {
      Work in = world.recv(Buffer{arrived.data(), count, DType::kF32}, left);
      Work out = world.send(ConstBuffer{values.data(), count, DType::kF32}, right);
      in.wait();
      out.wait();
    });
    if (rank.rank() != 0) continue;
    std::string gloo = "-", ratio = "-";
    if (!options.python.empty()) {
      bench::PeerProcess peer(
          {options.python, TRIREME_BENCH_DIR "/peers/gloo_all_reduce.py", fmt::format("--ranks={}", rank.ranks())});
      const double theirs = peer.ask(fmt::format("{}", bytes)).at("seconds");
      gloo = short_seconds(theirs);
      ratio = fmt::format("{:.2f}x", theirs / ours);
    }
    table.add({short_bytes(static_cast<double>(bytes)), short_seconds(ours), short_seconds(plain),
               fmt::format("{:.0f} %", 100 * plain / ours), gloo, ratio});
  }
  if (rank.rank() != 0) return;
  std::printf(
      "%d ranks over UCX on one machine, no shared memory; medians of %d rounds; ratio: Gloo's time over ours\n\n%s",
      rank.ranks(), options.rounds, table.text().c_str());
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  int ranks = 2;
  bench::Arguments app("all_reduce over UCX beside its bytes and Gloo");
  app.add_option("--ranks", ranks, "How many processes to start").show_default();
  app.add_option("--rounds", options.rounds, "Rounds, of which the median is shown").show_default();
  app.add_option("--seconds", options.batch_s, "Time for one batch").show_default();
  app.add_option("--python", options.python, "Python with PyTorch: Gloo is measured beside it");
  if (const std::optional<int> status = app.parse(count, arguments)) return *status;
  spec::Recipe recipe;
  recipe.comm.transport = spec::Transport::kUcx;
  recipe.comm.ranks_per_node = 1;
  return bench::run_on_ranks(std::move(recipe), ranks, [&](Rank& rank) { run(rank, options); });
}
