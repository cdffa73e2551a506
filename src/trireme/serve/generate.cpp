#include "trireme/serve/generate.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/parallel/parallel_groups.h"

namespace trireme::serve {
namespace {

/// One sequence with a KV cache of its own.
class CachedSequence {
 public:
  CachedSequence(models::Model& model, std::int64_t max_tokens)
      : model_(model),
        device_(model.params.begin()->value.device()),
        cache_{.groups = nn::kv_cache_groups(model.shape, {.max_tokens = max_tokens, .max_query_len = kPrefillChunk})},
        blocks_(cache_.groups),
        tables_(blocks_.new_tables()) {}

  /// Logits after the sequence so far and these tokens, on the host.
  at::Tensor next_logits(std::span<const std::int64_t> tokens) {
    at::Tensor logits;
    for (std::size_t first = 0; first < tokens.size(); first += kPrefillChunk) {
      logits = take(tokens.subspan(first, std::min<std::size_t>(kPrefillChunk, tokens.size() - first)));
    }
    return logits.cpu().to(at::kFloat).contiguous();
  }

 private:
  at::Tensor take(std::span<const std::int64_t> chunk) {
    const auto count = static_cast<std::int64_t>(chunk.size());
    TRIREME_CHECK(blocks_.reserve(tables_, length_ + count), "the KV cache is full after {} tokens", length_);
    const nn::SequenceStep step{.context_len = length_, .query_len = count, .tables = tables_};
    const nn::KvBatch batch = nn::make_kv_batch(cache_, {&step, 1}, device_);
    nn::Context context;
    context.kv_batch = &batch;
    context.sequence = nn::packed_sequence(batch);
    at::Tensor ids = at::empty({1, count}, at::kLong);
    std::copy(chunk.begin(), chunk.end(), ids.mutable_data_ptr<std::int64_t>());
    at::Tensor logits = model_.next_logits(ids.to(device_), context);
    length_ += count;
    blocks_.free_out_of_window(tables_, length_);
    return logits;
  }

  models::Model& model_;
  at::Device device_;
  nn::KvCache cache_;
  nn::BlockManager blocks_;
  nn::BlockManager::Tables tables_;
  std::int64_t length_ = 0;
};

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
    check_tokens(request.prompts[i], shape);
    // A table of learned positions ends; the others go on, to where the model has never been.
    const bool ends = shape.position_kind == spec::PositionKind::kLearned;
    if (length + request.tokens > shape.max_seq_len && (ends || !request.beyond_context)) {
      const std::int64_t room = std::max<std::int64_t>(0, shape.max_seq_len - length);
      throw ConfigError(
          fmt::format("a prompt of {} tokens and {} new ones do not fit into the model's context of {} tokens", length,
                      request.tokens, shape.max_seq_len),
          room > 0 ? fmt::format("ask for at most {} new tokens{}", room,
                                 ends ? "" : ", or allow more than it was made for with --beyond-context")
          : ends   ? "give a shorter prompt"
                   : "give a shorter prompt, or allow more than it was made for with --beyond-context");
    }
  }
}

}  // namespace

void check_tokens(std::span<const std::int64_t> tokens, const spec::ModelShape& shape) {
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < shape.vocab_size) continue;
    throw ConfigError(fmt::format("token {} is outside the model's vocabulary of {}", token, shape.vocab_size));
  }
}

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
  CachedSequence cached(model, static_cast<std::int64_t>(prompt.size()) + request.tokens);
  std::vector<std::int64_t> added;
  std::vector<std::int64_t> next = prompt;
  while (static_cast<std::int64_t>(added.size()) < request.tokens) {
    const at::Tensor logits = cached.next_logits(next);
    const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel()));
    const std::int64_t token = sample(row, sampling, random.uniform(added.size()));
    added.push_back(token);
    if (request.on_token) request.on_token(sequence, token);
    if (std::find(request.stop.begin(), request.stop.end(), token) != request.stop.end()) break;
    next = {token};
  }
  return added;
}

TokenLists generate(const GenerateRequest& request, comm::Group& world) {
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  check(request, shape);
  spec::LayoutConfig layout;
  layout.tp = world.size();
  spec::LayoutTask task;
  task.shape = shape;
  task.ranks = world.size();
  parallel::check_layout(layout, {}, task);
  const auto groups =
      parallel::form(layout, shape, world, /*length=*/1, parallel::init_device_exchange(request.device, world));
  checkpoint::OpenOptions options;
  options.device = groups->device;
  if (request.precision == GeneratePrecision::kBf16) options.precision = nn::Precision::kBf16;
  options.build.parallel = &groups->parallel;
  const auto model = checkpoint::open_model(request.model, options).model;
  GenerateRequest mine = request;
  if (world.rank() != 0) mine.on_token = nullptr;
  TokenLists out;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    out.push_back(continue_prompt(*model, request.prompts[i], i, mine));
  }
  return out;
}

}  // namespace trireme::serve
