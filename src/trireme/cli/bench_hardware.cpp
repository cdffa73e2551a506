// trireme bench hardware: measures this machine and writes a cluster file that plan, estimate and check read.
//
// What a rank can do is measured while all ranks do it, as in training: they share the machine's memory. Ranks that a
// launcher has started on several nodes measure the network between them, and the cluster has that many nodes.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/doctor/doctor.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/measure.h"
#include "trireme/observe/machine.h"
#include "trireme/observe/run_reader.h"
#include "trireme/plan/calibrate.h"
#include "trireme/plan/from_recipe.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct HardwareOptions {
  std::string output;
  std::optional<int> ranks;
  double seconds = 0.15;
  int steps = 12;
  bool json = false;
};

/// Who measures: threads of this process, or the ranks that a launcher has started.
struct Ranks {
  int count = 1;
  int threads = 1;        ///< of each
  int local = 1;          ///< that share a machine
  bool launched = false;  ///< each is a process
};

/// Everything that was measured on one rank among all.
struct Measured {
  int nodes = 1;
  std::vector<plan::MeasuredGemm> gemms;
  double bytes_per_second = 0;  ///< of memory
  std::vector<plan::MeasuredReduction> reductions;
  std::vector<plan::MeasuredStep> steps;
};

/// Shapes as training has them: many rows with square and wide weights, few rows, weight gradients.
constexpr std::array<std::array<int, 3>, 9> kGemmShapes{{{1024, 1024, 1024},
                                                         {2048, 768, 768},
                                                         {1024, 1024, 256},
                                                         {1024, 256, 1024},
                                                         {512, 512, 512},
                                                         {2048, 256, 256},
                                                         {256, 256, 2048},
                                                         {512, 128, 128},
                                                         {128, 128, 128}}};

const device::Runtime& runtime() {
  const LoadedRuntime loaded = load_runtime();
  if (!loaded.runtime) throw ConfigError(loaded.error, loaded.hint);
  return *loaded.runtime;
}

double mean_over(comm::Rank& rank, double value) {
  rank.world().all_reduce(comm::Buffer{&value, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  return value / rank.ranks();
}

/// A triad over arrays far larger than any cache, two read and one written.
double memory_rate(double seconds) {
  constexpr std::size_t kCount = std::size_t{4} << 20;
  std::vector<double> a(kCount, 1), b(kCount, 2), c(kCount, 3);
  double best = 0;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<double> rates;
  for (int pass = 0; pass < 3 || seconds_since(begin) < 2 * seconds; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kCount; ++i) a[i] = b[i] + 0.5 * c[i];
    rates.push_back(3 * sizeof(double) * kCount / seconds_since(start));
    std::swap(a, b);
  }
  std::ranges::sort(rates);
  best = rates[rates.size() / 2];
  return a[kCount / 2] > -1 ? best : 0;  // so that nothing is left out
}

/// Nodes that the ranks are on.
int count_nodes(comm::Rank& rank) {
  const std::vector<int> nodes = rank.transport().node_of();
  const int count = 1 + *std::ranges::max_element(nodes);
  if (count > 1 && count < rank.ranks()) {
    throw ConfigError(fmt::format("{} ranks are on {} nodes: links inside nodes and between them would be measured at "
                                  "once",
                                  rank.ranks(), count),
                      "start one rank on each node");
  }
  return count;
}

void measure_rank(const HardwareOptions& options, int threads, comm::Rank& rank, Measured& out) {
  const device::Runtime& library = runtime();
  library.set_intra_op_threads(threads);
  const int nodes = count_nodes(rank);
  if (rank.rank() == 0) out.nodes = nodes;
  const bool speaks = rank.rank() == 0;
  for (const auto& [type, arithmetic] :
       {std::pair{device::kGemmF32, cost::Arithmetic::kFp32}, {device::kGemmBf16, cost::Arithmetic::kBf16}}) {
    for (const auto& [rows, columns, inner] : kGemmShapes) {
      rank.world().barrier().wait();
      const double seconds = mean_over(rank, library.gemm_seconds(rows, columns, inner, type, options.seconds));
      if (!std::isfinite(seconds))
        throw ConfigError("the tensor library cannot multiply matrices here", "see trireme doctor");
      if (speaks)
        out.gemms.push_back({{static_cast<double>(rows), static_cast<double>(columns), static_cast<double>(inner)},
                             arithmetic,
                             seconds});
    }
  }
  rank.world().barrier().wait();
  const double rate = mean_over(rank, memory_rate(options.seconds));
  if (speaks) out.bytes_per_second = rate;
  if (rank.ranks() < 2) return;
  const auto rows = comm::measure(rank, {.ops = {cost::Collective::kAllReduce},
                                         .algorithms = {cost::Algorithm::kAuto},
                                         .bytes = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20},
                                         .in_place = true,
                                         .budget_s = options.seconds});
  if (!speaks) return;
  for (const comm::Measurement& row : rows) out.reductions.push_back({static_cast<double>(row.bytes), row.seconds});
}

