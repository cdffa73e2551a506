// serve/decode_graph.h -- steps of decode alone on a GPU, as CUDA graphs: one for each padded number of sequences.
//
// A decode step of a small model is hundreds of kernels of a few microseconds; launched one by one the GPU waits for
// the host. What changes from step to step (tokens, positions, lengths, block tables) lies in one buffer of the device
// at a fixed place, written by one copy; the captured kernels read it there. Rows of padding write nothing into the
// cache. A size is run twice as it is before it is captured: libraries choose their kernels then.
// Depends on: models, nn, device.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::serve {

class DecodeGraphs {
 public:
  struct Options {
    std::int64_t max_sequences = 1;
    std::int64_t max_len = 1;  ///< of a sequence: what block tables have room for
    const nn::QuantisedWeights* quantised = nullptr;
    bool capture = true;  ///< false: the same kernels, launched one by one
  };
  /// Borrows model and cache, whose blocks exist since the first prefill.
  DecodeGraphs(models::Model& model, nn::KvCache& cache, at::Device device, Options options);
  ~DecodeGraphs();

  struct Output {
    at::Tensor logits;  ///< [padded sequences, vocabulary], on the device; overwritten by the next step
    std::span<const std::int64_t> tokens;  ///< the likeliest of each sequence; -1: its logits are NaN
  };
  /// One token of each sequence; every `query_len` is 1. Waits for the tokens.
  Output run(std::span<const nn::SequenceStep> steps, std::span<const std::int64_t> ids);

  /// How many rows a step of so many sequences is computed with.
  static std::int64_t padded(std::int64_t sequences);
  /// Sizes that are captured by now.
  std::size_t captured() const;

 private:
  struct Step;
  models::Model& model_;
  nn::KvCache& cache_;
  at::Device device_;
  Options options_;
  std::map<std::int64_t, std::unique_ptr<Step>> steps_;  // by padded size
};

}  // namespace trireme::serve
