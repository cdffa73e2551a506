// serve/draft_model.h -- a smaller model of the same vocabulary guesses the next tokens (speculative decoding).
//
// It has a KV cache of its own, by request: tokens that its last call had and the text has not are taken back by
// writing over them. All sequences are drafted for at once, a token a step. Sequences that find no blocks are not
// drafted for; those that nobody asks about give theirs up first.
// Depends on: drafter.h, models, nn.
#pragma once

#include <memory>

#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/serve/drafter.h"

namespace trireme::serve {

struct DraftModelOptions {
  std::size_t depth = 4;
  std::int64_t kv_tokens = 4096;    ///< of all sequences together
  std::int64_t chunk = 512;         ///< tokens of a step
  std::int64_t max_sequences = 16;  ///< that are asked about at once: what sliding windows have blocks for
  SpeculationRule rule = SpeculationRule::kCoupled;
  const nn::QuantisedWeights* quantised = nullptr;  ///< borrowed
};
/// Borrows the model. ConfigError where its vocabulary is not the one that it is to guess for.
std::unique_ptr<Drafter> draft_model(models::Model& model, const spec::ModelShape& target, DraftModelOptions options);

}  // namespace trireme::serve
