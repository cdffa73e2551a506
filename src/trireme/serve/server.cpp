#include "trireme/serve/server.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/wall_clock.h"
#include "trireme/http/events.h"
#include "trireme/serve/api/fields.h"
#include "trireme/serve/api/text_stream.h"
#include "trireme/serve/chat_page.h"

namespace trireme::serve {
namespace {

using api::Json;

const char* finish_name(FinishReason reason) { return reason == FinishReason::kLength ? "length" : "stop"; }

http::ServerOptions with_requests(http::ServerOptions options, std::size_t max_requests) {
  // The queue's own limit answers first, with 429; this one bounds threads.
  options.limits.requests = std::max(options.limits.requests, max_requests + 16);
  options.limits.connections = std::max(options.limits.connections, 2 * options.limits.requests);
  return options;
}

}  // namespace

/// A request on its way: queued, and what is needed to answer it.
struct InferenceServer::Job {
  /// Text and accounts of one continuation.
  struct Choice {
    std::size_t index = 0;
    api::TextStream text;
    api::ChoicePart part = {};    // not sent yet; of a whole answer: all of it
    std::int64_t text_bytes = 0;  // of all tokens so far, for text_offset
    std::int64_t tokens = 0;
    bool ended = false;
  };

  api::ApiRequest request;
  api::AnswerHead head;
  std::vector<Choice> choices;
  std::shared_ptr<PendingAnswer> answer;
  api::Usage usage;

  ~Job() {
    if (answer) answer->cancel();
  }
  Job() = default;
  Job(Job&&) = default;
  Job(const Job&) = delete;

