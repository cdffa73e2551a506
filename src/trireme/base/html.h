// base/html.h -- text that comes from files, made safe to stand in a page or a drawing.
//
// Depends on: std.
#pragma once

#include <string>
#include <string_view>

namespace trireme {

/// For text and for attribute values in quotes: & < > " ' become entities, control characters U+FFFD.
std::string escaped(std::string_view text);

/// JSON that may stand in a <script> element: no "<" is left that could end it.
std::string script_json(std::string json);

}  // namespace trireme
