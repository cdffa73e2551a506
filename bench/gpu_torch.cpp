// bench/gpu_torch.cpp -- a training step on a GPU beside PyTorch's and beside its limit; operators beside a plain copy.
//
//   build/release/bench/gpu_torch --kernels                       bytes a second of every operator beside a copy's
//   build/release/bench/gpu_torch --attention                     attention into a fused gradient, by cuDNN and ATen
//   build/release/bench/gpu_torch --gemm-shapes                   GEMMs of the models' shapes beside ATen's
//   build/release/bench/gpu_torch --model gpt2-124m --python PY   a step beside PyTorch eager and compiled
//   build/release/bench/gpu_torch --model gpt2-124m --profile trace.json
//   build/release/bench/gpu_torch --model gpt2-124m --cuda-graphs --gradients bf16 --recompute-norms
//   build/release/bench/gpu_torch --same cpu --python PY          both sides from the same numbers: are losses equal?
//   bench/gpu_rows PY FOLDER                                      all rows of docs/performance.md, in a few calls
//
// All sides run the same step (forward, backward, clipping to norm 1, AdamW over fp32 or bf16 states, bf16 GEMMs) on
// random tokens, some steps each in turn; --apart one after the other. The limit is the time of the step's GEMMs at the
// best rate that any known kernel reaches for their shapes, attention's kernels, and the bytes that the rest must move
// over the copy's rate: the best turns of the same call. Where that is slower than our own step it bounds nothing, and
// is not printed as a limit. --json keeps samples.
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/arguments.h"
#include "bench/gpu_attention.h"
#include "bench/gpu_gemm.h"
#include "bench/gpu_kernels.h"
#include "bench/gpu_limit.h"
#include "bench/gpu_offload.h"
#include "bench/gpu_sides.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/device/cuda.h"
#include "trireme/kernels/autotune.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::copy_rate;
using bench::gpu;
using bench::gpu_seconds;
using bench::Limit;
using bench::Ours;
using bench::Peer;
using bench::seconds_since;
using bench::Size;
using bench::Times;

struct Options {
  std::string python, json, profile, peers = TRIREME_BENCH_DIR "/peers";
  std::vector<std::string> models;
  bool kernels = false, attention = false, shapes = false, eager = true, cuda_graphs = false, bf16_states = false,
       apart = false, offload = false;
  bool gemm_autotune = true, save_mlp_activations = false, recompute_norms = false;
  std::string same, gradients = "fp32";
  spec::GemmPrecision gemm = spec::GemmPrecision::kSame;
  int rounds = 5, steps = 10;
  std::int64_t batch = 0;
};

void profile(Ours& ours, const std::string& path) {
  using namespace torch::autograd::profiler;
  const ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities{torch::profiler::impl::ActivityType::CPU,
                                                                 torch::profiler::impl::ActivityType::CUDA};
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  ours.run(2);
  disableProfiler()->save(path);
}

/// What one side of PyTorch's gave.
struct Theirs {
  std::unique_ptr<Peer> peer;
  Times times;
  double peak_gib = 0, loss = 0;

  void begin(const bench::PeerOptions& options, const Size& size) {
    peer = std::make_unique<Peer>(options, size);
    peer->run(kWarmUp);
  }
  void turn(int steps) {
    if (!peer) return;
    times.seconds.push_back(peer->run(steps));
    peak_gib = peer->peak_gib, loss = peer->loss;
  }
  static constexpr int kWarmUp = 5;
};

