#include "trireme/spec/recipe.h"

#include <fmt/format.h>

#include "trireme/base/env.h"
#include "trireme/base/units.h"
#include "trireme/spec/derived.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {

using namespace std::chrono_literals;

namespace {
using Problems = std::vector<config::Problem>;
constexpr Named<Transport> kTransports[] = {
    {"auto", Transport::kAuto}, {"threads", Transport::kThreads},   {"mpi", Transport::kMpi},
    {"ucx", Transport::kUcx},   {"emulated", Transport::kEmulated},
};
constexpr Named<Carrier> kCarriers[] = {{"threads", Carrier::kThreads}, {"mpi", Carrier::kMpi}};
constexpr Named<DeviceKind> kDevices[] = {{"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}};
constexpr int kMostRanks = 1 << 20;

Problems distill_problems(const Recipe& recipe) {
  Problems problems;
  const DistillConfig& distill = recipe.distill;
  if (!distill.used()) {
    if (distill != DistillConfig{})
      problems.push_back({.key = "distill",
                          .reason = "is given without a teacher, so nothing uses it",
                          .hint = "set distill.teacher to a run, a checkpoint or a Hugging Face folder"});
    return problems;
  }
  if (recipe.run.device == DeviceKind::kCuda)
    problems.push_back({.key = "distill.teacher",
                        .reason = "teaches on the CPU only: the plan of GPU memory does not know it",
                        .hint = "set run.device = \"cpu\""});
  if (distill.weight == 1 && recipe.model.z_loss.value_or(0) > 0)
    problems.push_back({.key = "distill.weight",
                        .reason = "is 1, but model.z_loss is added to the loss against the data's targets",
                        .hint = "set model.z_loss = 0"});
  return problems;
}
}  // namespace

std::span<const Named<Transport>> enum_names(std::type_identity<Transport>) { return kTransports; }
std::span<const Named<DeviceKind>> enum_names(std::type_identity<DeviceKind>) { return kDevices; }
std::span<const Named<Carrier>> enum_names(std::type_identity<Carrier>) { return kCarriers; }

void describe(config::Section<RunConfig>& section) {
  section.meaning("name, device, seed and output folder of the run");
  section.field("name", &RunConfig::name, "name of the run: its folder below run.out");
  section.field("device", &RunConfig::device,
                "cpu, or cuda: an NVIDIA GPU for each rank that is a process; ranks that are threads share one");
  section.field("seed", &RunConfig::seed, "random seed of initialisation, data order and dropout").at_least(0);
  section.field("out", &RunConfig::out, "folder that holds the folders of runs");
}

void describe(config::Section<CommConfig>& section) {
  section.meaning("communication between ranks");
  section.field(
      "transport", &CommConfig::transport,
      "what carries messages: threads of this process, MPI, UCX (TCP or RDMA between processes, without MPI), or "
      "threads or MPI slowed down to a network of [emulated]; auto: mpi when mpirun or srun --mpi=pmix started the "
      "program, ucx when torchrun or srun did, threads otherwise");
  section.field(
      "interface", &CommConfig::interface,
      "network interfaces for transport ucx: names such as eth0 or mlx5_0:1, separated by commas, or a network "
      "such as 10.1.0.0/16 or fd00:7::/64, IPv6 included; unset: all that UCX finds");
  section
      .field("ranks", &CommConfig::ranks,
             "world size: ranks to start, as threads or, with transport mpi or ucx, as processes of this machine; "
             "unset: as many "
             "as the launcher started, 1 without a launcher")
      .range(1, kMostRanks);
  section
      .field("ranks_per_node", &CommConfig::ranks_per_node,
             "ranks r with the same r / ranks_per_node count as one node, for hierarchical algorithms and the emulated "
             "network; unset: what the launcher says")
      .range(1, kMostRanks);
  section.field(
      "algorithm", &CommConfig::algorithm,
      "collective algorithm: auto chooses by size and ranks with the cost model; or ring, recursive_doubling, "
      "halving_doubling, binomial, scatter_all_gather, bruck, pairwise, linear, hierarchical, direct, native");
  section
      .field("deadline", &CommConfig::deadline,
             "timeout of a communication call; then every rank reports which ranks are missing")
      .at_least(1ms);
  section.field("spin", &CommConfig::spin,
                "how long a waiting rank polls before it sleeps: lower latency at the cost of a busy core; unset: 50us "
                "while there is a core for every rank, else 0s");
  section
      .field(
          "segment", &CommConfig::segment,
          "long messages are pipelined in segments of this size, so that reducing one overlaps with sending the next")
      .unit(Unit::kBytes)
      .at_least(1024);
  section
      .field("flight_recorder_calls", &CommConfig::flight_recorder_calls,
             "calls kept in the flight recorder of each rank, for the report after a failure")
      .range(1, 1'000'000);
}

void describe(config::Section<EmulatedConfig>& section) {
  section.meaning("the network that comm.transport = \"emulated\" imitates");
  section.field("over", &EmulatedConfig::over, "the transport that carries the messages");
  section.field("latency", &EmulatedConfig::latency, "latency of a message between nodes").at_most(1min);
  section.field("bandwidth", &EmulatedConfig::bandwidth, "bandwidth of each rank between nodes")
      .unit(Unit::kBandwidth)
      .at_least(1);
  section.field("node_latency", &EmulatedConfig::node_latency, "latency of a message inside a node").at_most(1min);
  section.field("node_bandwidth", &EmulatedConfig::node_bandwidth, "bandwidth of each rank inside a node")
      .unit(Unit::kBandwidth)
      .at_least(1);
}

void describe(config::Section<LogConfig>& section) {
  section.meaning("log messages on the terminal");
  section.field("level", &LogConfig::level, "lowest level that is printed; --verbose, --quiet and TRIREME_LOG beat it");
}

void describe(config::Section<Recipe>& section) {
  section.section("run", &Recipe::run);
  section.section("model", &Recipe::model);
  section.section("experts", &Recipe::model, &ModelConfig::experts);
  section.section("data", &Recipe::data);
  section.section("comm", &Recipe::comm);
  section.section("emulated", &Recipe::emulated);
  section.section("layout", &Recipe::layout);
  section.section("pipeline", &Recipe::pipeline);
  section.section("compress", &Recipe::compress);
  section.section("optim", &Recipe::optim);
  section.section("lr_schedule", &Recipe::lr_schedule);
  section.section("batch", &Recipe::batch);
  section.section("precision", &Recipe::precision);
  section.section("train", &Recipe::train);
  section.section("distill", &Recipe::distill);
  section.section("downpour", &Recipe::downpour);
  section.section("eval", &Recipe::eval);
  section.section("checkpoint", &Recipe::checkpoint);
  section.section("health", &Recipe::health);
  section.section("elastic", &Recipe::elastic);
  section.section("log", &Recipe::log);
  section.retired("schedule", "lr_schedule");
  section.retired("latent", "model.mla");
  section.retired("mla", "model.mla");
  section.retired("moe", "experts");
  section.retired("optimizer", "optim");
  section.retired("training", "train");
  section.retired("scheduler", "lr_schedule");
  section.retired("lr_scheduler", "lr_schedule");
  section.retired("parallel", "layout");
  section.retired("parallelism", "layout");
  section.retired("distributed", "comm");
  section.retired("dataset", "data");
  section.retired("logging", "log");
  section.retired("evaluation", "eval");
  add_foreign_names(section);
  section.reserved("serve", "the inference server, which takes flags so far: trireme serve --help");
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
  // Beside a folder's experts single keys of theirs may be given: who opens it looks at what comes of it. With sizes of
  // their own they are looked at with the model's shape.
  const bool of_folder = recipe.model.init_from && !recipe.model.init_dense && !recipe.model.experts.used();
  if (!of_folder && (recipe.model.init_from || !recipe.model.experts.used()))
    for (config::Problem& problem : find_problems(recipe.model.experts)) problems.push_back(std::move(problem));
  for (config::Problem& problem : find_problems(recipe.data, recipe.model)) problems.push_back(std::move(problem));
  const bool is_emulated = comm.transport == Transport::kEmulated;
  if (comm.ranks && comm.ranks_per_node && *comm.ranks_per_node > *comm.ranks) {
    problems.push_back(
        {.key = "comm.ranks_per_node",
         .reason = fmt::format("is {}, more than the {} ranks there are", *comm.ranks_per_node, *comm.ranks),
         .hint = fmt::format("set comm.ranks_per_node = {}", *comm.ranks)});
  }
  if (!comm.interface.empty() && comm.transport != Transport::kUcx && comm.transport != Transport::kAuto) {
    problems.push_back({.key = "comm.interface",
                        .reason = fmt::format("is given, but comm.transport = \"{}\" does not use it",
                                              name_in<Transport>(kTransports, comm.transport)),
                        .hint = "set comm.transport = \"ucx\""});
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
  if (recipe.train.mode != TrainMode::kDownpour && recipe.downpour != DownpourConfig{}) {
    problems.push_back({.key = "downpour",
                        .reason = fmt::format("is given, but train.mode = \"{}\" does not use it",
                                              name_in(enum_names(std::type_identity<TrainMode>()), recipe.train.mode)),
                        .hint = "set train.mode = \"downpour\""});
  }
  for (config::Problem& problem : distill_problems(recipe)) problems.push_back(std::move(problem));
  for (const auto& found :
       {find_problems(recipe.optim), find_problems(recipe.lr_schedule, recipe.batch), find_problems(recipe.precision),
        find_problems(recipe.train), find_problems(recipe.checkpoint), find_problems(recipe.health),
        find_problems(recipe.layout, comm.ranks), find_problems(recipe.compress), find_problems(recipe.elastic),
        find_problems(recipe.downpour)}) {
    problems.insert(problems.end(), found.begin(), found.end());
  }
  for (config::Problem& problem :
       problems_of(find_refusals({.recipe = recipe}, RuleNeeds::kRecipe, RuleNeeds::kRecipe)))
    problems.push_back(std::move(problem));
  return problems;
}

LoadedRecipe load_recipe(const config::Input& input) {
  LoadedRecipe loaded;
  Problems problems;
  std::vector<std::string> said;
  loaded.origins = config::read_into(recipe_schema(), &loaded.value, input, problems);
  Problems found = derive(loaded, input, /*ranks=*/0, said);
  for (config::Problem& problem : find_problems(loaded.value)) found.push_back(std::move(problem));
  config::add_cross_problems(std::move(found), loaded.origins, input, problems);
  if (!problems.empty()) throw config::ProblemsError(config::title(input), std::move(problems));
  return loaded;
}

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
