#include "trireme/http/head.h"

#include <algorithm>
#include <charconv>

#include "trireme/base/text.h"

namespace trireme::http {
namespace {

constexpr std::size_t kMaxQueryFields = 256;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

bool is_token_char(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

[[noreturn]] void bad(std::string why) { throw HttpError(400, std::move(why)); }

// A proxy's form, "http://host/path", names the host a second time; that one counts.
void take_absolute_form(Head& head) {
  constexpr std::string_view kScheme = "http://";
  if (head.target.size() < kScheme.size() || !same_word(head.target.substr(0, kScheme.size()), kScheme)) return;
  const std::size_t path = head.target.find_first_of("/?", kScheme.size());
  head.host = head.target.substr(kScheme.size(), path == std::string::npos ? path : path - kScheme.size());
  head.target = path == std::string::npos ? "/" : head.target.substr(path);
  if (head.target[0] == '?') head.target.insert(0, "/");
}

void parse_request_line(std::string_view line, Head& head) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) bad("the request line is not \"METHOD TARGET HTTP/1.1\"");
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method) || method.size() > 32) bad("the request's method is no word");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (!version.starts_with("HTTP/")) bad("the request line does not end with HTTP/1.1");
    throw HttpError(505, "this server speaks HTTP/1.1 and HTTP/1.0");
  }
  const auto printable = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (target.empty() || !std::ranges::all_of(target, printable))
    bad("the request's target holds bytes that must be percent-encoded");
  head.method = method;
  head.target = target;
  head.minor_version = version.back() - '0';
}

void parse_header_line(std::string_view line, Head& head) {
  if (line.front() == ' ' || line.front() == '\t') bad("a header is folded over two lines");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) bad("a header has no colon");
  const std::string_view name = line.substr(0, colon), value = line.substr(colon + 1);
  if (!is_token(name)) bad("a header's name is no word");
  if (!is_field_value(value)) bad(fmt::format("the header {} holds control characters", name));
  head.headers.emplace_back(name, trimmed(value));
}

// The one header of that name; nullptr when there is none. What decides where a request ends must be said once.
const std::string* only_header(const Head& head, std::string_view name) {
  const std::string* found = nullptr;
  for (const auto& [key, value] : head.headers) {
    if (!same_word(key, name)) continue;
    if (found) bad(fmt::format("the header {} is there twice", name));
    found = &value;
  }
  return found;
}

void read_framing(Head& head) {
  const std::string* length = only_header(head, "Content-Length");
  const std::string* encoding = only_header(head, "Transfer-Encoding");
  if (length && encoding) bad("a request has either Content-Length or Transfer-Encoding");
  if (length) {
    const char* end = length->data() + length->size();
    const auto [stop, error] = std::from_chars(length->data(), end, head.content_length);
    if (length->empty() || error != std::errc() || stop != end) bad("Content-Length is not a number of bytes");
  }
  if (encoding) {
    if (head.minor_version == 0) bad("HTTP/1.0 knows no Transfer-Encoding");
    if (!same_word(*encoding, "chunked")) throw HttpError(501, "the only Transfer-Encoding known here is chunked");
    head.chunked = true;
  }
  if (head.has_body() && head.method == "HEAD") bad("HEAD has no body");
  if (const std::string* coding = head.header("Content-Encoding"); coding && !same_word(*coding, "identity"))
    throw HttpError(415, "a request's body must not be compressed");
  if (const std::string* expect = head.header("Expect")) {
    if (!same_word(*expect, "100-continue")) throw HttpError(417, "the only Expect known here is 100-continue");
    head.expects_continue = head.has_body() && head.minor_version == 1;
  }
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t more = lead < 0x80 ? 0 : lead >= 0xc2 && lead < 0xe0 ? 1 : (lead & 0xf0) == 0xe0 ? 2 : 3;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || text.size() - i <= more) return false;
    for (std::size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      // Second bytes that would spell a character the long way, a surrogate, or one beyond U+10FFFF.
      const unsigned char low = k > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
      const unsigned char high = k > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) return false;
    }
    i += more + 1;
  }
  return true;
}