  /// Takes a token in; what may be sent of its choice is then in `part`.
  Choice& take(const AnswerToken& of) {
    Choice& choice = choices[of.sequence];
    const GeneratedToken& token = of.token;
    if (token.finish == FinishReason::kError) throw InternalError("the model's logits are NaN or Inf");
    ++choice.tokens;
    ++usage.completion_tokens;
    if (choice.tokens == 1) usage.cached_tokens += token.cached_tokens;
    // A token that ends an answer is no part of it.
    const bool ends = token.finish == FinishReason::kStop;
    if (token.logprobs && !ends) {
      if (choice.part.logprobs.empty()) choice.part.text_offset = choice.text_bytes;
      choice.part.logprobs.push_back(*token.logprobs);
      if (head.tokenizer) {
        choice.text_bytes +=
            static_cast<std::int64_t>(head.tokenizer->token_bytes(static_cast<std::int32_t>(token.token)).size());
      }
    }
    if (!ends) choice.part.text += choice.text.push(token.token);
    if (choice.text.stopped()) {
      choice.part.finish = "stop";
      choice.ended = true;
      answer->cancel(of.sequence);
    } else if (token.finish) {
      choice.part.text += choice.text.finish();
      choice.part.finish = choice.text.stopped() ? "stop" : finish_name(*token.finish);
      choice.ended = true;
    }
    return choice;
  }
  bool ended() const {
    return std::ranges::all_of(choices, [](const Choice& choice) { return choice.ended; });
  }
};

InferenceServer::InferenceServer(std::unique_ptr<InferenceEngine> engine, ModelText text,
                                 InferenceServerOptions options)
    : text_(std::move(text)),
      options_(std::move(options)),
      limits_{.model = options_.model_name,
              .vocab_size = engine->model().shape.vocab_size,
              .max_len = options_.max_len,
              .max_choices = std::min<std::size_t>(128, options_.max_requests)},
      started_(static_cast<std::int64_t>(wall_seconds())),
      engine_(std::move(engine),
              {.max_requests = options_.max_requests, .on_start = options_.on_engine_start, .tell = options_.tell},
              metrics_),
      http_(with_requests(options_.http, options_.max_requests), metrics_) {
  http_.get("/v1/models", [this](const http::Request& request) { return models(request); });
  http_.get("/v1/models/{model...}", [this](const http::Request& request) { return models(request); });
  http_.post("/tokenize", [this](const http::Request& request) { return tokenize(request); });
  http_.post("/v1/completions", [this](const http::Request& request) { return complete(request, false); });
  http_.post("/v1/chat/completions", [this](const http::Request& request) { return complete(request, true); });
  http_.asset("/", "text/html; charset=utf-8", kChatPage, {.need = http::Need::kNothing});
  http_.asset("/chat.css", "text/css; charset=utf-8", kChatStyle, {.need = http::Need::kNothing});
  http_.asset("/chat.js", "text/javascript; charset=utf-8", kChatScript, {.need = http::Need::kNothing});
}

InferenceServer::~InferenceServer() { http_.stop(); }

http::Response InferenceServer::models(const http::Request& request) const {
  const nlohmann::ordered_json model{{"id", limits_.model},
                                     {"object", "model"},
                                     {"created", started_},
                                     {"owned_by", "trireme"},
                                     {"max_model_len", limits_.max_len}};
  if (request.params.empty()) {
    return http::Response::json(nlohmann::ordered_json{{"object", "list"}, {"data", {model}}}.dump());
  }
  if (request.param("model") == limits_.model) return http::Response::json(model.dump());
  throw http::HttpError(
      404, fmt::format("the model \"{}\" is not here, but \"{}\" is", request.param("model"), limits_.model),
      {.type = "invalid_request_error", .code = "model_not_found", .param = "model"});
}

http::Response InferenceServer::tokenize(const http::Request& request) const {
  const api::TokenizeRequest asked = api::parse_tokenize(http::json_body(request), limits_);
  if (!text_.tokenizer) throw http::HttpError(400, "this model has no tokenizer");
  std::vector<std::int32_t> ids;
  try {
    ids = text_.tokenizer->encode(asked.text, {.add_special = asked.add_special});
  } catch (const ConfigError& error) {
    api::refuse_field("prompt", error.message());
  }
  return http::Response::json(
      nlohmann::ordered_json{{"count", ids.size()}, {"max_model_len", limits_.max_len}, {"tokens", ids}}.dump());
}

InferenceServer::Job InferenceServer::make_job(const http::Request& request, bool chat) {
  const Json body = http::json_body(request);
  Job job;
  job.request = chat ? api::parse_chat(body, limits_) : api::parse_completion(body, limits_);
  const std::uint64_t number = ++requests_;
  job.head = {.chat = chat,
              .id = fmt::format("{}-{:x}{:06x}", chat ? "chatcmpl" : "cmpl", started_, number),
              .model = limits_.model,
              .fingerprint = options_.fingerprint,
              .created = static_cast<std::int64_t>(wall_seconds()),
              .include_usage = job.request.include_usage,
              .tokenizer = text_.tokenizer.get()};
  std::vector<std::vector<std::int64_t>> prompts;
  if (chat) {
    prompts.push_back(encode_messages(text_, job.request.messages, limits_));
  } else {
    for (const api::Prompt& prompt : job.request.prompts) prompts.push_back(encode_prompt(text_, prompt, limits_));
  }
  if (!text_.tokenizer && !job.request.stop.empty()) {
    api::refuse_field("stop", "this model has no tokenizer: give stop_token_ids", "unsupported_parameter");
  }
  std::vector<std::int64_t> ends = job.request.stop_token_ids;
  if (!job.request.ignore_eos) ends.insert(ends.end(), text_.end_tokens.begin(), text_.end_tokens.end());
  SamplingParams sampling = job.request.sampling;
  sampling.seed = job.request.seed.value_or(options_.seed + 0x9E3779B97F4A7C15 * number);
  std::vector<EngineRequest> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(prompts[i].size()), room = limits_.max_len - length;
    const std::int64_t wanted = job.request.max_tokens.value_or(std::max<std::int64_t>(1, room));
    if (wanted > room) {
      throw http::HttpError(
          400,
          fmt::format("the prompt has {} tokens and {} are asked for, but the model takes {} in all", length, wanted,
                      limits_.max_len),
          {.type = "invalid_request_error", .code = "context_length_exceeded", .param = chat ? "messages" : "prompt"});
    }
    if (wanted == 0 && !job.request.echo) {
      api::refuse_field("max_tokens", "max_tokens = 0 asks for nothing");
    }
    job.usage.prompt_tokens += length;
    for (std::size_t n = 0; n < job.request.n; ++n) {
      Job::Choice choice{.index = job.choices.size(),
                         .text = api::TextStream(text_.tokenizer.get(), job.request.stop, prompts[i])};
      choice.part.index = choice.index;
      choice.part.wants_logprobs = job.request.logprobs.has_value();
      if (job.request.echo && text_.tokenizer) {
        const std::vector<std::int32_t> ids(prompts[i].begin(), prompts[i].end());
        choice.part.text = text_.tokenizer->decode(ids);
      }
      if (wanted == 0) {
        choice.ended = true;
        choice.part.finish = "length";
      }
      job.choices.push_back(std::move(choice));
      if (wanted == 0) continue;
      requests.push_back({.prompt = prompts[i],
                          .max_new_tokens = wanted,
                          .sampling = sampling,
                          .choice = job.choices.size() - 1,
                          .stop_tokens = ends,
                          .logprobs = job.request.logprobs,
                          .salt = job.request.salt});
    }
  }
  if (requests.empty()) return job;
  if (requests.size() > options_.max_requests) {
    api::refuse_field("n", fmt::format("{} continuations are asked for, but {} are taken at most", requests.size(),
                                       options_.max_requests));
  }
  job.answer = engine_.submit(std::move(requests));
  return job;
}

