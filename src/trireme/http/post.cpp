#include "trireme/http/post.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/plugin.h"
#include "trireme/http/codec.h"

namespace trireme::http {

Address parse_address(std::string_view url) {
  const bool known = url.starts_with("http://") || url.starts_with("https://");
  const std::size_t host = known ? url.find("://") + 3 : 0;
  const std::size_t slash = std::min(url.find_first_of("/?", host), url.size());
  const std::string_view authority = url.substr(host, slash - host);
  const bool printable = std::ranges::all_of(url, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!known || authority.empty() || !printable || authority.find('@') != std::string_view::npos)
    throw ConfigError(fmt::format("\"{}\" is no address that can be posted to", url), "write: https://host:port/path");
  std::string path(url.substr(slash));
  if (!path.starts_with('/')) path.insert(path.begin(), '/');
  return {.origin = std::string(url.substr(0, slash)), .path = std::move(path)};
}

PostAnswer post_json(const PostRequest& request) {
  return Plugin::load("http").function<CodecEntry>(kCodecEntry)()->post(request);
}

}  // namespace trireme::http