nlohmann::json compare(const Size& size, const Options& options, double rate) {
  nlohmann::json out;
  const double tokens = static_cast<double>(size.batch * size.seq_len);
  const bool bf16_gradients = options.gradients == "bf16";
  bench::PeerOptions peer{.python = options.python,
                          .peers = options.peers,
                          .bf16_states = options.bf16_states,
                          .fp8 = options.gemm != spec::GemmPrecision::kSame};
  Theirs eager, compiled;
  const auto begin = [&](Theirs& side, bool compile) {
    peer.compile = compile;
    if (!options.python.empty() && (compile || options.eager)) side.begin(peer, size);
  };
  if (options.apart) {
    for (const bool compile : {false, true}) {
      Theirs& side = compile ? compiled : eager;
      begin(side, compile);
      for (int round = 0; round < options.rounds; ++round) side.turn(options.steps);
      side.peer.reset();  // its memory is needed
    }
  }
  device::cuda_runtime().reset_peak_memory_stats(0);
  auto ours = std::make_unique<Ours>(size, bench::OursOptions{.device = gpu(),
                                                              .gemm = options.gemm,
                                                              .cuda_graphs = options.cuda_graphs,
                                                              .bf16_states = options.bf16_states,
                                                              .bf16_gradients = bf16_gradients,
                                                              .recompute_norms = options.recompute_norms,
                                                              .save_mlp_activations = options.save_mlp_activations});
  ours->run(Theirs::kWarmUp);
  const double peak = static_cast<double>(device::cuda_runtime().max_memory_allocated(0)) / (1 << 30);
  if (!options.profile.empty()) profile(*ours, options.profile);
  if (!options.apart) {
    begin(eager, false);
    begin(compiled, true);
  }
  auto limit = std::make_unique<Limit>(size, options.bf16_states || bf16_gradients ? at::kBFloat16 : at::kFloat);
  Times mine, attention;
  for (int round = 0; round < options.rounds; ++round) {
    mine.seconds.push_back(ours->run(options.steps));
    eager.turn(options.steps);
    compiled.turn(options.steps);
    limit->time_gemms();
    rate = std::max(rate, copy_rate());
    attention.seconds.push_back(gpu_seconds([&] { limit->attention(); }, 3, 5));
  }
  const bool has_eager = !eager.times.seconds.empty(), has_compiled = !compiled.times.seconds.empty();
  const double moved = limit->bytes(ours->parameters(), options.bf16_states, bf16_gradients), moving = moved / rate;
  const double light = limit->gemm_seconds() + attention.least() + moving;
  const bool bounds = light <= mine.least();
  fmt::print("{}: {} parameters, {}x{}, bf16 with {}, GEMMs: {}; ours: {} gradients{}{}{}\n", size.name,
             ours->parameters(), size.batch, size.seq_len, options.bf16_states ? "bf16 states" : "fp32 states",
             name_in(spec::enum_names(std::type_identity<spec::GemmPrecision>()), options.gemm), options.gradients,
             options.recompute_norms ? ", norms recomputed" : "",
             options.save_mlp_activations ? ", activations kept" : "",
             options.apart ? "; one side after the other" : "");
  TextTable table({{"side"}, {"ms a step"}, {"tokens/s"}, {"TFLOP/s"}, {"ours is"}, {"peak GiB"}, {"loss"}});
  const auto row = [&](const std::string& name, double seconds, double gib, double loss) {
    table.add({name, fmt::format("{:.2f}", seconds * 1e3), fmt::format("{:.0f}", tokens / seconds),
               fmt::format("{:.0f}", ours->flops() / seconds / 1e12), fmt::format("{:.3f}x", seconds / mine.median()),
               gib > 0 ? fmt::format("{:.1f}", gib) : "-", loss > 0 ? fmt::format("{:.4f}", loss) : "-"});
  };
  row("ours", mine.median(), peak, ours->loss());
  if (bounds) row("limit", light, 0, 0);
  if (has_eager) row("PyTorch eager", eager.times.median(), eager.peak_gib, eager.loss);
  if (has_compiled) row("PyTorch compiled", compiled.times.median(), compiled.peak_gib, compiled.loss);
  fmt::print("{}  peaks used, the best of {} rounds: GEMMs {:.0f} TFLOP/s over the step's shapes, copies {:.2f} TB/s\n",
             table.text(), options.rounds, limit->gemm_rate() / 1e12, rate / 1e12);
  fmt::print("  {}: GEMMs {:.2f} ms, attention {:.2f} ms, {:.2f} GB moved {:.2f} ms, together {:.2f} ms{}\n\n",
             bounds ? "limit" : "no limit", limit->gemm_seconds() * 1e3, attention.least() * 1e3, moved / 1e9,
             moving * 1e3, light * 1e3,
             bounds ? "" : fmt::format(", slower than our best step of {:.2f} ms: measure again", mine.least() * 1e3));
  std::fflush(stdout);
  out["ours"] = mine.seconds, out["gemm_seconds"] = limit->gemm_seconds(), out["attention"] = attention.seconds;
  out["moving"] = moving, out["copy_rate"] = rate, out["gemm_rate"] = limit->gemm_rate(), out["bounds"] = bounds,
  out["peak_gib"] = peak, out["tokens"] = tokens, out["flops"] = ours->flops();
  out["loss"] = ours->loss();
  out["gradients"] = options.gradients, out["recompute_norms"] = options.recompute_norms,
  out["save_mlp_activations"] = options.save_mlp_activations;
  if (has_eager) {
    out["eager"] = eager.times.seconds, out["eager_peak_gib"] = eager.peak_gib, out["eager_loss"] = eager.loss;
  }
  if (has_compiled) {
    out["compiled"] = compiled.times.seconds, out["compiled_peak_gib"] = compiled.peak_gib;
    out["compiled_loss"] = compiled.loss;
  }
  return out;
}

