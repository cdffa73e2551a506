// serve/api/response.h -- answers as OpenAI's clients read them: whole ones and the chunks of a stream.
//
// Depends on: data/tokenizer, engine's value types, nlohmann json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/serve/sampler.h"

namespace trireme::serve::api {

struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

/// What stands in all objects of one answer.
struct AnswerHead {
  bool chat = false;
  std::string id, model, fingerprint;
  std::int64_t created = 0;                    ///< seconds since 1970
  bool include_usage = false;                  ///< of a stream: chunks say null, and a last one says it
  const data::Tokenizer* tokenizer = nullptr;  ///< for logprobs; may be null
};

/// One continuation, or a piece of it.
struct ChoicePart {
  std::size_t index = 0;
  std::string text;
  std::vector<Logprobs> logprobs;
  bool wants_logprobs = false;
  std::int64_t text_offset = 0;       ///< completions: where the first token's text begins
  std::optional<std::string> finish;  ///< "stop", "length"
};

std::string whole_answer(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage);
/// Chat: the first chunk of a choice says who speaks.
std::string first_chunk(const AnswerHead& head, std::size_t index);
std::string chunk(const AnswerHead& head, const ChoicePart& part);
/// The last chunk, with include_usage.
std::string usage_chunk(const AnswerHead& head, const Usage& usage);

}  // namespace trireme::serve::api
