// train/run/evaluate.h -- the loss on given samples, without training.
//
// Depends on: comm, data, models.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "trireme/comm/group.h"
#include "trireme/data/samples.h"
#include "trireme/models/model.h"

namespace trireme::train {

struct Evaluation {
  double loss_sum = 0;  ///< in nats
  double targets = 0;
  double bytes = 0;  ///< that the targets stand for; 0 where nobody knows
  double loss() const { return loss_sum / targets; }
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

/// Over all ranks, the same on each. `Evaluation::targets` is 0 when no sample has one.
Evaluation evaluate(models::Model& model, const data::Samples& samples, comm::Group& world,
                    const EvaluateOptions& options);

/// How ranks that hold a model together share the samples.
struct EvaluateRanks {
  comm::Group& all;
  int rank = 0, ranks = 1;  ///< which stretch of the samples this one reads, of how many
  nn::TokenSplit tokens = {};
  bool counts_loss = true, counts_rows = true;  ///< others have the same losses, or parts of the same rows
  bool lockstep = false;                        ///< all ranks run equally often: they gather weights together
  at::Device device = at::kCPU;                 ///< where the model is
  const spec::ModelShape* shape = nullptr;      ///< its own, with a device other than the host
};
/// Runs the model; losses are left in the context where its end is.
using Forward = std::function<void(nn::Tensors inputs, nn::Context& context)>;
Evaluation evaluate(const Forward& forward, const data::Samples& samples, const EvaluateRanks& ranks,
                    const EvaluateOptions& options);

}  // namespace trireme::train
