// serve/chat/template_parser.h -- from the text of a chat template to its tree.
//
// Depends on: template_ast.h, template_lexer.h.
#pragma once

#include <string_view>

#include "trireme/serve/chat/template_ast.h"

namespace trireme::serve::chat {

/// A ConfigError with the line, naming the construct, for what is no Jinja or not supported of it: macros, includes,
/// inheritance, filters and tests that template_render.cpp does not have.
Body parse_template(std::string_view source);

}  // namespace trireme::serve::chat
