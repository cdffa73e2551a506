// train/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
//   const auto* train = Plugin::load("runtime").function<train::Entry>(train::kEntry)();
//   start_ranks(recipe, [&](comm::Rank& rank) { train->run(request, rank); });
//
// Program and library are built together: errors are thrown through, and versions must agree.
// Depends on: base, comm, spec.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/events.h"
#include "trireme/comm/rank.h"
#include "trireme/observe/step_record.h"
#include "trireme/spec/recipe.h"

namespace trireme::checkpoint {
class MemorySnapshots;
}

namespace trireme::train {

/// A run whose world may end and be formed anew (comm/elastic_world.h); each epoch is a call of run().
struct ElasticHooks {
  std::int64_t epoch = 1;
  std::int64_t snapshot_every = 10;              ///< steps
  std::function<bool()> wants_edge;              ///< whether this world is to end at the next step edge
  std::function<void(std::int64_t step)> moved;  ///< this rank has its state, and goes on from there
  /// What survives a world: shared by the run of each epoch and whoever calls them; made by the first.
  std::shared_ptr<checkpoint::MemorySnapshots> snapshots = nullptr;
};

/// `trireme train`: called by every rank.
struct RunRequest {
  spec::Recipe recipe;
  std::filesystem::path folder;          ///< the run's directory
  bool resume = false;                   ///< go on from its newest whole checkpoint
  bool start_over = false;               ///< with resume: where none is whole, set the run aside and begin anew
  bool explain = false;                  ///< tell what a step keeps and sends, before the first
  std::int64_t profile = 0;              ///< so many steps, once the first few are over; 0: none
  int local_ranks = 1;                   ///< on this machine: they share its cores
  EventSink* trace = nullptr;            ///< told of all layers and calls; null: nobody
  std::vector<std::string> inject = {};  ///< faults, as spec/faults.h says them
  ElasticHooks* elastic = nullptr;       ///< with resume; null: the world stays as it is
};
struct RunResult {
  enum class End : std::uint8_t {
    kFinished,     ///< all steps are done
    kWasFinished,  ///< they were before
    kInterrupted,  ///< by Ctrl-C or SIGTERM; saved
    kWorldEnds,    ///< at a step edge, as ElasticHooks::wants_edge wished
  };
  End end = End::kFinished;
  std::int64_t step = 0, steps = 0;
  double loss = 0;                        ///< of the last step; 0 when there was none
  std::optional<double> validation_loss;  ///< the last one
};

/// `trireme train --memory`: one process, and no GPU.
struct MemoryRequest {
  spec::Recipe recipe;
  int ranks = 1;
};

/// `trireme eval`: called by every rank.
struct EvalRequest {
  std::filesystem::path model;           ///< a run, a checkpoint, or a Hugging Face directory
  std::filesystem::path data_of = {};    ///< the run or checkpoint whose validation data it is; empty: the model's
  std::optional<spec::DataConfig> data;  ///< instead of the run's own validation data
  std::optional<std::int64_t> seq_len;   ///< of `data`; unset: as long as the run was trained with
  bool beyond_context = false;           ///< samples may be longer than the model's max_seq_len
  std::optional<std::int64_t> samples;   ///< at most so many; unset: all, at most kMostSamples of endless data
  std::int64_t rows = 8;                 ///< at once
  spec::Precision precision = spec::Precision::kFp32;
  spec::DeviceKind device = spec::DeviceKind::kCpu;
  int tp = 1;  ///< ranks that hold a copy of the model together; copies share the samples
  int local_ranks = 1;
};
inline constexpr std::int64_t kMostSamples = 1024;
struct EvalResult {
  double loss = 0, perplexity = 0;
  std::optional<double> bits_per_byte;
  std::int64_t samples = 0;
  double targets = 0;
  std::optional<double> best_loss;         ///< of a synthetic task
  std::vector<observe::NamedLoss> losses;  ///< the terms of the total, where there are several; the main one first
};

/// `trireme verify`: called by every rank.
struct VerifyRequest {
  std::vector<spec::Recipe> recipes;  ///< each runs on all ranks; they differ in their layouts
  spec::Recipe reference;             ///< runs on rank 0 alone, once
  bool reference_alone = true;        ///< false: on all ranks, in a layout of its own
  std::int64_t steps = 5;
};
/// Relative differences up to these count as rounding.
struct VerifyTolerance {
  double loss = 0, gradients = 0, weights = 0;
};
struct VerifyStep {
  double loss = 0, reference_loss = 0, norm = 0, reference_norm = 0;
  std::string term = {};  ///< of the loss, the first that differs; empty: none does
};
/// The tensor with the largest difference, and the first in the order of the model that differs by more than rounding.
struct VerifyDifference {
  std::string name;
  double relative = 0;
  std::string first_parting;  ///< empty: none does
};
struct VerifyResult {
  bool equal = false;
  VerifyTolerance tolerance;
  std::vector<VerifyStep> steps;
  std::optional<std::int64_t> first_step;  ///< whose loss or gradient norm differs
  VerifyDifference gradients;              ///< of the first step, from equal weights
  VerifyDifference weights;                ///< after the last step
  /// With [compress]: what rank 0 compressed, and how often it or synchronisations happened. Beside a serial twin that
  /// computes every copy's gradient and the same mathematics; equal is false where nothing was compressed.
  struct Compressed {
    std::string kind;
    std::int64_t elements = 0, rounds = 0;
    double sent_bytes = 0, dense_bytes = 0;
  };
  std::optional<Compressed> compressed;
};

/// Called on every rank when a recipe has run, with its place in the request.
using OnVerified = std::function<void(std::size_t recipe, const VerifyResult& result)>;

/// `trireme convert`: one process.
struct ConvertRequest {
  std::filesystem::path from;  ///< a run, a checkpoint, or a Hugging Face directory
  std::filesystem::path to;    ///< a folder that is not there yet
  enum class Kind : std::uint8_t { kHuggingFace, kCheckpoint };
  Kind kind = Kind::kHuggingFace;
  std::string dtype = "F32";  ///< of the published tensors
  /// Matrices of attention and MLPs in fewer bits, with scales of rows or groups: models/matrix_codec.h. Hugging Face
  /// folders only.
  enum class Bits : std::uint8_t { kPlain, kInt8, kInt4, kFp8 };
  enum class Int4Layout : std::uint8_t { kGptq, kAwq };
  Bits bits = Bits::kPlain;
  Int4Layout int4_layout = Int4Layout::kGptq;
  std::int64_t group = 128;  ///< int4: inputs that share a scale
  bool symmetric = false;    ///< int4: without zero points
};
struct ConvertResult {
  std::int64_t parameters = 0, tensors = 0;
};

struct Commands {
  std::uint32_t version;
  RunResult (*run)(const RunRequest& request, comm::Rank& rank);
  EvalResult (*evaluate)(const EvalRequest& request, comm::Rank& rank);
  ConvertResult (*convert)(const ConvertRequest& request);
  void (*verify)(const VerifyRequest& request, comm::Rank& rank, const OnVerified& each);
  std::string (*memory)(const MemoryRequest& request);
  /// Of the recipe's model, also where model.init_from says it; the folder's weights and the parameters of
  /// train.freeze are looked for.
  spec::ModelShape (*shape)(const spec::Recipe& recipe);
  /// The shape that a Hugging Face config.json describes; no weights are read.
  spec::ModelShape (*published_shape)(const std::filesystem::path& config);
};
inline constexpr std::uint32_t kVersion = 12;

extern "C" const Commands* trireme_train();
using Entry = const Commands*();
inline constexpr const char* kEntry = "trireme_train";

}  // namespace trireme::train
