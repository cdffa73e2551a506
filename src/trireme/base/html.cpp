#include "trireme/base/html.h"

namespace trireme {

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char sign : text) {
    switch (sign) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        const bool control = static_cast<unsigned char>(sign) < 0x20 && sign != '\n' && sign != '\t';
        if (control) {
          out += "\xEF\xBF\xBD";
        } else {
          out += sign;
        }
    }
  }
  return out;
}

std::string script_json(std::string json) {
  std::string out;
  out.reserve(json.size());
  for (const char sign : json) {
    if (sign == '<') {
      out += "\\u003c";
    } else {
      out += sign;
    }
  }
  return out;
}

}  // namespace trireme
