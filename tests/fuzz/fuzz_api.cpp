// The body of a request to the inference server, and a chat template: any bytes are read or refused with words.
#include "tests/fuzz/fuzz.h"
#include "trireme/base/error.h"
#include "trireme/http/message.h"
#include "trireme/serve/api/request.h"
#include "trireme/serve/chat/chat_template.h"

namespace {

using namespace trireme;

const serve::api::ModelLimits kLimits{.model = "tiny", .vocab_size = 100, .max_len = 64, .max_choices = 4};

void look_at_request(const serve::api::ApiRequest& request) {
  fuzz::require(request.n >= 1 && request.n <= kLimits.max_choices, "n is within its bounds");
  fuzz::require(request.sampling.temperature >= 0 && request.sampling.top_p > 0 && request.sampling.top_p <= 1,
                "sampling is within its bounds");
  for (const std::string& stop : request.stop) fuzz::require(!stop.empty(), "a stop text is a text");
  for (const auto& prompt : request.prompts) {
    if (const auto* tokens = std::get_if<std::vector<std::int64_t>>(&prompt)) {
      fuzz::require(!tokens->empty(), "a prompt has tokens");
      for (const std::int64_t token : *tokens)
        fuzz::require(token >= 0 && token < kLimits.vocab_size, "tokens are known");
    }
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    fuzz::require(token >= 0 && token < kLimits.vocab_size && bias >= -100 && bias <= 100, "biases are within bounds");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  for (const bool chat : {false, true}) {
    try {
      const auto json = http::json_body({.body = body});
      look_at_request(chat ? serve::api::parse_chat(json, kLimits) : serve::api::parse_completion(json, kLimits));
    } catch (const http::HttpError& error) {
      fuzz::require(error.status() >= 400 && error.status() < 500 && !error.message().empty(), "a refusal has words");
      error.response();
    }
  }
  try {
    const serve::chat::ChatTemplate format(body, "fuzz");
    format.render({.messages = {{{"role", "user"}, {"content", "Hi"}}}, .bos_token = "<s>"});
  } catch (const Error& error) {
    fuzz::require(!error.message().empty(), "a refusal has words");
  }
  return 0;
}
