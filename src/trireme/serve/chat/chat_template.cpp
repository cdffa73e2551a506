#include "trireme/serve/chat/chat_template.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/formats/json_text.h"
#include "trireme/serve/chat/template_ast.h"

namespace trireme::serve::chat {
namespace {

namespace fs = std::filesystem;

// The formats that data/corpus/chat.h trains with, for models whose folder brings no template.
constexpr std::string_view kChatMlTemplate =
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr std::string_view kLlama3Template =
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}";

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A text; or a list of named ones, of which "default" counts.
std::optional<std::string> template_in(const fs::path& config) {
  const auto text = read_file(config);
  if (!text) return std::nullopt;
  const auto json = formats::parse_json(*text, config.string());
  const auto found = json.is_object() ? json.find("chat_template") : json.end();
  if (!json.is_object() || found == json.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const auto& each : *found) {
      if (each.is_object() && each.value("name", "") == "default" && each.contains("template") &&
          each["template"].is_string()) {
        return each["template"].get<std::string>();
      }
    }
  }
  throw ConfigError(
      fmt::format("chat_template of {} is neither a text nor a list with one named default", config.string()));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string origin)
    : body_(with_context(fmt::format("while reading the chat template of {}", origin),
                         [&] { return parse_template(source); })),
      origin_(std::move(origin)) {}

std::optional<ChatTemplate> find_chat_template(const fs::path& folder, const data::Tokenizer& tokenizer) {
  const fs::path jinja = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  if (const auto text = read_file(jinja)) return ChatTemplate(*text, jinja.string());
  if (const auto text = template_in(config)) return ChatTemplate(*text, config.string());
  if (tokenizer.find("<|im_start|>") && tokenizer.find("<|im_end|>")) {
    return ChatTemplate(kChatMlTemplate, "ChatML, by the tokenizer's tokens");
  }
  if (tokenizer.find("<|start_header_id|>") && tokenizer.find("<|eot_id|>")) {
    return ChatTemplate(kLlama3Template, "Llama 3, by the tokenizer's tokens");
  }
  return std::nullopt;
}

}  // namespace trireme::serve::chat
