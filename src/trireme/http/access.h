// http/access.h -- who may ask what: keys, names of this server, pages of other origins.
//
// A page that some other site shows in the user's browser can reach 127.0.0.1 as well. It cannot set the Host header
// to ours (a rebound DNS name stays in it), and its browser tells where a request comes from; both are checked. What
// changes something needs a key in a header, which no page of another origin can send.
// Depends on: base, head.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/http/head.h"

namespace trireme::http {

struct AccessOptions {
  std::vector<std::string> keys;           // none: everybody on this machine may
  bool keys_for_reading = true;            // false: GET and HEAD need none
  std::string cookie;                      // a cookie with this name is as good as the header, for GET and HEAD only
  std::vector<std::string> allowed_hosts;  // further names of this server, without port
};

/// What a route asks of those who call it.
enum class Need : std::uint8_t { kKey, kNothing };

class Access {
 public:
  /// `address` is what the server listens at, as it was asked for. ConfigError where that can be reached from
  /// elsewhere and there are no keys, or reading needs none; and for keys that cannot be sent.
  Access(AccessOptions options, std::string_view address, bool loopback);

  /// Throws HttpError: 421 for another host's name, 403 for another origin, 401 without a valid key.
  void check(const Head& head, Need need) const;

 private:
  bool known_host(std::string_view host) const;
  bool known_origin(std::string_view origin, std::string_view host) const;
  bool has_key(const Head& head) const;
  bool is_key(std::string_view candidate) const;

  AccessOptions options_;
  std::vector<std::string> hosts_;
  bool all_addresses_ = false;
};

/// One key a line; empty lines and those that begin with # are passed over. IoError, or ConfigError when there is none.
std::vector<std::string> read_keys(const std::string& path);

/// Whether they are equal, in a time that depends on the lengths alone.
bool equal_in_constant_time(std::string_view a, std::string_view b);

/// The value of Set-Cookie that lets a browser read with `key`: not for scripts, not for requests from other sites.
std::string key_cookie(std::string_view name, std::string_view key);

/// "[::1]" of "[::1]:8000"; empty when it is no host with an optional port.
std::string_view host_without_port(std::string_view host);

}  // namespace trireme::http
