#include "trireme/serve/model_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/formats/json_text.h"
#include "trireme/http/message.h"
#include "trireme/serve/api/fields.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMaxConfigBytes = 64 << 20;

/// eos_token_id of a configuration: a number or a list.
void add_end_tokens(const fs::path& config, std::vector<std::int64_t>& ends) {
  if (!fs::exists(config)) return;
  const auto json = formats::parse_json(read_text_file(config, kMaxConfigBytes), config.string());
  if (!json.is_object() || !json.contains("eos_token_id")) return;
  const auto& ids = json["eos_token_id"];
  if (ids.is_number_integer()) ends.push_back(ids.get<std::int64_t>());
  if (!ids.is_array()) return;
  for (const auto& id : ids) {
    if (id.is_number_integer()) ends.push_back(id.get<std::int64_t>());
  }
}

void check_vocabulary(const std::vector<std::int32_t>& ids, const char* field, const api::ModelLimits& limits) {
  for (const std::int32_t id : ids) {
    if (id < limits.vocab_size) continue;
    api::refuse_field(field, fmt::format("the text has token {} of the tokenizer, but the model has {} tokens", id,
                                         limits.vocab_size));
  }
}

}  // namespace

ModelText find_model_text(const fs::path& folder, const std::string& tokenizer, const fs::path& chat_template) {
  ModelText text;
  add_end_tokens(folder / "generation_config.json", text.end_tokens);
  add_end_tokens(folder / "config.json", text.end_tokens);
  if (tokenizer.empty()) {
    if (!chat_template.empty()) {
      throw ConfigError("a chat template needs a tokenizer, and the model has none", "give --tokenizer FILE");
    }
    return text;
  }
  text.tokenizer = data::load_tokenizer(tokenizer);
  const auto add = [&](std::optional<std::int32_t> id) {
    if (id && std::ranges::find(text.end_tokens, *id) == text.end_tokens.end()) text.end_tokens.push_back(*id);
  };
  add(text.tokenizer->roles().eos);
  if (chat_template.empty()) {
    const fs::path beside = fs::is_directory(tokenizer) ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
    text.chat =
        chat::find_chat_template(fs::exists(folder / "tokenizer_config.json") ? folder : beside, *text.tokenizer);
  } else {
    text.chat.emplace(read_text_file(chat_template, kMaxConfigBytes), chat_template.string());
  }
  // What ends a turn ends an answer, whether or not the configuration says so.
  if (text.chat) {
    for (const char* name : {"<|im_end|>", "<|eot_id|>"}) add(text.tokenizer->find(name));
  }
  return text;
}

std::vector<std::int64_t> encode_prompt(const ModelText& text, const api::Prompt& prompt,
                                        const api::ModelLimits& limits) {
  if (const auto* tokens = std::get_if<std::vector<std::int64_t>>(&prompt)) return *tokens;
  if (!text.tokenizer) {
    api::refuse_field("prompt", "this model has no tokenizer: give the prompt as a list of token numbers",
                      "unsupported_parameter");
  }
  std::vector<std::int32_t> ids;
  try {
    ids = text.tokenizer->encode(std::get<std::string>(prompt));
  } catch (const ConfigError& error) {
    api::refuse_field("prompt", error.message());
  }
  if (ids.empty()) {
    const auto& roles = text.tokenizer->roles();
    const auto first = roles.bos ? roles.bos : roles.eos;
    if (!first) api::refuse_field("prompt", "prompt is empty, and the tokenizer has no token that begins a text");
    ids.push_back(*first);
  }
  check_vocabulary(ids, "prompt", limits);
  return {ids.begin(), ids.end()};
}

std::vector<std::int64_t> encode_messages(const ModelText& text, const nlohmann::ordered_json& messages,
                                          const api::ModelLimits& limits) {
  if (!text.tokenizer || !text.chat) {
    throw http::HttpError(400,
                          text.tokenizer ? "this model has no chat template: ask /v1/completions, or start the server "
                                           "with --chat-template FILE"
                                         : "this model has no tokenizer: ask /v1/completions with tokens",
                          {.type = "invalid_request_error", .code = "no_chat_template", .param = "messages"});
  }
  const auto& roles = text.tokenizer->roles();
  const auto text_of = [&](std::optional<std::int32_t> id) {
    const std::int32_t one[] = {id.value_or(0)};
    return id ? text.tokenizer->decode(one, {.skip_special = false}) : std::string();
  };
  std::string rendered;
  try {
    rendered =
        text.chat->render({.messages = messages, .bos_token = text_of(roles.bos), .eos_token = text_of(roles.eos)});
  } catch (const ConfigError& error) {
    api::refuse_field("messages", error.message());
  }
  // The template has written what stands around a text, so the tokenizer adds nothing.
  std::vector<std::int32_t> ids;
  try {
    ids = text.tokenizer->encode(rendered, {.add_special = false});
  } catch (const ConfigError& error) {
    api::refuse_field("messages", error.message());
  }
  check_vocabulary(ids, "messages", limits);
  if (ids.empty()) api::refuse_field("messages", "the messages make an empty prompt");
  return {ids.begin(), ids.end()};
}

}  // namespace trireme::serve
