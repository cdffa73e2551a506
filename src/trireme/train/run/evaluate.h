// train/run/evaluate.h -- the loss on given samples, without training.
//
// Depends on: comm, data, models.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/data/samples.h"
#include "trireme/models/model.h"

namespace trireme::train {

struct Evaluation {
  std::vector<nn::LossTerm> terms;  ///< of all samples; the main loss in nats
  nn::LossCounts counts;            ///< targets, by their weights, and samples
  double bytes = 0;                 ///< that the targets stand for; 0 where nobody knows
  /// The mean of the main loss: what perplexity is of.
  double loss() const { return nn::sum_of(terms) / counts.targets; }
  /// The weighted sum of all terms' means.
  double total() const { return nn::total_of(terms, counts); }
  double perplexity() const;
  double bits_per_byte() const;
};

struct EvaluateOptions {
  std::int64_t first = 0, count = 0;               ///< samples, shared among the ranks
  std::int64_t rows = 8;                           ///< at once
  std::span<const std::int32_t> token_bytes = {};  ///< by token; empty: not known
  std::function<void(std::int64_t done)> progress = nullptr;
};

/// Bytes that the targets of a batch stand for.
double count_bytes(const data::Batch& batch, std::span<const std::int32_t> token_bytes);

/// Over all ranks, the same on each. `counts.targets` is 0 when no sample has one.
Evaluation evaluate(models::Model& model, const data::Samples& samples, comm::Group& world,
                    const EvaluateOptions& options);

/// How ranks that hold a model together share the samples.
struct EvaluateRanks {
  comm::Group& all;
  int rank = 0, ranks = 1;  ///< which stretch of the samples this one reads, of how many
  nn::TokenSplit tokens = {};
  /// Whether this rank's part of a term is added up: others may have the same.
  std::function<bool(const nn::LossTerm& term)> counts = [](const nn::LossTerm&) { return true; };
  bool counts_rows = true;                  ///< others have parts of the same rows
  bool lockstep = false;                    ///< all ranks run equally often: they gather weights together
  at::Device device = at::kCPU;             ///< where the model is
  const spec::ModelShape* shape = nullptr;  ///< its own
};
/// Runs the model; losses are left in the context of the rank where they arise.
using Forward = std::function<void(nn::Tensors inputs, nn::Context& context)>;
Evaluation evaluate(const Forward& forward, const data::Samples& samples, const EvaluateRanks& ranks,
                    const EvaluateOptions& options);

}  // namespace trireme::train
