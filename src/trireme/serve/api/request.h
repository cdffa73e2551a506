// serve/api/request.h -- the bodies of /v1/completions and /v1/chat/completions, read and checked.
//
// Every field is honoured or refused: a name that is not known, and a value that asks for what is not there, are an
// HttpError 400 that names the field. Nothing is looked at later, so that an answer that has begun can be completed.
// Depends on: base, http/message.h, sampler.h, nlohmann json. No tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/serve/sampler.h"

namespace trireme::serve::api {

/// What requests are checked against.
struct ModelLimits {
  std::string model;
  std::int64_t vocab_size = 0;
  std::int64_t max_len = 0;  ///< prompt and new tokens
  std::size_t max_choices = 128;
};

/// A text, or tokens.
using Prompt = std::variant<std::string, std::vector<std::int64_t>>;

struct ApiRequest {
  bool chat = false;
  std::vector<Prompt> prompts;                                        ///< completions
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  ///< chat: of roles and texts
  std::optional<std::int64_t> max_tokens;
  std::size_t n = 1;
  bool stream = false, include_usage = false;
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  bool echo = false;  ///< completions: the prompt's text comes before the answer's
  SamplingParams sampling{.temperature = 1};
  std::optional<std::uint64_t> seed;
  std::optional<std::size_t> logprobs;  ///< with so many alternatives
  std::string salt;                     ///< cache_salt: whose prefixes are shared
};

/// HttpError 400; 404 for another model's name.
ApiRequest parse_completion(const nlohmann::json& body, const ModelLimits& limits);
ApiRequest parse_chat(const nlohmann::json& body, const ModelLimits& limits);

struct TokenizeRequest {
  std::string text;
  bool add_special = true;
};
/// {"prompt" or "content": text, "add_special_tokens": true}.
TokenizeRequest parse_tokenize(const nlohmann::json& body, const ModelLimits& limits);

}  // namespace trireme::serve::api
