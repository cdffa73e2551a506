// comm/control/socket.h -- the few things the control plane needs from TCP sockets, with errors fit for people.
//
// All sockets are non-blocking, closed on exec (a child of the training process must not keep a dead rank's connection
// open) and send small messages at once. Interrupted calls are repeated; a broken connection never raises SIGPIPE.
// Depends on: base.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::comm::control {

using Clock = std::chrono::steady_clock;

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Milliseconds until `when` for poll(), rounded up, from 0 to an hour.
int poll_timeout_ms(Clock::time_point when);

/// Listens at host:port (port 0: any free one). A numeric address or "localhost" is bound alone. A name is only what
/// the other hosts call this machine (at home it often resolves to a loopback alias), so all interfaces are bound.
/// Throws CommError.
Fd listen_at(const std::string& host, int port);
int local_port(const Fd& fd);

struct Accepted {
  Fd fd;
  std::string peer;        // "10.0.0.7:51234"
  bool exhausted = false;  // no connection, because descriptors or memory ran out
};
/// The next waiting connection; an empty fd when there is none.
Accepted accept_from(const Fd& listening);

/// One attempt at every address of the host; an empty fd and the reason in `why` when none answers before `deadline`.
Fd connect_once(const std::string& host, int port, Clock::time_point deadline, std::string& why);

struct Received {
  std::size_t bytes = 0;
  bool ended = false;                     // the other side closed, or the connection broke
  std::optional<std::string> error = {};  // why, when it broke
};
/// Reads what is there, up to the size of the buffer.
Received receive(const Fd& fd, char* buffer, std::size_t size);
/// Sends as much as fits now. Nothing when the connection is broken.
std::optional<std::size_t> send_some(const Fd& fd, std::string_view bytes);
/// Sends everything, waiting until `deadline`; false when it did not all leave.
bool send_all(const Fd& fd, std::string_view bytes, Clock::time_point deadline);

/// "Connection refused", without the thread-unsafe strerror.
std::string errno_text(int error);

}  // namespace trireme::comm::control
