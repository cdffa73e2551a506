// checkpoint/open_model.h -- a model from wherever it is, on any device and over any ranks: a run, one of its
// checkpoints, or a Hugging Face directory.
//
//   open_model(path, {.device = at::Device(at::kCUDA, 0), .build = {.parallel = &groups->parallel}})
//
// A rank reads what its placements give it, nothing else.
// Depends on: base, formats, models, spec.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trireme/models/model.h"
#include "trireme/spec/recipe.h"

namespace trireme::checkpoint {

class StoredWeights;

struct OpenOptions {
  nn::Precision precision = nn::Precision::kFp32;
  at::Device device = at::kCPU;
  models::BuildOptions build = {};  ///< build.parallel: the ranks that hold the model together
  /// False: no master weights beside values of 16 bits, which take three times the memory; for inference.
  bool masters = true;
  std::optional<spec::ModelShape> shape = {};  ///< instead of what is stored: with dropout, say; the same weights
  /// Parameters that get no memory and no numbers: whoever says so brings them (OpenedModel::weights).
  std::function<bool(const nn::Param& param)> left_out = nullptr;
};

struct OpenedModel {
  std::unique_ptr<models::Model> model;
  std::optional<spec::Recipe> recipe;            ///< of a run or checkpoint
  std::optional<std::string> tokenizer;          ///< a file, or "bytes"; none: not known
  std::string what;                              ///< "step 200 of runs/tiny", for people
  std::shared_ptr<const StoredWeights> weights;  ///< that it was read from; shared with who reads more, beside it
};

/// The shape alone, without reading weights. ConfigError naming what `path` could be when it is none of them.
spec::ModelShape stored_shape(const std::filesystem::path& path);
/// Whether its matrices are in fewer bits: models/quantised_tensors.h. ConfigError for kinds that are not read.
bool is_quantised(const std::filesystem::path& path);
/// Shape and weights. Each rank by itself: nothing is exchanged.
OpenedModel open_model(const std::filesystem::path& path, const OpenOptions& options);

}  // namespace trireme::checkpoint
