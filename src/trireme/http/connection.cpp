#include "trireme/http/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace trireme::http {
namespace {

// A client that takes less than this is cut, however steadily it takes it.
constexpr std::uint64_t kSlowestBytesPerMs = 16;

// Whether the socket is ready before `until`; also after an error, which the next call then meets.
bool ready(int socket, short events, Connection::Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Connection::Clock::now()).count();
    pollfd entry{socket, events, 0};
    const int found = poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (found > 0) return true;
    if (found == 0) return false;
    if (errno != EINTR) return true;
  }
}

bool try_again() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Connection::Connection(int socket, std::string remote, const std::atomic<bool>& draining)
    : socket_(socket), remote_(std::move(remote)), draining_(draining) {}

Connection::~Connection() { close(socket_); }

Connection::Arrival Connection::gather(std::size_t most) {
  std::array<char, 16 << 10> buffer;
  bool some = false;
  while (gathered().size() < most) {
    const ssize_t bytes = recv(socket_, buffer.data(), std::min(buffer.size(), most - gathered().size()), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return some ? Arrival::kSome : try_again() ? Arrival::kNone : Arrival::kEnd;
    if (bytes == 0) return some ? Arrival::kSome : Arrival::kEnd;
    bytes_.append(buffer.data(), static_cast<std::size_t>(bytes));
    some = true;
  }
  return Arrival::kSome;
}

void Connection::consume(std::size_t bytes) {
  taken_ += bytes;
  if (taken_ < bytes_.size()) return;
  bytes_.clear();
  taken_ = 0;
}

bool Connection::write_at_once(std::string_view bytes) {
  const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size());
}

void Connection::begin_request(const RequestLimits& limits) {
  limits_ = limits;
  read_ = written_ = 0;
  timed_out_ = false;
}

void Connection::end_request() {
  const std::lock_guard lock(wake_mutex_);
  wake_ = nullptr;
}

ssize_t Connection::read(char* into, std::size_t size) {
  size = static_cast<std::size_t>(std::min<std::uint64_t>(size, limits_.most_bytes - read_));
  if (size == 0) return -1;
  if (const std::string_view here = gathered(); !here.empty()) {
    const std::size_t bytes = here.copy(into, size);
    consume(bytes);
    read_ += bytes;
    return static_cast<ssize_t>(bytes);
  }
  while (true) {
    const ssize_t bytes = recv(socket_, into, size, 0);
    if (bytes >= 0) {
      read_ += static_cast<std::uint64_t>(bytes);
      return bytes;
    }
    if (errno == EINTR) continue;
    if (!try_again()) return -1;
    if (!ready(socket_, POLLIN, limits_.read_until)) {
      timed_out_ = true;
      return -1;
    }
  }
}

bool Connection::write(std::string_view bytes) {
  const auto until = Clock::now() + limits_.write_time + std::chrono::milliseconds(bytes.size() / kSlowestBytesPerMs);
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      written_ += static_cast<std::uint64_t>(sent);
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (try_again() && ready(socket_, POLLOUT, until)) {
      continue;
    } else if (errno != EINTR) {
      gone_ = true;
      return false;
    }
  }
  return true;
}

void Connection::on_change(std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
  if (wake_ && (!connected() || draining())) wake_();
}

void Connection::call_wake() {
  const std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

void Connection::note_gone() {
  gone_ = true;
  call_wake();
}

void Connection::cut() {
  shutdown(socket_, SHUT_RDWR);
  note_gone();
}

}  // namespace trireme::http
