// serve/model_text.h -- what a model's tokens mean: its tokenizer, its chat template, the tokens that end an answer.
//
// Depends on: base, data/tokenizer, api/request.h, chat/. No tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/serve/api/request.h"
#include "trireme/serve/chat/chat_template.h"

namespace trireme::serve {

struct ModelText {
  std::unique_ptr<data::Tokenizer> tokenizer;   ///< null: prompts are tokens, and answers have no text
  std::optional<chat::ChatTemplate> chat = {};  ///< none: no chat
  std::vector<std::int64_t> end_tokens = {};    ///< after which an answer is complete
};

/// Of a model's folder. `tokenizer` is a file, a folder or "bytes", or empty for none; `chat_template` says another
/// one, where it is not empty.
ModelText find_model_text(const std::filesystem::path& folder, const std::string& tokenizer,
                          const std::filesystem::path& chat_template);

/// Tokens of a prompt. HttpError 400 for what cannot be encoded.
std::vector<std::int64_t> encode_prompt(const ModelText& text, const api::Prompt& prompt,
                                        const api::ModelLimits& limits);
/// Tokens of messages, through the chat template, which says what stands around them.
std::vector<std::int64_t> encode_messages(const ModelText& text, const nlohmann::ordered_json& messages,
                                          const api::ModelLimits& limits);

}  // namespace trireme::serve
