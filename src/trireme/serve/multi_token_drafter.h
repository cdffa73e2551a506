// serve/multi_token_drafter.h -- a model's own modules of multi-token prediction guess its next tokens (DeepSeek-V3,
// 2412.19437, section 2.2).
//
// The first module reads what the head reads of each token and the token behind it, and gives the one after that. Its
// keys lie in the engine's KV cache, as one more layer with the same block tables, so that the prefix cache and
// preemption need nothing of their own. For more than one draft it goes on from what it gave itself, as far as the
// sequence's blocks reach.
// Depends on: drafter.h, models, nn.
#pragma once

#include <memory>

#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/serve/drafter.h"

namespace trireme::serve {

struct MultiTokenOptions {
  std::size_t depth = 1;
  SpeculationRule rule = SpeculationRule::kCoupled;
  bool invariant = true;  ///< as the engine's: keys are computed alike
};
/// Borrows the model and the engine's cache. ConfigError where the model has no such modules.
std::unique_ptr<Drafter> multi_token_drafter(models::Model& model, nn::KvCache& cache, MultiTokenOptions options);

}  // namespace trireme::serve