http::Response InferenceServer::complete(const http::Request& request, bool chat) {
  const auto job = std::make_shared<Job>(make_job(request, chat));  // shared with the stream's body
  if (!job->answer && !job->ended()) {
    http::Response full =
        http::HttpError(429,
                        fmt::format("{} requests run or wait, as many as may; ask again soon", options_.max_requests),
                        {.type = "rate_limit_error", .code = "queue_full"})
            .response();
    full.set("Retry-After", "1");
    return full;
  }
  return job->request.stream ? streamed(job) : whole(job, request);
}

http::Response InferenceServer::whole(const std::shared_ptr<Job>& job, const http::Request& request) {
  if (job->answer) request.client->on_change([answer = job->answer] { answer->wake(); });
  while (!job->ended()) {
    if (!request.client->connected()) throw http::HttpError(499, "the client has gone");
    if (const auto token = job->answer->wait()) job->take(*token);
  }
  std::vector<api::ChoicePart> parts;
  for (Job::Choice& choice : job->choices) parts.push_back(std::move(choice.part));
  return http::Response::json(api::whole_answer(job->head, parts, job->usage));
}

http::Response InferenceServer::streamed(const std::shared_ptr<Job>& job) {
  return http::event_stream([job](http::EventWriter& events) {
    if (job->answer) events.client().on_change([answer = job->answer] { answer->wake(); });
    bool sent = true;
    const auto send = [&](const std::string& text) { sent = sent && events.send({.data = text}); };
    for (const Job::Choice& choice : job->choices) {
      if (job->head.chat) send(api::first_chunk(job->head, choice.index));
      if (!choice.part.text.empty() || choice.ended) {
        send(api::chunk(job->head, choice.part));
      }
    }
    for (Job::Choice& choice : job->choices) choice.part.text.clear();
    while (sent && !job->ended()) {
      if (!events.connected()) return;
      const auto token = job->answer->wait();
      if (!token) continue;
      Job::Choice& choice = job->take(*token);
      api::ChoicePart& part = choice.part;
      if (part.text.empty() && part.logprobs.empty() && !part.finish) continue;
      // The reason stands in a chunk of its own, behind the last text.
      const auto finish = std::exchange(part.finish, std::nullopt);
      if (!part.text.empty() || !part.logprobs.empty()) send(api::chunk(job->head, part));
      part.text.clear();
      part.logprobs.clear();
      part.finish = finish;
      if (finish) send(api::chunk(job->head, part));
    }
    if (job->head.include_usage) send(api::usage_chunk(job->head, job->usage));
    send("[DONE]");
  });
}

}  // namespace trireme::serve
