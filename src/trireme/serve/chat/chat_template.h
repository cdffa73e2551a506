// serve/chat/chat_template.h -- messages become the text that a model was trained to answer.
//
//   const ChatTemplate format = find_chat_template(folder, tokenizer).value();
//   const std::string prompt = format.render({.messages = messages, .bos_token = "<s>"});
//
// A template is the Jinja text that a published tokenizer brings along, of which the part is read that such templates
// are written in: if, for, set, expressions, and the filters, tests and methods of template_functions.h. Everything
// else is refused by name when the template is read, before any request. Rendering is bounded in steps and in size.
// Depends on: base, data/tokenizer, http/message.h (HttpError for what a template raises), nlohmann json.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/serve/chat/template_ast.h"

namespace trireme::serve::chat {

struct RenderInput {
  Value messages = Value::array();  ///< {"role": ..., "content": ...}, and what else a template may ask for
  bool add_generation_prompt = true;
  std::string bos_token = {}, eos_token = {};
  Value more = Value::object();  ///< further variables, by name
};

class ChatTemplate {
 public:
  /// A ConfigError naming line and construct. `origin` says where it is from, for people.
  ChatTemplate(std::string_view source, std::string origin);

  /// A ConfigError where the template does what cannot be done, an HttpError 400 where it raises an exception.
  std::string render(const RenderInput& input) const;
  const std::string& origin() const { return origin_; }

 private:
  Body body_;
  std::string origin_;
};

/// The template of a model's folder: chat_template.jinja, chat_template of tokenizer_config.json, or, where the
/// tokenizer has the tokens of ChatML or Llama 3, the one that goes with them. None: the model has no chat format.
std::optional<ChatTemplate> find_chat_template(const std::filesystem::path& folder, const data::Tokenizer& tokenizer);

}  // namespace trireme::serve::chat
