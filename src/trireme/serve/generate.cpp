#include "trireme/serve/generate.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/checkpoint/open_model.h"

namespace trireme::serve {
namespace {

at::Tensor one_row(std::span<const std::int64_t> tokens) {
  at::Tensor ids = at::empty({1, static_cast<std::int64_t>(tokens.size())}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), ids.data_ptr<std::int64_t>());
  return ids;
}

void check(const GenerateRequest& request, const spec::ModelShape& shape) {
  if (!shape.causal || shape.num_encoder_layers > 0) {
    throw ConfigError("this model does not read from left to right, so it cannot continue a text",
                      "use a GPT-2, Llama, Mistral or Qwen directory");
  }
  if (request.temperature < 0) throw ConfigError(fmt::format("temperature {} is below 0", request.temperature));
  if (!(request.top_p > 0 && request.top_p <= 1)) {
    throw ConfigError(fmt::format("top_p {} is not above 0 and at most 1", request.top_p));
  }
  if (request.top_k < 0) throw ConfigError(fmt::format("top_k {} is below 0", request.top_k));
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(request.prompts[i].size());
    if (length == 0) {
      throw ConfigError(fmt::format("prompt {} is empty", i),
                        "give at least one token, such as the begin-of-text token");
    }
    // Rotary positions go on; a table of learned ones ends.
    if (shape.position_kind == spec::PositionKind::kLearned && length + request.tokens > shape.max_seq_len) {
      throw ConfigError(
          fmt::format("a prompt of {} tokens and {} new ones do not fit into the model's {} positions", length,
                      request.tokens, shape.max_seq_len),
          fmt::format("ask for at most {} new tokens", std::max<std::int64_t>(0, shape.max_seq_len - length)));
    }
  }
}

}  // namespace

std::int64_t sample(std::span<const float> logits, const Sampling& sampling, double draw) {
  const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
  if (sampling.temperature <= 0 || sampling.top_k == 1) return likeliest;
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // By falling logit, equal ones by number: the draw then means the same on every machine.
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (sampling.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(sampling.top_k)));
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> weights;
  double total = 0;
  for (const std::int64_t token : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(token)] - top) / sampling.temperature));
    total += weights.back();
  }
  std::size_t kept = 0;
  double mass = 0;
  while (kept < weights.size() && (kept == 0 || mass < sampling.top_p * total)) mass += weights[kept++];
  double below = draw * mass;
  for (std::size_t i = 0; i < kept; ++i) {
    below -= weights[i];
    if (below < 0) return order[i];
  }
  return order[kept - 1];  // rounding left a little at the end
}

std::vector<std::int64_t> continue_prompt(models::Model& model, const std::vector<std::int64_t>& prompt,
                                          std::size_t sequence, const GenerateRequest& request) {
  const Random random(request.seed, fmt::format("generate/sequence {}", sequence));
  const Sampling sampling{request.temperature, request.top_k, request.top_p};
  nn::KvCache cache;
  cache.capacity = static_cast<std::int64_t>(prompt.size()) + request.tokens;
  nn::Context context;
  context.cache = &cache;
  std::vector<std::int64_t> added;
  std::vector<std::int64_t> next = prompt;
  while (static_cast<std::int64_t>(added.size()) < request.tokens) {
    const auto length = static_cast<std::int64_t>(next.size());
    context.sequence = nn::plain_sequence(1, length, cache.length);
    const at::Tensor logits = model.next_logits(one_row(next), context).to(at::kFloat).contiguous();
    cache.length += length;
    const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel()));
    const std::int64_t token = sample(row, sampling, random.uniform(added.size()));
    added.push_back(token);
    if (request.on_token) request.on_token(sequence, token);
    if (std::find(request.stop.begin(), request.stop.end(), token) != request.stop.end()) break;
    next = {token};
  }
  return added;
}

TokenLists generate(const GenerateRequest& request) {
  check(request, checkpoint::stored_shape(request.model));
  const auto precision = request.precision == GeneratePrecision::kBf16 ? nn::Precision::kBf16 : nn::Precision::kFp32;
  const auto model = checkpoint::open_model(request.model, {.precision = precision}).model;
  TokenLists out;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    out.push_back(continue_prompt(*model, request.prompts[i], i, request));
  }
  return out;
}

}  // namespace trireme::serve