/// A small model; `ranks` share its steps.
struct StepShape {
  int hidden_size, num_layers, sequence, rows, ranks;
  const char* precision;
};

spec::Recipe recipe_of(const StepShape& shape, const Ranks& ranks, int steps, const std::string& folder) {
  return spec::load_recipe({.text = fmt::format(R"(
[run]
name = "calibration"
out = "{}"
[model]
family = "llama"
vocab_size = 2048
max_seq_len = {}
hidden_size = {}
num_layers = {}
num_heads = {}
num_kv_heads = {}
head_dim = 64
ffn_size = {}
[data]
seq_len = {}
synthetic.kind = "markov"
synthetic.vocab_size = 64
[batch]
global_batch_tokens = {}
[comm]
ranks = {}
transport = "{}"
[precision]
compute = "{}"
[train]
steps = {}
hash_every = 0
[checkpoint]
every = 1000000
)",
                                                folder, shape.sequence, shape.hidden_size, shape.num_layers,
                                                shape.hidden_size / 64, shape.hidden_size / 64, 4 * shape.hidden_size,
                                                shape.sequence, shape.sequence * shape.rows, shape.ranks,
                                                ranks.launched ? "auto" : "threads", shape.precision, steps)})
      .value;
}

double median_step(const std::filesystem::path& folder) {
  std::vector<double> seconds;
  for (const observe::StepRecord& step : observe::read_run(folder).steps) {
    if (step.step > 3) seconds.push_back(step.seconds);  // the first ones warm up
  }
  if (seconds.empty()) throw ConfigError("no steps were measured", "give --steps 8 or more");
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// A folder that all ranks see: of this process's machine, or, where ranks are processes, beside the output.
std::filesystem::path calibration_folder(const HardwareOptions& options, const Ranks& ranks, comm::Rank& rank) {
  double id = rank.rank() == 0 ? ::getpid() : 0;
  rank.world().all_reduce(comm::Buffer{&id, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  const std::filesystem::path parent =
      ranks.launched ? std::filesystem::absolute(options.output).parent_path() : std::filesystem::temp_directory_path();
  return parent / fmt::format("trireme-calibration-{:.0f}", id);
}

/// Real steps of small models on all ranks.
void measure_steps(const HardwareOptions& options, const Ranks& ranks, const train::Commands& commands,
                   comm::Rank& rank, Measured& out) {
  const std::filesystem::path folder = calibration_folder(options, ranks, rank);
  std::vector<StepShape> shapes;
  for (const char* precision : {"fp32", "bf16"}) {
    shapes.push_back({128, 2, 128, 8, ranks.count, precision});
    shapes.push_back({256, 4, 128, 8, ranks.count, precision});
    shapes.push_back({256, 2, 512, 4, ranks.count, precision});
    shapes.push_back({512, 2, 128, 4, ranks.count, precision});
  }
  int number = 0;
  for (const StepShape& shape : shapes) {
    const spec::Recipe recipe = recipe_of(shape, ranks, options.steps, folder.string());
    const std::filesystem::path run = folder / fmt::format("{}", number++);
    (void)commands.run({.recipe = recipe, .folder = run, .resume = false, .local_ranks = ranks.local}, rank);
    if (rank.rank() != 0) continue;
    const plan::Job job = plan::job_of(recipe, *spec::shape_of(recipe.model));
    out.steps.push_back({fmt::format("width {}, {} layers, {} x {} tokens, {} ranks, {}", shape.hidden_size,
                                     shape.num_layers, shape.rows, shape.sequence, shape.ranks, shape.precision),
                         job, plan::config_of(recipe, job, shape.ranks), median_step(run)});
  }
  rank.world().barrier().wait();  // nobody still reads or writes there
  std::error_code ignored;
  if (rank.rank() == 0) std::filesystem::remove_all(folder, ignored);
}

cost::Hardware hardware_of(const Measured& measured, int ranks, const std::string& name) {
  const observe::Machine machine = observe::this_machine();
  cost::Hardware hardware;
  cost::Device& device = hardware.device;
  device.name = name + "-core";
  for (const plan::MeasuredGemm& one : measured.gemms) {
    double& peak = one.arithmetic == cost::Arithmetic::kFp32 ? device.fp32_tflops : device.bf16_tflops;
    peak = std::max(peak, one.gemm.flops() / one.seconds / 1e12);
  }
  const std::uint64_t memory = std::min(machine.memory, machine.memory_limit.value_or(machine.memory));
  const int per_node = ranks / measured.nodes;
  device.memory_gib = static_cast<double>(memory) / 1073741824.0 / per_node;
  device.memory_gb_per_s = measured.bytes_per_second / 1e9;
  device.software_gb = 0.1;
  device.efficiency = {.matmul = 0.95,
                       .memory = 0.9,
                       .attention = 0.3,
                       .link = 1,
                       .network = 1,
                       .overlap = 0.1,
                       .gather = 1,
                       .kernel_seconds = 5e-6};
  cost::Cluster& cluster = hardware.cluster;
  cluster.name = name;
  cluster.device = name + ".device.toml";
  cluster.gpus = ranks;
  cluster.gpus_per_node = per_node;
  cluster.link = {.kind = "memory of this machine", .gb_per_s = measured.bytes_per_second / 1e9, .latency_us = 1};
  if (!measured.reductions.empty()) {
    const plan::LinkFit fitted = plan::fit_link(measured.reductions, ranks);
    if (measured.nodes > 1) {
      cluster.network = {.kind = "network", .gb_per_s = fitted.gb_per_s, .latency_us = fitted.latency_us};
    } else {
      cluster.link.gb_per_s = fitted.gb_per_s;
      cluster.link.latency_us = fitted.latency_us;
    }
  }
  cluster.reliability.restart_seconds = 30;
  cluster.reliability.storage_gb_per_s = 0.5;
  return hardware;
}

std::string gemms_text(const cost::Hardware& hardware, const Measured& measured, const std::string& prefix) {
  TextTable table({{"GEMM"}, {"type"}, {"GFLOP/s", TextTable::Align::kRight}, {"predicted", TextTable::Align::kRight}});
  for (const plan::MeasuredGemm& one : measured.gemms) {
    const double predicted = cost::matmul_seconds(hardware, one.arithmetic, one.gemm);
    table.add({fmt::format("{:.0f} x {:.0f} x {:.0f}", one.gemm.rows, one.gemm.columns, one.gemm.inner),
               one.arithmetic == cost::Arithmetic::kFp32 ? "fp32" : "bf16",
               fmt::format("{:.1f}", one.gemm.flops() / one.seconds / 1e9),
               fmt::format("{:.1f}", one.gemm.flops() / predicted / 1e9)});
  }
  return table.text(prefix);
}

std::string steps_text(const cost::Hardware& hardware, const Measured& measured, const std::string& prefix) {
  TextTable table({{"step"}, {"measured", TextTable::Align::kRight}, {"predicted", TextTable::Align::kRight}});
  for (const plan::MeasuredStep& one : measured.steps)
    table.add({one.name, short_seconds(one.seconds),
               short_seconds(plan::estimate(hardware, one.job, one.config).step_seconds())});
  return table.text(prefix);
}

/// Two files: the cluster, and its device beside it.
void write_files(const HardwareOptions& options, const cost::Hardware& hardware, const Measured& measured) {
  const std::filesystem::path path = options.output;
  const std::string head = "# Measured by `trireme bench hardware`; all ranks worked at once.\n";
  write_text_file(path.parent_path() / hardware.cluster.device,
                  fmt::format("{}{}{}\n{}", head, gemms_text(hardware, measured, "#   "),
                              steps_text(hardware, measured, "#   "), config::to_toml(hardware.device)));
  std::string reductions;
  for (const plan::MeasuredReduction& one : measured.reductions)
    reductions += fmt::format("#   all-reduce of {}: {}\n", short_bytes(one.bytes), short_seconds(one.seconds));
  write_text_file(path, head + reductions + "\n" + config::to_toml(hardware.cluster));
}

ordered_json to_json(const cost::Hardware& hardware, const Measured& measured,
                     const plan::FittedEfficiency& calibration) {
  const cost::Efficiency& efficiency = calibration.efficiency;
  ordered_json out{{"ranks", hardware.cluster.gpus},
                   {"fp32_tflops", hardware.device.fp32_tflops},
                   {"bf16_tflops", hardware.device.bf16_tflops},
                   {"memory_gb_per_s", hardware.device.memory_gb_per_s},
                   {"link_gb_per_s", hardware.cluster.link.gb_per_s},
                   {"link_latency_us", hardware.cluster.link.latency_us},
                   {"network_gb_per_s", hardware.cluster.network.gb_per_s},
                   {"network_latency_us", hardware.cluster.network.latency_us},
                   {"efficiency",
                    {{"matmul", efficiency.matmul},
                     {"memory", efficiency.memory},
                     {"attention", efficiency.attention},
                     {"overlap", efficiency.overlap},
                     {"kernel_seconds", efficiency.kernel_seconds}}},
                   {"gemm_error", calibration.gemm_error},
                   {"steps_error", calibration.steps_error},
                   {"gemms", ordered_json::array()},
                   {"steps", ordered_json::array()}};
  for (const plan::MeasuredGemm& one : measured.gemms)
    out["gemms"].push_back({{"rows", one.gemm.rows},
                            {"columns", one.gemm.columns},
                            {"inner", one.gemm.inner},
                            {"type", one.arithmetic == cost::Arithmetic::kFp32 ? "fp32" : "bf16"},
                            {"seconds", one.seconds},
                            {"predicted_seconds", cost::matmul_seconds(hardware, one.arithmetic, one.gemm)}});
  for (const plan::MeasuredStep& one : measured.steps)
    out["steps"].push_back({{"name", one.name},
                            {"seconds", one.seconds},
                            {"predicted_seconds", plan::estimate(hardware, one.job, one.config).step_seconds()}});
  return out;
}

Ranks ranks_of(const HardwareOptions& options) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::Launch::Kind::kSingle) {
    const int count = options.ranks.value_or(usable_cores());
    return {.count = count, .threads = std::max(1, usable_cores() / count), .local = count};
  }
  if (options.ranks && *options.ranks != launch.ranks)
    throw ConfigError(fmt::format("--ranks is {}, but {} ranks were started", *options.ranks, launch.ranks),
                      "leave --ranks out");
  if (options.output.empty())
    throw ConfigError("ranks on several nodes need a place that all of them see", "name the cluster file with -o");
  const int local = std::max(1, launch.local_ranks);
  return {.count = launch.ranks, .threads = std::max(1, usable_cores() / local), .local = local, .launched = true};
}

int run(const HardwareOptions& options, Context& context) {
  const Ranks ranks = ranks_of(options);
  const std::string stem =
      options.output.empty() ? "this-machine" : std::filesystem::path(options.output).stem().string();
  if (!options.output.empty() && std::filesystem::path(options.output).extension() != ".toml")
    throw ConfigError(fmt::format("-o {} does not end in .toml", options.output),
                      fmt::format("use -o {}.toml", options.output));
  spec::Recipe recipe;
  if (!ranks.launched) {
    recipe.comm.ranks = ranks.count;
    recipe.comm.transport = spec::Transport::kThreads;
  }
  Measured measured;
  const LogLevel level = log_level();
  set_log_level(LogLevel::kWarn);  // of each small run
  bool speaks = false;
  const train::Commands& commands = load_train();
  start_ranks(recipe, [&](comm::Rank& rank) {
    measure_rank(options, ranks.threads, rank, measured);
    measure_steps(options, ranks, commands, rank, measured);
    if (rank.rank() == 0) speaks = true;
  });
  set_log_level(level);
  if (!speaks) return kExitFine;
  cost::Hardware hardware = hardware_of(measured, ranks.count, stem);
  const plan::FittedEfficiency calibration = plan::calibrate(hardware, measured.gemms, measured.steps);
  hardware.device.efficiency = calibration.efficiency;
  if (!options.output.empty()) write_files(options, hardware, measured);
  if (options.json) {
    context.out << to_json(hardware, measured, calibration).dump(2) << '\n';
    return kExitFine;
  }
  const cost::Device& device = hardware.device;
  fmt::print(context.out,
             "{} of {} each, all at once: fp32 {:.3g} TFLOP/s, bf16 {:.3g}, memory {:.3g} GB/s, {} {:.3g} GB/s after "
             "{:.3g} us\n\n{}\n{}\n  predictions are off by {:.1f} % for GEMMs and {:.1f} % for steps, at the median\n",
             counted(static_cast<std::size_t>(ranks.count), "rank"),
             counted(static_cast<std::size_t>(ranks.threads), "thread"), device.fp32_tflops, device.bf16_tflops,
             device.memory_gb_per_s, measured.nodes > 1 ? "network" : "link",
             measured.nodes > 1 ? hardware.cluster.network.gb_per_s : hardware.cluster.link.gb_per_s,
             measured.nodes > 1 ? hardware.cluster.network.latency_us : hardware.cluster.link.latency_us,
             gemms_text(hardware, measured, "  "), steps_text(hardware, measured, "  "), 100 * calibration.gemm_error,
             100 * calibration.steps_error);
  if (!options.output.empty())
    fmt::print(context.out, "\nwritten: {} and {}; try: trireme plan --cluster {} --model gpt2-124m\n", options.output,
               hardware.cluster.device, options.output);
  return kExitFine;
}

}  // namespace

void add_bench_hardware(Command& bench, Context& context) {
  Command& command = bench.add_subcommand(
      "hardware",
      "Measure this machine's GEMMs, memory, collectives and steps, and write a cluster file for plan and check");
  const auto options = std::make_shared<HardwareOptions>();  // shared with the callback, which outlives this function
  command.add_option("-o,--output", options->output, "The cluster file; its device's file comes to stand beside it")
      .type_name("FILE.toml");
  command.add_option("--ranks", options->ranks, "Ranks that the machine is shared by; default: one for each core")
      .within(1, 4096)
      .type_name("N");
  command.add_option("--seconds", options->seconds, "For each GEMM; default 0.15").within(0.01, 60.0).type_name("S");
  command.add_option("--steps", options->steps, "Of each small model; default 12").within(6, 10000).type_name("N");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(
      "Ranks that a launcher has started, one on each node, measure the network between them: the cluster has that "
      "many "
      "nodes. -o must then be seen by all of them.\n\n"
      "Examples:\n  trireme bench hardware -o my.toml\n  trireme plan --cluster my.toml --model gpt2-124m --write "
      "recipe.toml");
  command.callback([&context, options] { context.run = [&context, options] { return run(*options, context); }; });
}

}  // namespace trireme::cli
