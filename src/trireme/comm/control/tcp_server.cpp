// The control plane's server: one thread that moves bytes between sockets and the switchboard, which decides.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/control.h"
#include "trireme/comm/control/socket.h"
#include "trireme/comm/control/switchboard.h"
#include "trireme/comm/control/wire.h"

namespace trireme::comm {
namespace {

using namespace control;
using namespace std::chrono_literals;

constexpr auto kHelloTimeout = 10s;                          // a stranger that says nothing is dropped
constexpr std::chrono::milliseconds kFailedGoodbye = 500ms;  // for those who leave a world that is over
constexpr auto kAcceptPause = 200ms;                         // after descriptors ran out; polling on would only spin
constexpr std::size_t kMaxUnsent = 64 << 20;                 // a rank that does not read must not fill rank 0's memory
constexpr std::size_t kServerReadBytes = 256 << 10;

struct Connection {
  Fd fd;
  std::string peer;
  Clock::time_point opened;
  Decoder in{kMaxHelloBytes};
  std::string out;
  std::size_t sent = 0;  // bytes of `out` that have left
  bool closing = false;  // when `out` is empty
  bool dropped = false;  // erased at the end of the round
};

class Server : public TcpControlServer {
 public:
  explicit Server(const TcpControlOptions& options)
      : options_(options), switchboard_(options), listening_(listen_at(options.host, options.port)) {
    port_ = local_port(listening_);
    if (!wake_) throw CommError(fmt::format("the control plane's server cannot start: {}", errno_text(errno)));
    thread_ = std::thread([this] { run(); });
  }

