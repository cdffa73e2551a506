// spmd/images.h -- batches of labelled images for a graph, and how many it names right.
//
// Images are scaled to the size of the graph's input, bilinearly, and repeated over its channels. A step's samples
// follow from seed and step: an epoch is a permutation. Evaluation runs the whole graph on every rank's behalf on rank
// 0, with the parameters as they lie on ranks and with batch norms' running statistics.
// Depends on: executor, reference, commands.
#pragma once

#include <cstdint>

#include "trireme/comm/group.h"
#include "trireme/spmd/commands.h"
#include "trireme/spmd/executor.h"
#include "trireme/spmd/reference.h"

namespace trireme::spmd {

class ImageBatches {
 public:
  /// ConfigError where the graph has no images or too few classes.
  ImageBatches(const pg::Graph& forward, const ImageSet& images, std::uint64_t seed);

  /// `start` with the inputs of this step.
  Values of_step(const Values& start, std::int64_t step) const;
  /// With samples [begin, begin + batch) in the order of the file, the last one repeated at its end.
  Values in_order(const Values& start, std::size_t begin) const;
  std::size_t batch() const { return batch_; }
  std::size_t size() const { return images_.labels.size(); }

 private:
  Values with(const Values& start, const std::vector<std::size_t>& samples) const;

  const ImageSet& images_;
  const std::uint64_t seed_;
  int input_ = -1;
  std::vector<int> labels_;  // tensors
  std::size_t batch_ = 0;
  std::vector<std::int64_t> sizes_;
  at::ScalarType type_;
};

/// The share of images that the largest logit names right. Called by every rank at the same time; the same on all.
double accuracy_of(const pg::Graph& forward, const Executor& executor, const ImageBatches& images, const Values& start,
                   comm::Group& world);

}  // namespace trireme::spmd
