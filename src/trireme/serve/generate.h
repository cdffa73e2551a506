// serve/generate.h -- continues token lists with a model, all of them through one engine.
//
// Depends on: base, comm, engine.h, models, parallel.
#pragma once

#include <span>

#include "trireme/comm/group.h"
#include "trireme/models/model.h"
#include "trireme/serve/commands.h"
#include "trireme/serve/engine.h"

namespace trireme::serve {

/// A ConfigError for a token outside the vocabulary: a GPU would read beside its table.
void check_tokens(std::span<const std::int64_t> tokens, const spec::ModelShape& shape);
/// A ConfigError for settings that mean nothing.
void check_sampling(const SamplingParams& sampling);
/// A ConfigError where prompt and new tokens do not fit into the model's context.
void check_length(std::int64_t prompt, std::int64_t tokens, const spec::ModelShape& shape, bool beyond_context);

/// Tokens of a prompt that go through the model at once: what a KV cache of sliding windows holds beside the window.
inline constexpr std::int64_t kPrefillChunk = 512, kGpuPrefillChunk = 2048;

/// What a model adds to each prompt. The draw for the n-th new token of prompt i is a function of (seed, i, n) alone.
TokenLists continue_prompts(models::Model& model, const GenerateRequest& request);

/// By all ranks of `world`, as request.layout says; the same on all of them.
TokenLists generate(const GenerateRequest& request, comm::Group& world);

}  // namespace trireme::serve
