// checkpoint/stored_weights.h -- the weights of a stored model without the model: whichever stretch of them is asked
// for.
//
// For models larger than memory: a rank reads its own part of each parameter, a conversion a few rows at a time.
// Depends on: base, formats, models, nn, spec.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/formats/checkpoint_folder.h"
#include "trireme/formats/hf_directory.h"
#include "trireme/models/published.h"
#include "trireme/models/quantised_tensors.h"
#include "trireme/spec/recipe.h"

namespace trireme::checkpoint {

/// Which of a checkpoint's tensors are the weights that one evaluates.
enum class StoredAverage {
  kNone,          ///< those that were trained
  kEma,           ///< eval.weights = "ema"
  kScheduleFree,  ///< x of schedule-free-adamw, from y and z
};

/// Names of a checkpoint's small files that are texts of a published model: "published.config.json".
inline constexpr std::string_view kPublishedPrefix = "published.";

class StoredWeights {
 public:
  /// Of a run, one of its checkpoints, or a Hugging Face directory, as open_model() takes them; `shape` instead of what
  /// is stored. Everything but the weights is read and checked now.
  explicit StoredWeights(const std::filesystem::path& path, const std::optional<spec::ModelShape>& shape = {});

  /// The whole model; its parameters have names and shapes, and no memory.
  models::Model& model() const { return *model_; }
  const std::optional<spec::Recipe>& recipe() const { return recipe_; }
  /// A file, or "bytes"; none: not known.
  const std::optional<std::string>& tokenizer() const { return tokenizer_; }
  /// Configuration and texts of the published model that it is or comes from; none: it is all our own.
  std::optional<models::PublishedTexts> published() const;
  /// "step 200 of runs/tiny", for people.
  const std::string& what() const { return what_; }

  /// Of a checkpoint, by its recipe: what it would have validated with is what is read here.
  StoredAverage average() const { return average_; }
  /// Elements [begin, end) of one of model()'s parameters, row by row, flat, in the type they are stored in.
  at::Tensor read(const nn::Param& param, std::int64_t begin, std::int64_t end) const;
  /// This rank's part of those parameters that have memory, under any layout, and publishes them.
  void fill(nn::Params& params) const;
  /// The same of one of them, to memory of its size and of any type.
  void read_into(const nn::Param& param, at::Tensor& to) const;
  /// Whether matrices are stored in int8, int4 or FP8 with scales of rows or groups (models/quantised_tensors.h).
  bool is_quantised() const;
  /// This rank's part of a matrix as it is stored; nothing where that is not in fewer bits, or in an order of its own.
  std::optional<kernels::QuantisedWeight> quantised(const nn::Param& param) const;
  /// The biases of routers, of the layers that are there.
  void fill(nn::moe::Balance& balance) const;

 private:
  at::Tensor read_stored(const std::string& name, std::int64_t begin, std::int64_t end) const;
  at::Tensor read_published(const nn::Param& param, std::int64_t begin, std::int64_t end) const;

  std::optional<formats::CheckpointFolder> stored_;
  std::optional<formats::HfDirectory> directory_;  // one of the two
  std::unique_ptr<models::Model> model_;
  std::vector<models::PublishedTensor> tensors_;  // of the directory, those that parameters are made of
  std::optional<spec::Recipe> recipe_;
  std::optional<std::string> tokenizer_;
  StoredAverage average_ = StoredAverage::kNone;
  std::string what_;
  struct Whole {
    const models::PublishedTensor* tensor = nullptr;
    at::Tensor rows;
  };
  mutable Whole whole_;  // the last tensor that is published transposed or in fewer bits, as our rows
};

}  // namespace trireme::checkpoint
