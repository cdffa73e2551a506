// spec/recipe.h -- a run as one value: the sections of a recipe file.
//
//   [comm]                         auto recipe = load_recipe({.file = "recipes/comm-tour.toml"});
//   ranks = 4                      recipe.value.comm.ranks
//
// To add a section: one struct with its defaults, one describe(), a line in describe(Section<Recipe>&); what must hold
// between values goes into find_problems(). `trireme recipe docs` then lists it by itself.
// The model stands in model_config.h, the data in data.h, sections of training in optim.h, hyperparameters.h and
// train.h.
// Depends on: base (config, log, units).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/base/log.h"
#include "trireme/spec/compress.h"
#include "trireme/spec/data.h"
#include "trireme/spec/distill.h"
#include "trireme/spec/downpour.h"
#include "trireme/spec/elastic.h"
#include "trireme/spec/health.h"
#include "trireme/spec/hyperparameters.h"
#include "trireme/spec/layout_config.h"
#include "trireme/spec/model_config.h"
#include "trireme/spec/optim.h"
#include "trireme/spec/train.h"

namespace trireme::spec {

/// What a rank computes with.
enum class DeviceKind : std::uint8_t { kCpu, kCuda };
std::span<const Named<DeviceKind>> enum_names(std::type_identity<DeviceKind>);

/// Logits that the fused head computes at once, at most. Each chunk reads and writes the whole gradient of the head: a
/// GPU has room for few large ones.
constexpr std::int64_t logits_chunk_bytes(DeviceKind device) {
  return std::int64_t{device == DeviceKind::kCuda ? 1024 : 128} << 20;
}

/// [run]: what the run is called, what it computes with and where it leaves its files.
struct RunConfig {
  std::string name = "run";
  DeviceKind device = DeviceKind::kCpu;
  std::int64_t seed = 0;
  std::string out = "runs";
  bool operator==(const RunConfig&) const = default;
};

enum class Transport : std::uint8_t {
  kAuto,      ///< MPI or UCX when a launcher started this process, threads otherwise
  kThreads,   ///< ranks are threads of this process
  kMpi,       ///< ranks are processes started by mpirun or srun
  kUcx,       ///< ranks are processes started by torchrun, srun or anything that sets the same variables
  kEmulated,  ///< what `emulated.over` names, slowed down to a given latency and bandwidth
};
/// What can lie under an emulated network.
enum class Carrier : std::uint8_t { kThreads, kMpi };
std::span<const Named<Transport>> enum_names(std::type_identity<Transport>);
std::span<const Named<Carrier>> enum_names(std::type_identity<Carrier>);

/// [comm]: how ranks talk to each other.
struct CommConfig {
  Transport transport = Transport::kAuto;
  std::string interface;     // empty: all that UCX finds
  std::optional<int> ranks;  // unset: as many as were launched, one without a launcher
  std::optional<int> ranks_per_node;
  std::string algorithm = "auto";  // a name of cost/collectives.h; checked where groups are made
  std::chrono::nanoseconds deadline = std::chrono::minutes(10);
  std::optional<std::chrono::nanoseconds> spin;  // unset: 50 us while every rank has a core, else none
  std::int64_t segment = 256 << 10;              // bytes
  int flight_recorder_calls = 1000;
  bool operator==(const CommConfig&) const = default;
};

/// [emulated]: the network that comm.transport = "emulated" pretends to have.
struct EmulatedConfig {
  Carrier over = Carrier::kThreads;
  std::chrono::nanoseconds latency = std::chrono::microseconds(20);
  std::int64_t bandwidth = 1'000'000'000;  // bytes a second
  std::chrono::nanoseconds node_latency = std::chrono::microseconds(2);
  std::int64_t node_bandwidth = 10'000'000'000;
  bool operator==(const EmulatedConfig&) const = default;
};

/// [log]: what is told while the run goes on.
struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  bool operator==(const LogConfig&) const = default;
};

struct Recipe {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  CommConfig comm;
  EmulatedConfig emulated;
  LayoutConfig layout;
  PipelineConfig pipeline;
  CompressConfig compress;
  OptimConfig optim;
  LrScheduleConfig lr_schedule;
  BatchConfig batch;
  PrecisionConfig precision;
  TrainConfig train;
  DistillConfig distill;
  DownpourConfig downpour;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  HealthConfig health;
  ElasticConfig elastic;
  LogConfig log;
  bool operator==(const Recipe&) const = default;
};

void describe(config::Section<RunConfig>& section);
void describe(config::Section<CommConfig>& section);
void describe(config::Section<EmulatedConfig>& section);
void describe(config::Section<LogConfig>& section);
void describe(config::Section<Recipe>& section);
/// What other programs call keys of ours: for "did you mean".
void add_foreign_names(config::Section<Recipe>& section);

/// Every way in which values that are fine by themselves do not go together. Pure and cheap: planner and checks call it
/// in their inner loops.
std::vector<config::Problem> find_problems(const Recipe& recipe);

using LoadedRecipe = config::Loaded<Recipe>;
/// Throws config::ProblemsError with everything that is wrong. What follows from what is given is derived (derived.h).
LoadedRecipe load_recipe(const config::Input& input);
const config::Schema& recipe_schema();
/// Keys that environment variables set (TRIREME_COMM_DEADLINE, ...): for config::Input::environment.
std::vector<config::Override> recipe_environment();

}  // namespace trireme::spec
