#include "trireme/serve/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/parallel/parallel_groups.h"
#include "trireme/serve/quantise_model.h"

namespace trireme::serve {
namespace {

/// Room for as many of the longest sequences as run at once.
EngineOptions engine_options(const GenerateRequest& request, const std::vector<std::int64_t>& lengths) {
  const auto sequences =
      std::min<std::size_t>(lengths.size(), static_cast<std::size_t>(std::max<std::int64_t>(1, request.batch)));
  std::vector<std::int64_t> longest = lengths;
  std::ranges::sort(longest, std::greater<>());
  longest.resize(sequences);
  std::int64_t tokens = 0;
  for (const std::int64_t length : longest) tokens += nn::blocks_for(length) * nn::kKvBlockSize;
  const std::int64_t chunk = request.device == spec::DeviceKind::kCuda ? kGpuPrefillChunk : kPrefillChunk;
  return {.max_batch_tokens = std::max<std::int64_t>(chunk, request.batch),
          .max_sequences = static_cast<std::int64_t>(sequences),
          .prefill_chunk = chunk,
          .kv_tokens = tokens,
          .invariant = request.invariant,
          .cuda_graphs = request.cuda_graphs};
}

}  // namespace

void check_continues(const spec::ModelShape& shape) {
  if (shape.causal && shape.num_encoder_layers == 0) return;
  throw ConfigError("this model does not read from left to right, so it cannot continue a text",
                    "use a GPT-2, Llama, Mistral or Qwen directory");
}

void check_sampling(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0)) throw ConfigError(fmt::format("temperature {} is below 0", sampling.temperature));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    throw ConfigError(fmt::format("top_p {} is not above 0 and at most 1", sampling.top_p));
  }
  if (sampling.top_k < 0) throw ConfigError(fmt::format("top_k {} is below 0", sampling.top_k));
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    throw ConfigError(fmt::format("min_p {} is not from 0 to 1", sampling.min_p));
  }
  if (!(sampling.repetition_penalty > 0)) {
    throw ConfigError(fmt::format("repetition_penalty {} is not above 0", sampling.repetition_penalty));
  }
}

void check_length(std::int64_t prompt, std::int64_t tokens, const spec::ModelShape& shape, bool beyond_context) {
  // A table of learned positions ends; the others go on, to where the model has never been.
  const bool ends = shape.position_kind == spec::PositionKind::kLearned;
  if (prompt + tokens <= shape.max_seq_len || (!ends && beyond_context)) return;
  const std::int64_t room = std::max<std::int64_t>(0, shape.max_seq_len - prompt);
  throw ConfigError(
      fmt::format("a prompt of {} tokens and {} new ones do not fit into the model's context of {} tokens", prompt,
                  tokens, shape.max_seq_len),
      room > 0 ? fmt::format("ask for at most {} new tokens{}", room,
                             ends ? "" : ", or allow more than it was made for with --beyond-context")
      : ends   ? "give a shorter prompt"
               : "give a shorter prompt, or allow more than it was made for with --beyond-context");
}

void check_tokens(std::span<const std::int64_t> tokens, const spec::ModelShape& shape) {
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < shape.vocab_size) continue;
    throw ConfigError(fmt::format("token {} is outside the model's vocabulary of {}", token, shape.vocab_size));
  }
}

TokenLists continue_prompts(models::Model& model, const GenerateRequest& request,
                            const nn::QuantisedWeights* quantised) {
  TokenLists added(request.prompts.size());
  if (request.tokens == 0 || request.prompts.empty()) return added;
  std::vector<std::int64_t> lengths;
  for (const auto& prompt : request.prompts) {
    lengths.push_back(static_cast<std::int64_t>(prompt.size()) + request.tokens);
  }
  EngineOptions options = engine_options(request, lengths);
  options.quantised = quantised;
  Engine engine(model, options);
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    EngineRequest one{.id = i,
                      .prompt = request.prompts[i],
                      .max_new_tokens = request.tokens,
                      .sampling = request.sampling,
                      .choice = request.first_choice + i,
                      .stop_tokens = request.stop};
    one.on_token = [&, i](const GeneratedToken& token) {
      if (token.finish == FinishReason::kError) {
        throw ConfigError(fmt::format("the logits after token {} of prompt {} are not numbers",
                                      request.prompts[i].size() + added[i].size(), i),
                          "is the checkpoint whole? `trireme inspect` looks at it");
      }
      added[i].push_back(token.token);
      if (request.on_token) request.on_token(i, token.token);
    };
    const auto why = engine.add(std::move(one));
    TRIREME_CHECK(!why, "{}", *why);
  }
  while (!engine.idle()) engine.step();
  return added;
}

struct RankModel {
  std::unique_ptr<parallel::ParallelGroups> groups;
  checkpoint::OpenedModel opened;
  nn::QuantisedWeights quantised;
};

std::shared_ptr<RankModel> open_rank_model(const ModelRequest& request, comm::Group& world) {
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  check_continues(shape);
  spec::LayoutConfig layout;
  layout.tp = world.size();
  spec::LayoutTask task;
  task.shape = shape;
  task.ranks = world.size();
  parallel::check_layout(layout, {}, task);
  auto out = std::make_shared<RankModel>();  // shared: its type is known here alone
  out->groups =
      parallel::form(layout, shape, world, /*length=*/1, parallel::init_device_exchange(request.device, world));
  checkpoint::OpenOptions options;
  options.device = out->groups->device;
  options.masters = false;
  if (request.precision == GeneratePrecision::kBf16) options.precision = nn::Precision::kBf16;
  options.build.parallel = &out->groups->parallel;
  out->opened = checkpoint::open_model(request.model, options);
  if (request.weights != WeightBits::kSame) {
    using kernels::WeightFormat;
    const auto format = request.weights == WeightBits::kInt8   ? WeightFormat::kInt8
                        : request.weights == WeightBits::kInt4 ? WeightFormat::kInt4
                                                               : WeightFormat::kE4m3;
    out->quantised = quantise_model(*out->opened.model, {.format = format});
  }
  return out;
}

models::Model& model_of(RankModel& of) { return *of.opened.model; }
const nn::QuantisedWeights* quantised_of(const RankModel& of) { return of.quantised.empty() ? nullptr : &of.quantised; }
const std::optional<std::string>& tokenizer_of(const RankModel& of) { return of.opened.tokenizer; }

TokenLists generate(const GenerateRequest& request, comm::Group& world) {
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  check_continues(shape);
  check_sampling(request.sampling);
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    if (request.prompts[i].empty()) {
      throw ConfigError(fmt::format("prompt {} is empty", i),
                        "give at least one token, such as the begin-of-text token");
    }
    check_tokens(request.prompts[i], shape);
    check_length(static_cast<std::int64_t>(request.prompts[i].size()), request.tokens, shape, request.beyond_context);
  }
  const auto model = open_rank_model({request.model, request.precision, request.device, request.weights}, world);
  GenerateRequest mine = request;
  if (world.rank() != 0) mine.on_token = nullptr;
  if (world.size() > 1) mine.cuda_graphs = false;  // collectives are not captured
  return continue_prompts(model_of(*model), mine, quantised_of(*model));
}

}  // namespace trireme::serve
