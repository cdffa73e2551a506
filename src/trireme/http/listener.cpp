#include "trireme/http/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "trireme/base/error.h"

namespace trireme::http {
namespace {

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

void set_port(sockaddr_storage& address, int port) {
  const in_port_t value = htons(static_cast<in_port_t>(port));
  if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_port = value;
  } else {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = value;
  }
}

int port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

std::string text_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), port_of(address));
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), port_of(address));
}

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

}  // namespace

ListenAddress look_up(const std::string& address) {
  std::string name = address;
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = name.empty() ? EAI_NONAME : getaddrinfo(name.c_str(), nullptr, &hints, &found); error != 0)
    throw ConfigError(fmt::format("a server cannot listen at \"{}\": {}", address, gai_strerror(error)),
                      "give an address of this machine, such as 127.0.0.1");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  ListenAddress out{.text = address, .size = found->ai_addrlen};
  std::memcpy(&out.address, found->ai_addr, found->ai_addrlen);
  out.loopback = is_loopback(out.address);
  return out;
}

Listener::Listener(const ListenAddress& address, int port) {
  if (port < 0 || port > 65535)
    throw ConfigError(fmt::format("there is no port {}", port), "take one up to 65535, or 0 for any free one");
  sockaddr_storage bound = address.address;
  set_port(bound, port);
  socket_ = ::socket(bound.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (socket_ >= 0) ::close(socket_);
    if (error == EADDRINUSE)
      throw ConfigError(fmt::format("port {} at {} is taken by another program", port, address.text),
                        "choose another port, or 0 for any free one");
    throw ConfigError(
        fmt::format("cannot {} port {} at {}: {}", what, port, address.text, std::system_category().message(error)),
        "ports below 1024 are for root; the address must be one of this machine's");
  };
  if (socket_ < 0) fail("open");
  // Connections of a server that has just ended do not block the port. SO_REUSEPORT stays off: with it another process
  // of this user could take a share of the requests.
  set_option(socket_, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bound.ss_family == AF_INET6) set_option(socket_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket_, reinterpret_cast<const sockaddr*>(&bound), address.size) != 0) fail("take");
  if (listen(socket_, SOMAXCONN) != 0) fail("listen at");
  socklen_t size = sizeof(bound);
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size) != 0) fail("ask for");
  port_ = port_of(bound);
}

Listener::~Listener() { close(); }

void Listener::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

Listener::Accepted Listener::accept() {
  sockaddr_storage remote{};
  while (true) {
    socklen_t size = sizeof(remote);
    const int socket = accept4(socket_, reinterpret_cast<sockaddr*>(&remote), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // a token goes out when it is there
      return {.socket = socket, .remote = text_of(remote)};
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return {.exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM};
  }
}

}  // namespace trireme::http
