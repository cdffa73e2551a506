#include "trireme/http/access.h"

#include <arpa/inet.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "trireme/base/log.h"
#include "trireme/base/text.h"

namespace trireme::http {
namespace {

bool is_ip_literal(std::string_view host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  if (host.starts_with('[') && host.ends_with(']'))
    return inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), address.data()) == 1;
  return inet_pton(AF_INET, std::string(host).c_str(), address.data()) == 1;
}

std::string machine_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

bool reads_only(const Head& head) { return head.method == "GET" || head.method == "HEAD"; }

// The value of `name` in "a=1; b=2"; empty when it is not there.
std::string_view cookie_value(std::string_view cookies, std::string_view name) {
  while (!cookies.empty()) {
    const std::size_t end = std::min(cookies.find(';'), cookies.size());
    const std::string_view pair = trimmed(cookies.substr(0, end));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=')
      return pair.substr(name.size() + 1);
    cookies.remove_prefix(std::min(end + 1, cookies.size()));
  }
  return {};
}

// As it stands in a Host header: an IPv6 address in brackets.
std::string in_brackets(std::string_view address) {
  const bool bare = address.find(':') != std::string_view::npos && !address.starts_with('[');
  return bare ? fmt::format("[{}]", address) : std::string(address);
}

}  // namespace

Access::Access(AccessOptions options, std::string_view address, bool loopback) : options_(std::move(options)) {
  for (const std::string& key : options_.keys) {
    const bool sendable = std::ranges::all_of(key, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (key.empty() || !sendable || key.find_first_of(",;\"\\") != std::string::npos)
      throw ConfigError(
          "an API key is empty or holds a space, a comma, a semicolon, a quote, a backslash or a "
          "character outside of ASCII, and could not be sent in a header",
          "make one with: openssl rand -hex 24");
  }
  if (!loopback && options_.keys.empty())
    throw ConfigError(fmt::format("listening at {} makes this server reachable from other machines, and it has no API "
                                  "key",
                                  address),
                      "give it a key, or listen at 127.0.0.1 and come through an SSH tunnel");
  if (!loopback && !options_.keys_for_reading)
    throw ConfigError(fmt::format("at {} other machines could read everything without a key", address),
                      "ask for keys for reading too, or listen at 127.0.0.1");
  all_addresses_ = address == "0.0.0.0" || address == "::" || address == "[::]";
  hosts_ = {"localhost", "127.0.0.1", "[::1]", in_brackets(address)};
  if (!loopback) hosts_.push_back(machine_name());
  for (const std::string& host : options_.allowed_hosts) hosts_.push_back(in_brackets(host));
}

bool Access::known_host(std::string_view host) const {
  const std::string_view name = host_without_port(host);
  if (name.empty()) return false;
  // A rebound name is never an address, and all of this machine's are ours.
  if (all_addresses_ && is_ip_literal(name)) return true;
  return std::ranges::any_of(hosts_, [&](const std::string& known) { return same_word(known, name); });
}

bool Access::known_origin(std::string_view origin, std::string_view host) const {
  const std::size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;  // "null", of sandboxed pages
  const std::string_view authority = origin.substr(scheme + 3);
  if (same_word(authority, host)) return true;
  // Behind a proxy the browser knows us by another name. The names that are always known do not count here: a page of
  // another server on this machine is on localhost too.
  const std::string_view name = host_without_port(authority);
  return !name.empty() && std::ranges::any_of(options_.allowed_hosts, [&](const std::string& allowed) {
    return same_word(in_brackets(allowed), name);
  });
}

bool Access::is_key(std::string_view candidate) const {
  bool found = false;
  for (const std::string& key : options_.keys) found |= equal_in_constant_time(key, candidate);  // all, always
  return found;
}

bool Access::has_key(const Head& head) const {
  constexpr std::string_view kScheme = "Bearer ";
  if (const std::string* given = head.header("Authorization");
      given && given->size() > kScheme.size() && same_word(given->substr(0, kScheme.size()), kScheme))
    return is_key(trimmed(std::string_view(*given).substr(kScheme.size())));
  if (options_.cookie.empty() || !reads_only(head)) return false;
  return std::ranges::any_of(head.headers, [&](const auto& header) {
    return same_word(header.first, "Cookie") && is_key(cookie_value(header.second, options_.cookie));
  });
}

void Access::check(const Head& head, Need need) const {
  if (head.host.empty()) throw HttpError(400, "the request has no Host header");
  if (!known_host(head.host))
    throw HttpError(421,
                    fmt::format("this server does not answer for the host \"{}\"; names it does answer for can be "
                                "added where it is started (allowed hosts)",
                                head.host),
                    {.code = "unknown_host"});
  if (!reads_only(head)) {
    const std::string* origin = head.header("Origin");
    const std::string* site = head.header("Sec-Fetch-Site");
    const bool foreign = origin && !known_origin(*origin, head.host);
    if (foreign || (site && *site != "same-origin" && *site != "none"))
      throw HttpError(403, "a page of another origin must not change anything here", {.code = "foreign_origin"});
  }
  if (need == Need::kNothing || options_.keys.empty() || (reads_only(head) && !options_.keys_for_reading)) return;
  if (!has_key(head))
    throw HttpError(401,
                    head.header("Authorization") ? "the API key is not valid"
                                                 : "an API key is needed: send \"Authorization: Bearer KEY\"",
                    {.code = "invalid_api_key"});
}

std::vector<std::string> read_keys(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw IoError(
        fmt::format("the file of API keys {} cannot be read: {}", path, std::system_category().message(errno)));
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    const std::string_view key = trimmed(line);
    if (!key.empty() && !key.starts_with('#')) keys.emplace_back(key);
  }
  if (keys.empty())
    throw ConfigError(fmt::format("the file of API keys {} holds no key", path),
                      "write one key a line, such as: openssl rand -hex 24");
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0)
    log_warn("the file of API keys {} can be read by other users: chmod 600 {}", path, path);
  return keys;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && !b.empty(); ++i)
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i % b.size()]);
  return difference == 0 && a.size() == b.size();
}

std::string key_cookie(std::string_view name, std::string_view key) {
  return fmt::format("{}={}; Path=/; HttpOnly; SameSite=Strict", name, key);
}

std::string_view host_without_port(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  std::string_view name = host.substr(0, end), rest;
  if (host.starts_with('[')) {
    if (end == std::string_view::npos) return {};
    name = host.substr(0, end + 1);
    rest = host.substr(end + 1);
  } else if (end != std::string_view::npos) {
    rest = host.substr(end);
  }
  if (rest.empty()) return name;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool port = rest.front() == ':' && rest.size() <= 6 && std::ranges::all_of(rest.substr(1), digit);
  return port ? name : std::string_view();
}

}  // namespace trireme::http