std::string decoded(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    unsigned byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || stop != digits.data() + 2)
      bad("a percent sign in the request's target is not followed by two hexadecimal digits");
    out += static_cast<char>(byte);
    i += 2;
  }
  if (!is_utf8(out)) bad("the request's target does not decode to UTF-8");
  return out;
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

bool is_token(std::string_view text) { return !text.empty() && std::ranges::all_of(text, is_token_char); }

bool is_field_value(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) { return is_control(c) && c != '\t'; });
}

bool lists_word(std::string_view list, std::string_view word) {
  for (const std::string& item : split(list, ',')) {
    const std::string_view entry = item;
    const std::size_t end = entry.find(';');
    if (!same_word(trimmed(entry.substr(0, end)), word)) continue;
    if (end == std::string_view::npos) return true;
    const std::string_view weight = trimmed(entry.substr(end + 1));
    return !(weight.starts_with("q=0") && weight.find_first_not_of(".0", 2) == std::string_view::npos);
  }
  return false;
}

std::optional<std::size_t> head_end(std::string_view bytes) {
  std::size_t begin = 0;
  while (bytes.substr(begin).starts_with("\r\n")) begin += 2;  // some clients end a body with a line too many
  const std::size_t end = bytes.find("\r\n\r\n", begin);
  if (end != std::string_view::npos) return end + 4;
  const bool odd = bytes.find('\0') != std::string_view::npos || bytes.find("\n\n") != std::string_view::npos;
  return odd ? std::optional(bytes.size()) : std::nullopt;
}

Head parse_head(std::string_view bytes, const HeadLimits& limits) {
  while (bytes.starts_with("\r\n")) bytes.remove_prefix(2);
  if (bytes.size() > limits.bytes) {
    const bool long_line = bytes.substr(0, limits.bytes).find("\r\n") == std::string_view::npos;
    throw HttpError(long_line ? 414 : 431, fmt::format("a request's head may have {} bytes", limits.bytes));
  }
  Head head;
  bool first = true;
  while (true) {
    const std::size_t end = bytes.find("\r\n");
    if (end == std::string_view::npos) bad("the request's head does not end with an empty line");
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 2);
    if (line.empty()) break;
    if (line.find_first_of("\r\n") != std::string_view::npos) bad("lines of a head end with CR LF, and hold neither");
    if (first) {
      parse_request_line(line, head);
    } else if (head.headers.size() == limits.headers) {
      throw HttpError(431, fmt::format("a request may have {} headers", limits.headers));
    } else {
      parse_header_line(line, head);
    }
    first = false;
  }
  if (first) bad("the request's head is empty");
  read_framing(head);
  if (const std::string* host = only_header(head, "Host")) head.host = *host;
  take_absolute_form(head);
  const std::string* connection = head.header("Connection");
  head.close = head.minor_version == 0 || (connection && lists_word(*connection, "close"));
  return head;
}

Target parse_target(std::string_view target) {
  if (!target.starts_with('/')) bad("the request's target is no path");
  target = target.substr(0, target.find('#'));
  const std::size_t query = target.find('?');
  Target out;
  out.path = target.substr(0, query);
  for (const std::string& part : split(std::string_view(out.path).substr(1), '/')) {
    std::string segment = decoded(part, false);
    if (segment == "." || segment == "..") bad("a request's path must not hold the segments \".\" and \"..\"");
    if (std::ranges::any_of(segment, [](unsigned char c) { return is_control(c); }))
      bad("a request's path must not hold control characters");
    out.segments.push_back(std::move(segment));
  }
  if (query == std::string_view::npos) return out;
  for (const std::string& pair : split(target.substr(query + 1), '&')) {
    if (pair.empty()) continue;
    if (out.query.size() == kMaxQueryFields) bad(fmt::format("a query may have {} fields", kMaxQueryFields));
    const std::string_view text = pair;
    const std::size_t equals = text.find('=');
    out.query.emplace_back(decoded(text.substr(0, equals), true),
                           equals == std::string_view::npos ? "" : decoded(text.substr(equals + 1), true));
  }
  return out;
}

}  // namespace trireme::http
