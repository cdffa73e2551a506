// http/post.h -- one POST to somebody else's server, for webhooks.
//
// The client is cpp-httplib's, with TLS for https; redirects are not followed. It blocks: call it from a thread that
// may wait.
// Depends on: message; the plugin.
#pragma once

#include <chrono>
#include <string>

#include "trireme/http/message.h"

namespace trireme::http {

/// "https://host:port/path"; ConfigError where it is no such address.
struct Address {
  std::string origin;  // "https://host:port"
  std::string path;    // "/path", with the query
};
Address parse_address(std::string_view url);

struct PostRequest {
  Address address;
  Fields headers;  // beside Content-Type
  std::string body;
  std::chrono::milliseconds timeout{5000};  // for each of connecting, writing and reading
};
struct PostAnswer {
  int status = 0;   // 0: there was no answer
  std::string why;  // then
};
/// JSON to the address.
PostAnswer post_json(const PostRequest& request);

}  // namespace trireme::http
