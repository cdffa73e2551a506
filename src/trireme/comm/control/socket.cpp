#include "trireme/comm/control/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "trireme/base/error.h"

namespace trireme::comm::control {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null, with the reason in `why`, when the host has no address.
Addresses resolve(const char* host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  int error = 0;
  do {
    error = getaddrinfo(host, service.c_str(), &hints, &found);
  } while (error == EAI_SYSTEM && errno == EINTR);
  if (error != 0) {
    found = nullptr;
    why = error == EAI_SYSTEM ? errno_text(errno) : gai_strerror(error);
  }
  return {found, &freeaddrinfo};
}

std::string address_text(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(address, length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return address->sa_family == AF_INET6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

Fd open_socket(const addrinfo& address) {
  return Fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
}

bool is_numeric(const std::string& host) {
  std::string why;
  return resolve(host.c_str(), 0, AI_NUMERICHOST, why) != nullptr;
}

// Waits until a connection under way is there; 0 or an errno.
int finish_connect(const Fd& fd, Clock::time_point deadline) {
  pollfd waiting{fd.get(), POLLOUT, 0};
  while (true) {
    const int ready = poll(&waiting, 1, poll_timeout_ms(deadline));
    if (ready < 0 && errno != EINTR) return errno;
    if (ready == 0) return ETIMEDOUT;
    if (ready > 0) break;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// While nobody listens at a port of the ephemeral range, the kernel may pick that very port as the near end of an
// attempt to reach it, and TCP then connects the socket with itself.
bool is_own_echo(const Fd& fd) {
  sockaddr_storage near{}, far{};
  socklen_t near_length = sizeof(near), far_length = sizeof(far);
  return getsockname(fd.get(), reinterpret_cast<sockaddr*>(&near), &near_length) == 0 &&
         getpeername(fd.get(), reinterpret_cast<sockaddr*>(&far), &far_length) == 0 && near_length == far_length &&
         std::memcmp(&near, &far, near_length) == 0;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);  // not repeated after EINTR: Linux has released the number by then
}

std::string errno_text(int error) { return std::generic_category().message(error); }

int poll_timeout_ms(Clock::time_point when) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, 3'600'000));
}

Fd listen_at(const std::string& host, int port) {
  const bool exact = host == "localhost" || is_numeric(host);
  std::string why;
  const Addresses addresses = resolve(exact ? host.c_str() : nullptr, port, AI_PASSIVE, why);
  // The IPv6 wildcard takes IPv4 connections too, so it goes first; where there is no IPv6, the IPv4 one works. Of
  // localhost's two addresses, people who write a number write the IPv4 one.
  int error = 0;
  for (const int family : {exact ? AF_INET : AF_INET6, exact ? AF_INET6 : AF_INET}) {
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      if (address->ai_family != family || error == EADDRINUSE) continue;  // in use: another family would split callers
      Fd fd = open_socket(*address);
      if (fd) {
        // A port whose last server ended a moment ago is free, whatever its old connections are waiting for.
        set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
        if (family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, exact ? 1 : 0);
        if (bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) return fd;
      }
      error = errno;
      why = errno_text(error);
    }
  }
  throw CommError(fmt::format("the control plane cannot listen at {}:{}: {}", host, port, why),
                  "run rank 0 on that host, and choose a port that is free there: MASTER_ADDR and MASTER_PORT where "
                  "the environment names them");
}

int local_port(const Fd& fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  TRIREME_CHECK(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname: {}",
                errno_text(errno));
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Accepted accept_from(const Fd& listening) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  while (true) {
    Fd fd(accept4(listening.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      return {std::move(fd), address_text(reinterpret_cast<const sockaddr*>(&address), length), false};
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return {Fd(), errno_text(errno), errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM};
  }
}

Fd connect_once(const std::string& host, int port, Clock::time_point deadline, std::string& why) {
  const Addresses addresses = resolve(host.c_str(), port, 0, why);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Fd fd = open_socket(*address);
    int error = 0;
    if (!fd) {
      error = errno;
    } else if (connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
      // Interrupted, it goes on in the background like any other non-blocking one.
      error = errno == EINPROGRESS || errno == EINTR ? finish_connect(fd, deadline) : errno;
    }
    if (error == 0 && is_own_echo(fd)) error = ECONNREFUSED;
    if (error == 0) {
      set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      return fd;
    }
    why = fmt::format("{} ({})", errno_text(error), address_text(address->ai_addr, address->ai_addrlen));
  }
  return Fd();
}

Received receive(const Fd& fd, char* buffer, std::size_t size) {
  while (true) {
    const ssize_t bytes = recv(fd.get(), buffer, size, 0);
    if (bytes > 0) return {.bytes = static_cast<std::size_t>(bytes)};
    if (bytes == 0) return {.ended = true};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    return {.ended = true, .error = errno_text(errno)};
  }
}

std::optional<std::size_t> send_some(const Fd& fd, std::string_view bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t now = send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (now >= 0) {
      sent += static_cast<std::size_t>(now);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
      break;
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
  return sent;
}

bool send_all(const Fd& fd, std::string_view bytes, Clock::time_point deadline) {
  while (true) {
    const auto sent = send_some(fd, bytes);
    if (!sent) return false;
    bytes.remove_prefix(*sent);
    if (bytes.empty()) return true;
    if (Clock::now() >= deadline) return false;
    pollfd waiting{fd.get(), POLLOUT, 0};
    poll(&waiting, 1, poll_timeout_ms(deadline));
  }
}

}  // namespace trireme::comm::control
