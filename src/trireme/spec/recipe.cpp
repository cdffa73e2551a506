#include "trireme/spec/recipe.h"

#include <fmt/format.h>

#include "trireme/base/env.h"
#include "trireme/base/units.h"

namespace trireme::spec {

using namespace std::chrono_literals;

namespace {
constexpr Named<Transport> kTransports[] = {
    {"auto", Transport::kAuto},
    {"threads", Transport::kThreads},
    {"mpi", Transport::kMpi},
    {"emulated", Transport::kEmulated},
};
constexpr Named<Carrier> kCarriers[] = {{"threads", Carrier::kThreads}, {"mpi", Carrier::kMpi}};
constexpr Named<DeviceKind> kDevices[] = {{"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}};
constexpr int kMostRanks = 1 << 20;
}  // namespace

std::span<const Named<Transport>> enum_names(std::type_identity<Transport>) { return kTransports; }
std::span<const Named<DeviceKind>> enum_names(std::type_identity<DeviceKind>) { return kDevices; }
std::span<const Named<Carrier>> enum_names(std::type_identity<Carrier>) { return kCarriers; }

void describe(config::Section<RunConfig>& section) {
  section.meaning("what the run is called, what it computes with and where it leaves its files");
  section.field("name", &RunConfig::name, "folder of this run below run.out");
  section.field("device", &RunConfig::device,
                "what computes: the CPU, or an NVIDIA GPU, which ranks that are threads share");
  section.field("seed", &RunConfig::seed, "from which every random number follows").at_least(0);
  section.field("out", &RunConfig::out, "folder that holds the folders of runs");
}

void describe(config::Section<CommConfig>& section) {
  section.meaning("how ranks talk to each other");
  section.field("transport", &CommConfig::transport,
                "what carries the data: threads of this process, MPI, or one of these made as slow as a network; auto "
                "takes mpi when mpirun or srun started the program, threads otherwise");
  section
      .field("ranks", &CommConfig::ranks,
             "how many ranks to start: threads, or with transport mpi processes under mpirun; unset: as many as the "
             "launcher started, one without a launcher")
      .range(1, kMostRanks);
  section
      .field("ranks_per_node", &CommConfig::ranks_per_node,
             "ranks r with the same r / ranks_per_node count as one node, for hierarchical algorithms and the emulated "
             "network; unset: what the launcher says")
      .range(1, kMostRanks);
  section.field(
      "algorithm", &CommConfig::algorithm,
      "for every collective: auto chooses by size and ranks with the cost model; or ring, recursive_doubling, "
      "halving_doubling, binomial, scatter_all_gather, bruck, pairwise, linear, hierarchical, direct, native");
  section.field("deadline", &CommConfig::deadline, "how long a call may take before every rank is told who is missing")
      .at_least(1ms);
  section.field(
      "spin", &CommConfig::spin,
      "how long a waiting rank watches before it sleeps: short waits end sooner, at the cost of a busy core; unset: "
      "50us while there is a core for every rank");
  section
      .field("segment", &CommConfig::segment,
             "long transfers are cut into pieces of this size, so that combining one overlaps moving the next")
      .unit(Unit::kBytes)
      .at_least(1024);
  section
      .field("flight_recorder_calls", &CommConfig::flight_recorder_calls,
             "how many of its last calls each rank remembers for the report after a failure")
      .range(1, 1'000'000);
}

void describe(config::Section<EmulatedConfig>& section) {
  section.meaning("the network that comm.transport = \"emulated\" pretends to have");
  section.field("over", &EmulatedConfig::over, "the transport that really carries the data");
  section.field("latency", &EmulatedConfig::latency, "of a message between nodes").at_most(1min);
  section.field("bandwidth", &EmulatedConfig::bandwidth, "of each rank between nodes")
      .unit(Unit::kBandwidth)
      .at_least(1);
  section.field("node_latency", &EmulatedConfig::node_latency, "of a message inside a node").at_most(1min);
  section.field("node_bandwidth", &EmulatedConfig::node_bandwidth, "of each rank inside a node")
      .unit(Unit::kBandwidth)
      .at_least(1);
}

void describe(config::Section<LogConfig>& section) {
  section.meaning("what is told while the run goes on");
  section.field("level", &LogConfig::level, "the least that is told; --verbose, --quiet and TRIREME_LOG beat it");
}

void describe(config::Section<Recipe>& section) {
  section.section("run", &Recipe::run);
  section.section("model", &Recipe::model);
  section.section("data", &Recipe::data);
  section.section("comm", &Recipe::comm);
  section.section("emulated", &Recipe::emulated);
  section.section("layout", &Recipe::layout);
  section.section("pipeline", &Recipe::pipeline);
  section.section("optim", &Recipe::optim);
  section.section("lr_schedule", &Recipe::lr_schedule);
  section.section("batch", &Recipe::batch);
  section.section("precision", &Recipe::precision);
  section.section("train", &Recipe::train);
  section.section("eval", &Recipe::eval);
  section.section("checkpoint", &Recipe::checkpoint);
  section.section("health", &Recipe::health);
  section.section("log", &Recipe::log);
}

std::vector<config::Problem> find_problems(const Recipe& recipe) {
  std::vector<config::Problem> problems;
  const RunConfig& run = recipe.run;
  const CommConfig& comm = recipe.comm;
  const EmulatedConfig& emulated = recipe.emulated;
  if (run.name.empty() || run.name.find('/') != std::string::npos || run.name == "." || run.name == "..") {
    problems.push_back({.key = "run.name",
                        .reason = fmt::format("\"{}\" cannot be the name of a folder", run.name),
                        .hint = "use letters, digits, '-' and '_'"});
  }
  if (run.out.empty()) {
    problems.push_back({.key = "run.out", .reason = "is empty", .hint = "set run.out = \"runs\""});
  }
  for (config::Problem& problem : find_problems(recipe.model)) problems.push_back(std::move(problem));
  for (config::Problem& problem : find_problems(recipe.data, recipe.model)) problems.push_back(std::move(problem));
  const bool is_emulated = comm.transport == Transport::kEmulated;
  if (comm.ranks && comm.ranks_per_node && *comm.ranks_per_node > *comm.ranks) {
    problems.push_back(
        {.key = "comm.ranks_per_node",
         .reason = fmt::format("is {}, more than the {} ranks there are", *comm.ranks_per_node, *comm.ranks),
         .hint = fmt::format("set comm.ranks_per_node = {}", *comm.ranks)});
  }
  if (comm.algorithm.empty()) {
    problems.push_back({.key = "comm.algorithm", .reason = "is empty", .hint = "set comm.algorithm = \"auto\""});
  }
  if (comm.spin && *comm.spin >= comm.deadline) {
    problems.push_back({.key = "comm.spin",
                        .reason = fmt::format("is {}, but comm.deadline = {} ends every wait before that",
                                              exact_duration(*comm.spin), exact_duration(comm.deadline)),
                        .hint = fmt::format("set comm.spin = \"{}\"", exact_duration(comm.deadline / 2))});
  }
  // A key that is given and then ignored is how people measure the wrong thing for a week.
  if (!is_emulated && emulated != EmulatedConfig{}) {
    problems.push_back({.key = "emulated",
                        .reason = fmt::format("is given, but comm.transport = \"{}\" does not use it",
                                              name_in<Transport>(kTransports, comm.transport)),
                        .hint = "set comm.transport = \"emulated\""});
  }
  for (const auto& found :
       {find_problems(recipe.optim), find_problems(recipe.lr_schedule, recipe.batch), find_problems(recipe.precision),
        find_problems(recipe.train), find_problems(recipe.checkpoint), find_problems(recipe.health),
        find_problems(recipe.layout, recipe.pipeline, comm.ranks)}) {
    problems.insert(problems.end(), found.begin(), found.end());
  }
  if (recipe.precision.gemm != GemmPrecision::kSame && run.device == DeviceKind::kCpu) {
    problems.push_back({.key = "precision.gemm",
                        .reason = "asks for GEMMs of 8-bit floats, which a CPU does not make",
                        .hint = "set run.device = \"cuda\", or precision.gemm = \"same\""});
  }
  if (recipe.precision.master_weights != MasterWeights::kFp32) {
    const auto master_weights =
        name_in(enum_names(std::type_identity<MasterWeights>()), recipe.precision.master_weights);
    if (recipe.optim.kind != OptimizerKind::kAdam && recipe.optim.kind != OptimizerKind::kAdamw) {
      problems.push_back(
          {.key = "precision.master_weights",
           .reason = fmt::format("is {}, but only adam and adamw round their updates stochastically", master_weights),
           .hint = "set optim.kind = \"adamw\", or precision.master_weights = \"fp32\""});
    }
    if (recipe.layout.pp > 1) {
      problems.push_back({.key = "precision.master_weights",
                          .reason = fmt::format("is {}, but the {} stages of layout.pp sum and predict fp32 weights",
                                                master_weights, recipe.layout.pp),
                          .hint = "set layout.pp = 1, or precision.master_weights = \"fp32\""});
    }
  }
  const bool adapts = recipe.optim.kind == OptimizerKind::kLamb || recipe.optim.kind == OptimizerKind::kLars;
  if (recipe.layout.delayed_update && adapts) {
    problems.push_back({.key = "layout.delayed_update",
                        .reason = "an update that runs beside the next step cannot sum over ranks, as LAMB and LARS do",
                        .hint = "set optim.kind = \"adamw\""});
  }
  return problems;
}

LoadedRecipe load_recipe(const config::Input& input) { return config::load<Recipe>(input); }

std::vector<config::Override> recipe_environment() {
  constexpr std::pair<const char*, const char*> kVariables[] = {
      {"TRIREME_COMM_DEADLINE", "comm.deadline"},
      {"TRIREME_COMM_ALGORITHM", "comm.algorithm"},
  };
  std::vector<config::Override> out;
  for (const auto& [variable, key] : kVariables) {
    if (const auto value = env(variable)) out.push_back({fmt::format("{}={}", key, *value), variable});
  }
  return out;
}

const config::Schema& recipe_schema() {
  static const config::Schema schema = config::schema_of<Recipe>();
  return schema;
}

}  // namespace trireme::spec
