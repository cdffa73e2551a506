#include "trireme/data/corpus/chat.h"

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using formats::JsonReader;
using formats::shown;

constexpr std::array<Named<ChatFormat>, 2> kChatFormats{
    {{"chatml", ChatFormat::kChatMl}, {"llama3", ChatFormat::kLlama3}}};
constexpr std::string_view kAssistant = "assistant";

/// Names that other lists of conversations have for the same roles.
std::string common_role(std::string role) {
  if (role == "human") return "user";
  if (role == "gpt") return std::string(kAssistant);
  return role;
}

ChatMessage read_message(JsonReader& json) {
  std::optional<std::string> role, content;
  const std::uint64_t begin = json.value_position();
  json.object([&](const std::string& key) {
    const bool names_role = key == "role" || key == "from";
    if (!names_role && key != "content" && key != "value") return json.skip();
    if (json.peek() != JsonReader::Kind::kString)
      json.fail(json.value_position(), fmt::format("{} of a message is no text", shown(key)));
    auto& member = names_role ? role : content;
    if (member) json.fail(json.key_position(), fmt::format("{} of a message is there twice", shown(key)));
    member = json.string();
  });
  if (!role || !content)
    json.fail(begin, fmt::format("a message has no {}", role ? "content" : "role"),
              "a message is {\"role\": \"user\", \"content\": \"...\"}");
  return {common_role(std::move(*role)), std::move(*content)};
}

}  // namespace

std::span<const Named<ChatFormat>> enum_names(std::type_identity<ChatFormat>) { return kChatFormats; }

Conversation read_conversation(JsonReader& json) {
  Conversation conversation;
  bool answered = false;
  const std::uint64_t begin = json.value_position();
  json.array([&] {
    conversation.push_back(read_message(json));
    answered |= conversation.back().role == kAssistant;
  });
  if (!answered)
    json.fail(begin, "no message is the assistant's, so nothing would be learnt",
              "leave the conversation out, or name the role assistant");
  return conversation;
}

struct ChatEncoder::Format {
  std::string_view begin;                              // before the first message
  std::string_view before_role, after_role, end, gap;  // `end` is a special token; `gap` comes between messages
  std::array<std::string_view, 3> tokens;              // what a tokenizer must have
};

const ChatEncoder::Format& ChatEncoder::format_of(ChatFormat format) {
  static constexpr Format kChatMl{.begin = "",
                                  .before_role = "<|im_start|>",
                                  .after_role = "\n",
                                  .end = "<|im_end|>",
                                  .gap = "\n",
                                  .tokens = {"<|im_start|>", "<|im_end|>", "<|im_end|>"}};
  static constexpr Format kLlama3{.begin = "<|begin_of_text|>",
                                  .before_role = "<|start_header_id|>",
                                  .after_role = "<|end_header_id|>\n\n",
                                  .end = "<|eot_id|>",
                                  .gap = "",
                                  .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}};
  return format == ChatFormat::kChatMl ? kChatMl : kLlama3;
}

ChatEncoder::ChatEncoder(ChatFormat format, const Tokenizer& tokenizer)
    : format_(format_of(format)), tokenizer_(tokenizer) {
  const auto has_all = [&](const Format& other) {
    return std::ranges::all_of(other.tokens, [&](std::string_view token) { return tokenizer.find(token).has_value(); });
  };
  for (const std::string_view token : format_.tokens) {
    if (tokenizer.find(token)) continue;
    std::string hint = fmt::format("learn one with --special: trireme tokenize train ... --special '{}' --special '{}'",
                                   format_.tokens[0], format_.tokens[1]);
    for (const auto& [name, other] : kChatFormats)
      if (has_all(format_of(other))) hint = fmt::format("this tokenizer's format is --chat {}", name);
    throw ConfigError(fmt::format("{} has no token {}, which --chat {} is written with", tokenizer.source(), token,
                                  name_in(enum_names(std::type_identity<ChatFormat>()), format)),
                      hint);
  }
  end_of_turn_ = *tokenizer.find(format_.end);
}

void ChatEncoder::encode(const Conversation& conversation, std::optional<std::int32_t> end,
                         std::vector<std::int32_t>& ids, std::vector<std::uint8_t>& learnt) const {
  std::string read(tokenizer_.find(format_.begin) ? format_.begin : "");  // up to the next answer
  const auto flush = [&] {
    if (!read.empty()) tokenizer_.encode(read, {.add_special = false}, ids);
    learnt.resize(ids.size(), 0);
    read.clear();
  };
  for (const ChatMessage& message : conversation) {
    read.append(format_.before_role).append(message.role).append(format_.after_role);
    if (message.role == kAssistant) {
      flush();
      tokenizer_.encode(message.content + std::string(format_.end), {.add_special = false}, ids);
      learnt.resize(ids.size(), 1);
    } else {
      read.append(message.content).append(format_.end);
    }
    read += format_.gap;
  }
  flush();
  if (end && *end != end_of_turn_) {
    ids.push_back(*end);
    learnt.push_back(0);
  }
}

}  // namespace trireme::data
