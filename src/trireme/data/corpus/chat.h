// data/corpus/chat.h -- conversations become tokens with a loss mask: what the assistant says is learnt, the rest is
// read.
//
//   const ChatEncoder encoder(ChatFormat::kChatMl, tokenizer);
//   encoder.encode(conversation, ids, learnt);
//
// A conversation is a list of messages, each with a role and a content. What comes before an answer is encoded as one
// text and the answer by itself, as at inference, where a prompt is encoded and tokens are generated behind it. An
// answer is learnt with the token that ends it.
// Depends on: data/tokenizer/tokenizer.h, formats.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/text.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/formats/json_reader.h"

namespace trireme::data {

enum class ChatFormat : std::uint8_t {
  kChatMl,  ///< <|im_start|>role\ncontent<|im_end|>\n: Qwen and many others
  kLlama3,  ///< <|begin_of_text|>, then <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
};
std::span<const Named<ChatFormat>> enum_names(std::type_identity<ChatFormat>);

struct ChatMessage {
  std::string role, content;
};
using Conversation = std::vector<ChatMessage>;

/// A list of {"role": ..., "content": ...}, or of {"from": ..., "value": ...} with the roles human and gpt. FormatError
/// where a message lacks either or nobody answers.
Conversation read_conversation(formats::JsonReader& json);

class ChatEncoder {
 public:
  /// Borrows the tokenizer. ConfigError naming the token of the format that it lacks.
  ChatEncoder(ChatFormat format, const Tokenizer& tokenizer);

  /// Appends the tokens, and for each 1 where it is learnt. `end`: a token behind the conversation, which is not
  /// learnt; left out where it is the one that ends an answer.
  void encode(const Conversation& conversation, std::optional<std::int32_t> end, std::vector<std::int32_t>& ids,
              std::vector<std::uint8_t>& learnt) const;

 private:
  struct Format;
  static const Format& format_of(ChatFormat format);

  const Format& format_;
  const Tokenizer& tokenizer_;
  std::int32_t end_of_turn_ = -1;
};

}  // namespace trireme::data