// ---- the same step

/// The sizes of --model, with --batch. A ConfigError for a name that is none.
std::vector<Size> sizes_of(const Options& options) {
  std::vector<std::string> names;
  for (const Size& size : bench::kSizes) names.push_back(size.name);
  std::vector<Size> sizes;
  for (const std::string& name : options.models) {
    const auto found = std::ranges::find(bench::kSizes, name, &Size::name);
    if (found == std::end(bench::kSizes)) {
      throw ConfigError(fmt::format("--model {}: there is no such model{}; there are {}", name,
                                    did_you_mean(name, names), listed(names)));
    }
    Size& size = sizes.emplace_back(*found);
    if (options.batch > 0) size.batch = options.batch;
  }
  return sizes;
}

/// Both sides from the same numbers over the same tokens: the losses of each step side by side, which differ by
/// rounding alone. Whether it did is the answer.
bool check_same(const Options& options) {
  bool right = true;
  const bool on_gpu = options.same == "cuda";
  std::vector<Size> sizes(std::begin(bench::kSameSizes), std::end(bench::kSameSizes));
  if (on_gpu) sizes.insert(sizes.end(), std::begin(bench::kSameOnGpu), std::end(bench::kSameOnGpu));
  for (const Size& size : sizes) {
    for (const bool narrow : {false, true}) {
      Ours ours(size, {.device = on_gpu ? gpu() : at::Device(at::kCPU),
                       .precision = narrow ? nn::Precision::kBf16 : nn::Precision::kFp32,
                       .cuda_graphs = on_gpu && options.cuda_graphs,
                       .bf16_gradients = narrow && options.gradients == "bf16",
                       .recompute_norms = options.recompute_norms,
                       .save_mlp_activations = options.save_mlp_activations});
      const std::string start = fmt::format("/tmp/trireme-same-{}.bin", ::getpid());
      ours.write_start(start);
      Peer peer({.python = options.python,
                 .peers = options.peers,
                 .device = options.same,
                 .type = narrow ? "bf16" : "fp32",
                 .start = start},
                size);
      TextTable table({{"step"}, {"ours"}, {"PyTorch"}, {"differs"}});
      double worst = 0;
      for (int step = 1; step <= 24; ++step) {
        ours.run(1), peer.run(1);
        const double differs = std::abs(ours.loss() / peer.loss - 1);
        worst = std::max(worst, differs);
        if (step > 2 && step % 4 != 0) continue;
        table.add({fmt::format("{}", step), fmt::format("{:.6f}", ours.loss()), fmt::format("{:.6f}", peer.loss),
                   fmt::format("{:.1e}", differs)});
      }
      std::remove(start.c_str());
      const double allowed = narrow ? 1e-2 : on_gpu ? 2e-3 : 2e-4;  // a GPU's GEMMs may round to 19 bits
      fmt::print("{}, {} on {}: the losses of a step differ by up to {:.1e}, allowed {:.0e}\n{}\n", size.name,
                 narrow ? "bf16" : "fp32", options.same, worst, allowed, table.text());
      right = right && worst <= allowed;
    }
  }
  return right;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("A training step on a GPU beside PyTorch and its limit; operators beside a copy");
  app.add_option("--python", options.python, "a Python with torch, for the peer; without: ours and the limit only");
  app.add_option("--peers", options.peers, "the folder of the peer's script");
  app.add_option("--model", options.models,
                 "gpt2-124m, gpt2-350m, gpt2-1.5b, llama-1b, llama-8b, qwen-1.5b; several may be given");
  app.add_option("--batch", options.batch, "rows, in place of the model's own");
  app.add_option("--same", options.same,
                 "on cpu or cuda: are the sides the same computation? A small model from the same numbers, its losses "
                 "side by side")
      .one_of({"cpu", "cuda"});
  app.add_flag("--kernels", options.kernels, "operators beside a copy");
  app.add_flag("--attention", options.attention,
               "attention into a fused gradient: cuDNN directly, through ATen with the join, in a fixed order");
  app.add_flag("--gemm-shapes", options.shapes, "GEMMs of the models' shapes beside the tensor library's");
  app.add_flag("--cuda-graphs", options.cuda_graphs,
               "ours captures forward, backward and update in a CUDA graph; no step is waited for");
  app.add_flag("!--no-gemm-autotune", options.gemm_autotune,
               "GEMMs by the algorithm that cuBLAS would take, not timed");
  app.add_flag("--save-mlp-activations", options.save_mlp_activations,
               "ours saves the output of MLP activations for backward");
  app.add_flag("--recompute-norms", options.recompute_norms, "ours recomputes the output of norms in backward");
  app.add_option("--gradients", options.gradients, "of our matrices and tables, beside fp32 masters and moments")
      .one_of({"fp32", "bf16"})
      .show_default();
  app.add_flag(
      "--bf16-states", options.bf16_states,
      "bf16 states: no fp32 masters, bf16 gradients and moments (ours rounds stochastically, PyTorch's to nearest)");
  app.add_flag("--apart", options.apart, "one side after the other, where they do not fit the GPU together");
  app.add_flag("--offload", options.offload, "ours with fp32 masters on the host, in place of the comparison")
      .excludes(app.get_option("--gradients"))
      .excludes(app.get_option("--recompute-norms"))
      .excludes(app.get_option("--save-mlp-activations"));
  app.add_flag("!--no-eager", options.eager,
               "leave out PyTorch without torch.compile: all sides share the GPU's memory");
  app.add_option("--rounds", options.rounds, "turns of each side").show_default();
  app.add_option("--steps", options.steps, "steps in a turn").show_default();
  const std::map<std::string, spec::GemmPrecision> kinds{{"same", spec::GemmPrecision::kSame},
                                                         {"fp8", spec::GemmPrecision::kFp8},
                                                         {"fp8-blocks", spec::GemmPrecision::kFp8Blocks},
                                                         {"fp8-delayed", spec::GemmPrecision::kFp8Delayed}};
  cli::add_choice(app, "--gemm", options.gemm, kinds, "of our layers: same, fp8, fp8-blocks, fp8-delayed");
  app.add_option("--json", options.json, "keep the samples in this file");
  app.add_option("--profile", options.profile, "a trace of two steps, for Perfetto");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (!options.same.empty()) return check_same(options) ? 0 : 1;
  const std::vector<Size> sizes = sizes_of(options);
  if (sizes.empty() && !options.kernels && !options.attention && !options.shapes)
    return bench::cannot_run("give --model, --kernels, --attention, --gemm-shapes or --same");
  if (const std::optional<int> status = bench::lacks_gpu()) return *status;
  nlohmann::json all;
  kernels::set_gemm_autotune(options.gemm_autotune);
  if (options.kernels) all["kernels"] = bench::print_kernels();
  if (options.attention) {
    all["attention"] =
        bench::print_attention(bench::bf16(), [](const std::function<void()>& call) { return gpu_seconds(call); });
  }
  if (options.shapes) all["gemms"] = bench::print_gemms();
  const double rate = sizes.empty() || options.offload ? 0 : copy_rate();
  for (const Size& size : sizes) {
    all[size.name] =
        options.offload ? bench::measure_offload(size, options.rounds, options.steps) : compare(size, options, rate);
  }
  if (!options.json.empty()) std::ofstream(options.json) << all.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
