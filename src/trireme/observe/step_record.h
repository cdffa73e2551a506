// observe/step_record.h -- what is written down of one training step.
//
// Depends on: base (queue_meter).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/queue_meter.h"

namespace trireme::observe {

/// Where a step's time went, in seconds; the parts add up to the step.
struct Breakdown {
  double compute = 0;   ///< forward, backward, update
  double data = 0;      ///< waiting for tokens
  double comm = 0;      ///< waiting for other ranks
  double overhead = 0;  ///< the rest
  bool operator==(const Breakdown&) const = default;
};

/// One term of a loss: the total is the sum of weight * mean.
struct NamedLoss {
  std::string name;
  double mean = 0;
  double weight = 1;  ///< 0: told only
  bool operator==(const NamedLoss&) const = default;
};

/// Tokens that each expert of a layer got in a step, of all ranks.
struct LayerLoad {
  std::string layer;
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> ranks = {};  ///< what each rank that has experts of it computed; copies share
  double cost_ms = 0;  ///< for which the other ranks waited for the busiest, forward and backward; 0: not measured
  bool operator==(const LayerLoad&) const = default;
};

/// Experts that went to other ranks after a step.
struct ExpertsMoved {
  std::int64_t experts = 0;  ///< over all layers
  std::int64_t bytes = 0;    ///< sent between ranks
  double seconds = 0;
  double busiest_before = 0, busiest_after = 0;  ///< the busiest rank's load over the mean, of the worst such layer
  bool operator==(const ExpertsMoved&) const = default;
};

/// The gradient noise scale of a part of the model, in tokens.
struct LayerNoise {
  std::string layer;  ///< "layers.3", "embedding", "head", ...
  double scale = 0;
  bool operator==(const LayerNoise&) const = default;
};

/// One queue of the runtime over a step: sums, which add up over steps.
struct NamedQueue {
  std::string name;  ///< "prefetch", "checkpoint", "works"
  QueueReading reading;
  bool operator==(const NamedQueue&) const = default;
};

/// One line of metrics.jsonl.
struct StepRecord {
  std::int64_t step = 0;  ///< steps done, this one included: the first is 1
  double loss = 0;        ///< the total: of one term its mean over the tokens of the step
  double grad_norm = 0;   ///< before clipping
  double lr = 0;
  std::int64_t tokens = 0;  ///< seen so far, this step's included
  double tokens_per_s = 0;
  std::optional<double> mfu;  ///< model FLOPs over what the device can do; none: its peak is not known
  std::int64_t memory = 0;    ///< bytes, the largest of any rank so far
  double seconds = 0;
  Breakdown breakdown;
  std::optional<std::string> hash;      ///< of the whole state after the step, where one was taken
  std::vector<NamedLoss> losses = {};   ///< the terms of the loss where there are several, the main one first
  std::vector<NamedQueue> queues = {};  ///< of rank 0
  std::vector<LayerLoad> experts = {};  ///< of a model with experts, in some steps
  int expert_ranks = 1;                 ///< that they are sharded over
  std::optional<ExpertsMoved> experts_moved = {};
  std::optional<double> noise_scale = {};     ///< gradient noise scale in tokens, where it is measured
  std::vector<LayerNoise> noise_scales = {};  ///< of each layer
  std::optional<double> staleness = {};       ///< of gradients pushed to parameter servers: updates in between, mean
  bool operator==(const StepRecord&) const = default;
};

}  // namespace trireme::observe
