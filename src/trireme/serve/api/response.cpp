#include "trireme/serve/api/response.h"

namespace trireme::serve::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string as_text(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

/// A token's bytes; special tokens have none.
std::string token_text(const AnswerHead& head, std::int64_t token) {
  return head.tokenizer ? std::string(head.tokenizer->token_bytes(static_cast<std::int32_t>(token))) : std::string();
}

OrderedJson chat_logprob(const AnswerHead& head, const TokenLogprob& of) {
  const std::string text = token_text(head, of.token);
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", of.logprob}, {"bytes", std::move(bytes)}};
}

OrderedJson chat_logprobs(const AnswerHead& head, const ChoicePart& part) {
  if (!part.wants_logprobs) return nullptr;
  OrderedJson content = OrderedJson::array();
  for (const Logprobs& each : part.logprobs) {
    OrderedJson token = chat_logprob(head, each.chosen);
    token["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& top : each.top) token["top_logprobs"].push_back(chat_logprob(head, top));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson completion_logprobs(const AnswerHead& head, const ChoicePart& part) {
  if (!part.wants_logprobs) return nullptr;
  OrderedJson out{{"text_offset", OrderedJson::array()},
                  {"token_logprobs", OrderedJson::array()},
                  {"tokens", OrderedJson::array()},
                  {"top_logprobs", OrderedJson::array()}};
  std::int64_t offset = part.text_offset;
  for (const Logprobs& each : part.logprobs) {
    const std::string text = token_text(head, each.chosen.token);
    out["text_offset"].push_back(offset);
    out["token_logprobs"].push_back(each.chosen.logprob);
    out["tokens"].push_back(text);
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& other : each.top) top[token_text(head, other.token)] = other.logprob;
    out["top_logprobs"].push_back(std::move(top));
    offset += static_cast<std::int64_t>(text.size());
  }
  return out;
}

OrderedJson finish_json(const std::optional<std::string>& finish) {
  return finish ? OrderedJson(*finish) : OrderedJson(nullptr);
}

OrderedJson head_json(const AnswerHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

std::string chunk_text(const AnswerHead& head, OrderedJson choice) {
  OrderedJson out = head_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = OrderedJson::array({std::move(choice)});
  if (head.include_usage) out["usage"] = nullptr;
  return as_text(out);
}

}  // namespace

std::string whole_answer(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage) {
  OrderedJson out = head_json(head, head.chat ? "chat.completion" : "text_completion");
  out["choices"] = OrderedJson::array();
  for (const ChoicePart& part : choices) {
    OrderedJson choice{{"index", part.index}};
    if (head.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", part.text}, {"refusal", nullptr}};
      choice["logprobs"] = chat_logprobs(head, part);
    } else {
      choice["text"] = part.text;
      choice["logprobs"] = completion_logprobs(head, part);
    }
    choice["finish_reason"] = finish_json(part.finish);
    out["choices"].push_back(std::move(choice));
  }
  out["usage"] = usage_json(usage);
  return as_text(out);
}

std::string first_chunk(const AnswerHead& head, std::size_t index) {
  return chunk_text(head, {{"index", index},
                           {"delta", {{"role", "assistant"}, {"content", ""}}},
                           {"logprobs", nullptr},
                           {"finish_reason", nullptr}});
}

std::string chunk(const AnswerHead& head, const ChoicePart& part) {
  OrderedJson choice{{"index", part.index}};
  if (head.chat) {
    choice["delta"] =
        part.text.empty() && part.logprobs.empty() ? OrderedJson::object() : OrderedJson{{"content", part.text}};
    choice["logprobs"] = part.logprobs.empty() ? OrderedJson(nullptr) : chat_logprobs(head, part);
  } else {
    choice["text"] = part.text;
    choice["logprobs"] = part.logprobs.empty() ? OrderedJson(nullptr) : completion_logprobs(head, part);
  }
  choice["finish_reason"] = finish_json(part.finish);
  return chunk_text(head, std::move(choice));
}

std::string usage_chunk(const AnswerHead& head, const Usage& usage) {
  OrderedJson out = head_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  out["choices"] = OrderedJson::array();
  out["usage"] = usage_json(usage);
  return as_text(out);
}

}  // namespace trireme::serve::api
