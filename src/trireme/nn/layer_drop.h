// nn/layer_drop.h -- progressive layer dropping (Zhang, He 2020): which layers of a step are not computed.
//
// Whether a layer is kept is a function of (seed, step, layer), so every rank, micro-batch and recomputation agrees,
// and what a dropped layer would have exchanged is not exchanged by anybody: its ZeRO-3 gather and its tensor-parallel
// collectives. What a kept layer adds is divided by the probability of keeping it: y = x + (f(x) - x) / p, whose
// expectation is f(x). Without training all layers run as they are.
// Depends on: base.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/nn/layer.h"

namespace trireme::nn {

struct LayerDrop {
  double theta = 1;         ///< theta bar: kept in the end, of the last layer
  double gamma = 0;         ///< a step
  std::int64_t layers = 1;  ///< of the stack
};
/// (1 - theta) exp(-gamma step) + theta.
double kept_share(const LayerDrop& drop, std::int64_t step);
/// Of layer i of L, the first being 1: 1 - (i / L) (1 - kept_share).
double keep_probability(const LayerDrop& drop, std::int64_t step, std::int64_t layer);
/// `stack`: layers of an encoder and a decoder draw apart.
bool is_kept(const LayerDrop& drop, std::uint64_t seed, std::int64_t step, std::int64_t layer, const char* stack);

/// `layer` as number `number` (from 1) of its stack. `params` are those that it computes with: where it is dropped,
/// they get a gradient of zeros.
std::unique_ptr<Layer> with_layer_drop(std::unique_ptr<Layer> layer, const LayerDrop& drop, std::int64_t number,
                                       const char* stack, std::vector<Param*> params);

}  // namespace trireme::nn
