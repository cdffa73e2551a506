// serve/chat/template_lexer.h -- a chat template cut into text, {{ expressions }} and {% statements %}, and those into
// tokens.
//
// As Hugging Face runs Jinja, with trim_blocks and lstrip_blocks: a line break behind a statement, and blanks before
// one that begins a line, are no text; {%- and -%} take all white space.
// Depends on: base.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::serve::chat {

struct Token {
  enum class Kind : std::uint8_t {
    kText,
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text = {};
  int line = 1;
};

/// A ConfigError with the line for what is no template.
std::vector<Token> tokenise_template(std::string_view source);

}  // namespace trireme::serve::chat
