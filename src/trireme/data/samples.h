// data/samples.h -- the training data as one endless list of samples: sample i is a function of the recipe and i.
//
//   const auto samples = data::open_samples(recipe, Split::kTrain);   // data/open_samples.h
//   const Batch batch = samples->read({first, first + 1, first + 2});
//
// So the position in the data is one number, the count of samples taken. Ranks share a step's samples in whatever way;
// resuming, seeking and another number of ranks go on at exactly the next one. Epochs and shuffles are inside.
// Depends on: data/batch.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "trireme/data/batch.h"

namespace trireme::data {

class Samples {
 public:
  virtual ~Samples() = default;

  /// Rows of every sample have this many tokens.
  virtual std::int64_t length() const = 0;
  /// How many there are before they come again in another order; 0: there is no end.
  virtual std::int64_t epoch() const = 0;
  /// Can be called by several threads at once.
  virtual Batch read(std::span<const std::int64_t> samples) const = 0;
  /// The mean loss of the best possible model, in nats a target, where that is known: of synthetic tasks.
  virtual std::optional<double> best_loss() const { return std::nullopt; }
};

}  // namespace trireme::data
