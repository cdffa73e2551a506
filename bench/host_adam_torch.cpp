// bench/host_adam_torch.cpp -- AdamW on the host as ZeRO-Offload needs it: ours on one thread beside PyTorch's eager
// AdamW and beside the speed at which this thread copies memory.
//
//   build/release/bench/host_adam_torch --python PYTHON [--parameters 16000000]
//
// Ours reads weight, gradient and both moments and writes all but the gradient: 28 bytes a parameter in fp32, and 2
// more where it also leaves a bf16 copy for the device. The copy's bandwidth counts the bytes read and those written.
// The sides take turns.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <vector>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/sides.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/kernels/update.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::seconds_since;
using bench::Times;

struct Options {
  std::int64_t parameters = 16'000'000;
  int rounds = 15, steps = 3;
  std::string python;
  bool json = false;
};

class Ours {
 public:
  Ours(std::int64_t n, bool copy)
      : weight_(at::full({n}, 0.5, at::kFloat)),
        gradient_(at::full({n}, 1e-3, at::kFloat)),
        m_(at::zeros({n}, at::kFloat)),
        v_(at::zeros({n}, at::kFloat)) {
    if (copy) low_ = at::empty({n}, at::kBFloat16);
  }
  void step() {
    kernels::adamw_update({.weight = weight_, .gradient = gradient_, .low = low_}, m_, v_,
                          {.learning_rate = 1e-3, .weight_decay = 0.1, .beta2 = 0.95, .step = ++step_});
  }

 private:
  at::Tensor weight_, gradient_, m_, v_, low_;
  std::int64_t step_ = 0;
};

/// Seconds a step of `work`, over a turn.
template <typename Work>
double turn(int steps, const Work& work) {
  work();
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) work();
  return seconds_since(begin) / steps;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("AdamW on one thread of the host");
  app.add_option("--python", options.python, "a Python with torch, for the peer; without: ours and memory only");
  app.add_option("--parameters", options.parameters).show_default();
  app.add_option("--rounds", options.rounds, "turns of each side").show_default();
  app.add_option("--steps", options.steps, "updates in a turn").show_default();
  app.add_flag("--quick", quick, "two rounds: whether it runs, not how fast");
  app.add_flag("--json", options.json, "one JSON document");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) options.rounds = 2;
  device::keep_host_memory();
  at::set_num_threads(1);
  const auto n = static_cast<double>(options.parameters);
  Ours plain(options.parameters, /*copy=*/false), mixed(options.parameters, /*copy=*/true);
  // As many bytes as an update moves: half of them read, half written.
  std::vector<char> from(static_cast<std::size_t>(14 * options.parameters), 1), to(from.size(), 2);
  std::unique_ptr<bench::PeerProcess> peer;
  if (!options.python.empty()) {
    peer = std::make_unique<bench::PeerProcess>(std::vector<std::string>{
        options.python, TRIREME_BENCH_DIR "/peers/adam.py", fmt::format("--parameters={}", options.parameters)});
  }
  // Rates in GB/s of what an update has to move, so that PyTorch's rate is that of useful bytes.
  bench::Sides sides;
  for (int round = 0; round < options.rounds; ++round) {
    sides.add("ours, fp32", 28 * n / 1e9, turn(options.steps, [&] { plain.step(); }));
    sides.add("ours, fp32 and a bf16 copy", 30 * n / 1e9, turn(options.steps, [&] { mixed.step(); }));
    sides.add("copying memory", 28 * n / 1e9, turn(options.steps, [&] {
                std::memcpy(to.data(), from.data(), from.size());
                __asm__ volatile("" ::"r"(to.data()) : "memory");
              }));
    if (!peer) continue;
    for (const char* kind : {"eager", "foreach", "fused"}) {
      peer->ask(fmt::format("{} 1", kind));
      const auto answer = peer->ask(fmt::format("{} {}", kind, options.steps));
      sides.add(fmt::format("PyTorch {}", kind), 28 * n / 1e9, answer["seconds"].get<double>() / options.steps);
    }
  }
  sides.compare("ours / PyTorch eager", "ours, fp32", "PyTorch eager", 4);
  sides.compare("ours / PyTorch foreach", "ours, fp32", "PyTorch foreach", 0);
  sides.compare("ours / PyTorch fused", "ours, fp32", "PyTorch fused", 0);
  sides.compare("ours / copying memory", "ours, fp32", "copying memory", 0.8);
  sides.compare("ours with a bf16 copy / copying memory", "ours, fp32 and a bf16 copy", "copying memory", 0);
  if (options.json) {
    nlohmann::ordered_json document = sides.json();
    document["parameters"] = options.parameters;
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("AdamW of {} parameters on one thread; one of the two goals is enough\n{}", options.parameters,
               sides.text("GB/s"));
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
