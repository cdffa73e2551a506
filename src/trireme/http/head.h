// http/head.h -- the head of a request, read strictly: a pure function from bytes to a value or a refusal.
//
// Nothing behind this point sees a byte that was not understood here. What two readers could take for two different
// requests (bare line feeds, folded lines, a length given twice) is refused, as proxies in front of us may read it
// in the other way. The limits are the caller's.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/http/message.h"

namespace trireme::http {

struct Head {
  std::string method, target;  // origin form: "/path?query"
  int minor_version = 1;       // of HTTP/1
  std::string host;            // as sent, with its port
  Fields headers;
  std::uint64_t content_length = 0;
  bool chunked = false, close = false, expects_continue = false;

  bool has_body() const { return chunked || content_length > 0; }
  const std::string* header(std::string_view name) const { return find_header(headers, name); }
};

struct HeadLimits {
  std::size_t bytes = 16 << 10;
  std::size_t headers = 100;
};

/// Where the head in `bytes` ends, its empty line included; nothing while that has not come. A start that can be no
/// head any more is given whole, so that it is refused without waiting for the rest.
std::optional<std::size_t> head_end(std::string_view bytes);

/// Throws HttpError: 400, 414, 415, 417, 431, 501 or 505, each with what is wrong.
Head parse_head(std::string_view bytes, const HeadLimits& limits);

/// A request's path cut at slashes and then decoded, so that %2F stays inside its segment; and its query.
struct Target {
  std::string path;  // as it was sent
  std::vector<std::string> segments;
  Fields query;
};
/// HttpError 400 for broken escapes, bytes that are no UTF-8, control characters and segments "." and "..".
Target parse_target(std::string_view target);

bool same_word(std::string_view a, std::string_view b);  // letters of ASCII in either case
bool is_token(std::string_view text);
bool is_field_value(std::string_view text);
/// Whether a list such as "gzip, br;q=0" names `word` with a weight above 0.
bool lists_word(std::string_view list, std::string_view word);

}  // namespace trireme::http