  ~Server() override {
    stopping_ = true;
    const std::uint64_t one = 1;
    // Fails only when a wake-up is pending already.
    [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  int port() const override { return port_; }

 private:
  using Caller = Switchboard::Caller;

  void run() noexcept {
    try {
      while (!stopping_) serve_once(next_tick());
      const auto patience = deadline_after(options_.absent_timeout);
      while (switchboard_.owes_last_words() && Clock::now() < patience) serve_once(std::min(patience, next_tick()));
      listening_ = Fd();
      const auto deadline = deadline_after(
          switchboard_.has_failed() ? std::min(options_.goodbye_timeout, kFailedGoodbye) : options_.goodbye_timeout);
      while (switchboard_.present() > 0 && Clock::now() < deadline) serve_once(std::min(deadline, next_tick()));
      switchboard_.close_all("rank 0 ended and took the server with it");
      send_out();
      // What could not leave at once (a good-bye to someone who does not read) is not worth waiting for.
    } catch (const std::exception& error) {
      // The connections close with the members below, so every rank learns of it.
      log_error("the control plane's server failed: {}", error.what());
    }
    connections_.clear();
    listening_ = Fd();
  }

  // How long nothing can become overdue unnoticed.
  Clock::time_point next_tick() const {
    const auto tick = std::clamp<std::chrono::milliseconds>(options_.heartbeat_timeout / 4, 10ms, 1'000ms);
    return Clock::now() + tick;
  }

  void serve_once(Clock::time_point until) {
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    const bool accepting = listening_ && Clock::now() >= accept_after_;
    if (accepting) polled.push_back({listening_.get(), POLLIN, 0});
    if (listening_ && !accepting) until = std::min(until, accept_after_);
    const std::size_t first = polled.size();
    std::vector<Caller> callers;
    for (const auto& [caller, connection] : connections_) {
      const auto events = static_cast<short>(connection.out.empty() ? POLLIN : POLLIN | POLLOUT);
      polled.push_back({connection.fd.get(), events, 0});
      callers.push_back(caller);
    }
    if (poll(polled.data(), polled.size(), poll_timeout_ms(until)) < 0) {
      if (errno != EINTR) throw CommError(fmt::format("poll: {}", errno_text(errno)));
      return;
    }
    if (polled[0].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto taken = read(wake_.get(), &count, sizeof(count));
    }
    // Everyone is read before anyone is judged silent: after this process itself was stopped for a while, the others'
    // heartbeats lie in the sockets.
    for (std::size_t i = 0; i < callers.size(); ++i) {
      if ((polled[first + i].revents & ~POLLOUT) != 0) read_from(callers[i], connections_.at(callers[i]));
    }
    if (accepting && polled[1].revents != 0) accept_all();
    switchboard_.tick(Clock::now());
    drop_strangers();
    send_out();
    for (auto& [caller, connection] : connections_) {
      if (!connection.out.empty()) flush(caller, connection);
    }
    send_out();  // dropping one that does not read gives the others something to hear
    std::erase_if(connections_, [](const auto& entry) { return entry.second.dropped; });
  }

  void accept_all() {
    while (true) {
      Accepted accepted = accept_from(listening_);
      if (accepted.exhausted) {
        log_warn("the control plane cannot take another connection: {}; trying again soon", accepted.peer);
        accept_after_ = Clock::now() + kAcceptPause;
      }
      if (!accepted.fd) return;
      if (options_.token.empty() && !is_own_user(accepted.fd)) switchboard_.distrust(next_caller_);
      connections_.emplace(next_caller_++, Connection{.fd = std::move(accepted.fd),
                                                      .peer = std::move(accepted.peer),
                                                      .opened = Clock::now(),
                                                      .out = preface()});
    }
  }

  void read_from(Caller caller, Connection& connection) {
    if (connection.dropped) return;
    const Received received = receive(connection.fd, buffer_.data(), buffer_.size());
    try {
      if (received.bytes > 0) {
        switchboard_.heard(caller, Clock::now());
        connection.in.feed({buffer_.data(), received.bytes});
        while (!connection.closing) {
          const auto message = connection.in.next();
          if (!message) break;
          switchboard_.receive(caller, *message, Clock::now());
          if (switchboard_.knows(caller)) connection.in.allow(kMaxFrameBytes);
          send_out();  // sets `closing` when that was a good-bye or a refusal
        }
      }
    } catch (const std::exception& error) {
      drop(caller, connection, error.what());
    }
    if (received.ended) {
      drop(caller, connection,
           fmt::format("it closed the connection without a good-bye{}",
                       received.error ? fmt::format(" ({})", *received.error) : ""));
    }
  }

  void drop(Caller caller, Connection& connection, const std::string& why) {
    if (connection.dropped) return;
    connection.dropped = true;
    // After a good-bye the end of the connection is as it should be.
    if (connection.closing) return;
    log_warn("control plane: dropped the connection from {}: {}", connection.peer, why);
    switchboard_.gone(caller, fmt::format("{} (from {})", why, connection.peer));
  }

  void drop_strangers() {
    for (auto& [caller, connection] : connections_) {
      if (!switchboard_.knows(caller) && Clock::now() - connection.opened > kHelloTimeout) {
        drop(caller, connection, "it did not say who it is");
      }
    }
  }

  void send_out() {
    // Sending can drop one that does not read, which gives the others something to hear; hence the loop.
    for (auto outgoing = switchboard_.take_outgoing(); !outgoing.empty(); outgoing = switchboard_.take_outgoing()) {
      for (const auto& [to, message, close_after] : outgoing) {
        const auto found = connections_.find(to);
        if (found == connections_.end() || found->second.dropped) continue;
        if (message.type == MessageType::kRefused) {
          log_warn("control plane: refused {}: {}", found->second.peer, message.value);
        }
        found->second.out += encode(message);
        found->second.closing |= close_after;
        flush(to, found->second);
      }
    }
  }

  void flush(Caller caller, Connection& connection) {
    if (connection.dropped) return;
    const auto sent = send_some(connection.fd, std::string_view(connection.out).substr(connection.sent));
    // When it broke: what it said before (its last words) may still be unread; the next read brings that and the end.
    connection.sent = sent ? connection.sent + *sent : connection.out.size();
    const std::size_t unsent = connection.out.size() - connection.sent;
    if (unsent > kMaxUnsent) drop(caller, connection, fmt::format("{} bytes wait for it and it does not read", unsent));
    if (unsent <= connection.sent) {  // not at every step: moving the rest to the front costs as much as its length
      connection.out.erase(0, connection.sent);
      connection.sent = 0;
    }
    if (connection.closing && connection.out.empty()) connection.dropped = true;
  }

  const TcpControlOptions options_;
  Switchboard switchboard_;
  Fd listening_;
  Fd wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int port_ = 0;
  std::map<Caller, Connection> connections_;
  Caller next_caller_ = 1;
  Clock::time_point accept_after_;
  std::vector<char> buffer_ = std::vector<char>(kServerReadBytes);
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::string control_job_id() { return env("TRIREME_JOB_ID").value_or(""); }

std::unique_ptr<TcpControlServer> make_tcp_control_server(const TcpControlOptions& options) {
  TRIREME_CHECK(options.ranks >= 1, "a control plane needs at least one rank, not {}", options.ranks);
  return std::make_unique<Server>(options);
}

}  // namespace trireme::comm
