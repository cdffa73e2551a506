// The head of a request: any bytes are read or refused; what is read can be written in one way only, and is read back.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "trireme/http/access.h"
#include "trireme/http/events.h"
#include "trireme/http/head.h"
#include "trireme/http/router.h"

namespace {

using namespace trireme::http;

bool is_refusal(const HttpError& error) {
  return error.status() >= 400 && error.status() < 600 && !error.message().empty();
}

std::string written(const Head& head) {
  std::string out = fmt::format("{} {} HTTP/1.{}\r\n", head.method, head.target, head.minor_version);
  for (const auto& [name, value] : head.headers) out += fmt::format("{}: {}\r\n", name, value);
  return out + "\r\n";
}

void look_at_target(const std::string& text) {
  static const Router router = [] {
    Router made;
    for (const char* pattern : {"/", "/runs/{run}/events", "/v1/{rest...}", "/v1/models"})
      made.add({"GET", pattern, {}, [](const Request&) { return Response(); }});
    return made;
  }();
  const Target target = parse_target(text);
  for (const std::string& segment : target.segments) {
    fuzz::require(segment != ".." && segment != "." && segment.find('\0') == segment.npos, "a path leads nowhere else");
    fuzz::require(std::ranges::none_of(segment, [](unsigned char c) { return c < 0x20; }), "no control characters");
  }
  std::string allowed;
  const Router::Match match = router.find("GET", target, allowed);
  for (const auto& [name, value] : match.params) fuzz::require(!value.empty(), "a parameter is something");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const Access access({.keys = {"key"}, .cookie = "trireme", .allowed_hosts = {"box.lan"}}, "127.0.0.1", true);
  static const EventFeed feed(4, 17);
  const std::optional<std::size_t> end = head_end(bytes);
  if (!end) return 0;
  fuzz::require(*end <= size, "a head ends within what came");
  try {
    const Head head = parse_head(bytes.substr(0, *end), {.bytes = 4096, .headers = 32});
    fuzz::require(head.headers.size() <= 32 && is_token(head.method), "limits hold");
    fuzz::require(!(head.chunked && head.content_length > 0), "a body has one length");
    for (const auto& [name, value] : head.headers)
      fuzz::require(is_token(name) && is_field_value(value), "headers hold no line breaks");
    const std::string text = written(head);
    fuzz::require(head_end(text) == text.size(), "what is written ends where it ends");
    const Head again = parse_head(text, {.bytes = 8192, .headers = 32});
    fuzz::require(again.headers == head.headers && again.target == head.target && again.chunked == head.chunked &&
                      again.content_length == head.content_length && again.close == head.close,
                  "what is written is read back");
    feed.place_of(head.header("Last-Event-ID"));
    if (const std::string* list = head.header("Accept-Encoding")) lists_word(*list, "gzip");
    fuzz::require(host_without_port(head.host).size() <= head.host.size(), "a host is a part of the header");
    look_at_target(head.target);
    access.check(head, Need::kKey);
  } catch (const HttpError& error) {
    fuzz::require(is_refusal(error), "a refusal has a status and words");
    error.response();
  }
  return 0;
}
