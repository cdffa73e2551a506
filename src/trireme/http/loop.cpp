#include "trireme/http/loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "trireme/base/plugin.h"

namespace trireme::http {
namespace {

using std::chrono::milliseconds;

// After the last answer a client may still be sending; closing at once would make its system throw the answer away.
constexpr milliseconds kLinger{1000}, kLingerAtStop{100};
constexpr std::size_t kLingerBytes = 1 << 20;
constexpr std::size_t kToldTooMany =
    64;  // connections beyond the limit that are told so before any waits in the system
constexpr milliseconds kNoFilesPause{100};

const Codec& load_codec() { return *Plugin::load("http").function<CodecEntry>(kCodecEntry)(); }

}  // namespace

Loop::Loop(ServerOptions options, Metrics& metrics)
    : options_(std::move(options)),
      address_(look_up(options_.address)),
      service_(options_, Access(options_.access, options_.address, address_.loopback), metrics, load_codec()),
      listener_(address_, options_.port),
      port_(listener_.port()),
      queues_(std::make_shared<Queues>()),
      connections_(metrics.gauge("trireme_http_connections", "Connections that are open")),
      running_(metrics.gauge("trireme_http_requests_running", "Requests that run, streams among them")),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  TRIREME_CHECK(wake_ >= 0, "no eventfd");
  metrics.add_collector([server = std::weak_ptr(queues_)](Samples& samples) {
    const auto queues = server.lock();
    if (!queues) return;
    samples.queue("http_connections", queues->connections.read());
    samples.queue("http_requests", queues->requests.read());
  });
}

Loop::~Loop() {
  stop();
  close(wake_);
}

Router& Loop::router() {
  TRIREME_CHECK(!thread_.joinable(), "a route was added to a server that has been started");
  return service_.router();
}

void Loop::start() {
  thread_ = std::thread([this] { run(); });
}

bool Loop::drain(milliseconds timeout) {
  draining_ = true;
  wake();
  bool finished = false;
  {
    std::unique_lock lock(idle_mutex_);
    finished = idle_.wait_for(lock, timeout, [&] { return (drain_seen_ || !thread_.joinable()) && unfinished_ == 0; });
  }
  stop();
  return finished;
}

void Loop::stop() {
  const std::lock_guard lock(stop_mutex_);
  draining_ = stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void Loop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void Loop::run() {
  Workers workers;
  workers_ = &workers;
  std::vector<pollfd> entries;
  while (true) {
    wait(entries);
    now_ = Clock::now();
    if (draining_) {
      const std::lock_guard lock(idle_mutex_);
      if (!std::exchange(drain_seen_, true)) idle_.notify_all();
    }
    std::size_t entry = 2;
    for (Peer& peer : peers_) step(peer, entries[entry++].revents);
    const bool last = stopping_ && listener_.socket() >= 0;
    if (last || (entries[1].revents & POLLIN) != 0) accept();
    if (last) listener_.close();  // those who had connected by then have been let in, to be told that it is over
    peers_.remove_if([&](const Peer& peer) {
      if (peer.state != State::kClosed) return false;
      queues_->connections.depart(peer.arrived);
      return true;
    });
    connections_.set(static_cast<double>(peers_.size()));
    if (listener_.socket() < 0 && peers_.empty()) return;
  }
}

void Loop::wait(std::vector<pollfd>& entries) {
  entries.clear();
  entries.push_back({wake_, POLLIN, 0});
  now_ = Clock::now();
  const bool accepting =
      !stopping_ && now_ >= accept_again_ && peers_.size() < options_.limits.connections + kToldTooMany;
  entries.push_back({accepting ? listener_.socket() : -1, POLLIN, 0});
  Clock::time_point until = now_ + std::chrono::hours(1);
  if (!accepting && !stopping_) until = std::min(until, now_ + kNoFilesPause);
  for (Peer& peer : peers_) {
    const bool running = peer.state == State::kRunning;
    const bool watched = !running || peer.connection.connected();  // one that has gone would be ready for ever
    entries.push_back({watched ? peer.connection.socket() : -1, static_cast<short>(running ? POLLRDHUP : POLLIN), 0});
    if (!running) until = std::min(until, stopping_ && peer.state == State::kGathering ? now_ : peer.deadline);
  }
  const auto left = std::chrono::ceil<milliseconds>(until - now_).count();
  poll(entries.data(), entries.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
  std::uint64_t rings = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_, &rings, sizeof(rings));
}

void Loop::accept() {
  while (peers_.size() < options_.limits.connections + kToldTooMany) {
    Listener::Accepted accepted = listener_.accept();
    if (accepted.exhausted) {
      log_warn("http: this process cannot open more files, so clients wait (ulimit -n)");
      accept_again_ = Clock::now() + kNoFilesPause;
    }
    if (accepted.socket < 0) return;
    Peer& peer = peers_.emplace_back(accepted.socket, std::move(accepted.remote), draining_);
    peer.deadline = now_ + options_.limits.head_time;
    peer.arrived = queues_->connections.arrive();
    if (peers_.size() > options_.limits.connections)
      refuse(peer,
             service_.refuse(
                 HttpError(503, fmt::format("{} connections are open, as many as may", options_.limits.connections),
                           {.code = "busy"}),
                 peer.connection.remote()));
  }
}

void Loop::step(Peer& peer, short events) {
  switch (peer.state) {
    case State::kGathering:
      return step_gathering(peer, events != 0);
    case State::kRunning:
      return step_running(peer, events);
    case State::kLingering:
      return step_lingering(peer, events != 0);
    case State::kClosed:
      return;
  }
}

void Loop::step_gathering(Peer& peer, bool readable) {
  if (stopping_ && !readable) {
    peer.state = State::kClosed;
    return;
  }
  if (readable) {
    const bool idle = peer.connection.gathered().empty();
    switch (peer.connection.gather(options_.limits.head.bytes + 1)) {
      case Connection::Arrival::kEnd:
        peer.state = State::kClosed;
        return;
      case Connection::Arrival::kNone:
        break;
      case Connection::Arrival::kSome:
        if (idle) peer.deadline = now_ + options_.limits.head_time;
        take_heads(peer);
        if (stopping_ && peer.state == State::kGathering) linger(peer);
        return;
    }
  }
  const bool silent = peer.connection.gathered().empty();
  if (draining_ && silent && !peer.fresh) {
    peer.state = State::kClosed;
  } else if (now_ >= peer.deadline) {
    if (silent) {
      peer.state = State::kClosed;
    } else {
      refuse(peer,
             service_.refuse(HttpError(408, "the request's head did not come in time"), peer.connection.remote()));
    }
  }
}

void Loop::take_heads(Peer& peer) {
  while (peer.state == State::kGathering) {
    const std::string_view bytes = peer.connection.gathered();
    std::optional<std::size_t> end = head_end(bytes);
    if (!end && bytes.size() > options_.limits.head.bytes) end = bytes.size();
    if (!end) return;
    auto verdict = service_.admit(bytes.substr(0, *end), {limited_ >= options_.limits.requests, draining_},
                                  peer.connection.remote());
    peer.connection.consume(*end);
    peer.fresh = false;
    if (const auto* refused = std::get_if<Service::Refused>(&verdict)) {
      refuse(peer, *refused);
    } else {
      begin_request(peer, std::move(std::get<Service::Admitted>(verdict)));
    }
  }
}

void Loop::begin_request(Peer& peer, Service::Admitted admitted) {
  peer.state = State::kRunning;
  peer.outcome = Outcome::kNone;
  peer.limited = !admitted.match.route->options.always;
  limited_ += peer.limited;
  running_.add(1);
  {
    const std::lock_guard lock(idle_mutex_);
    ++unfinished_;
  }
  const auto finish = [this, &peer, arrived = queues_->requests.arrive()](Outcome outcome) {
    queues_->requests.depart(arrived);
    running_.add(-1);
    peer.outcome = outcome;
    {
      const std::lock_guard lock(idle_mutex_);
      if (--unfinished_ == 0) idle_.notify_all();
    }
    wake();
  };
  const bool started = workers_->start([this, &peer, finish, admitted = std::move(admitted)] {
    finish(service_.run(peer.connection, admitted) ? Outcome::kKeep : Outcome::kClose);
  });
  if (started) return;
  log_warn("http: the system gives no more threads; a request from {} was not answered", peer.connection.remote());
  finish(Outcome::kClose);
}

void Loop::step_running(Peer& peer, short events) {
  const Outcome outcome = peer.outcome;
  if (outcome != Outcome::kNone) {
    limited_ -= peer.limited;
    peer.limited = false;
    if (outcome == Outcome::kClose) return linger(peer);
    if (!stopping_) return await_next(peer);
    peer.state = State::kClosed;
    return;
  }
  if (stopping_) {
    if (!std::exchange(peer.cut, true)) peer.connection.cut();
  } else if ((events & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
    peer.connection.note_gone();
  }
  if (draining_ && !peer.told_draining) {
    peer.told_draining = true;
    peer.connection.note_draining();
  }
}

void Loop::await_next(Peer& peer) {
  peer.state = State::kGathering;
  const bool silent = peer.connection.gathered().empty();
  peer.deadline = now_ + (silent ? options_.limits.idle_time : options_.limits.head_time);
  take_heads(peer);
  if (peer.state == State::kGathering && draining_ && silent) linger(peer);
}

void Loop::refuse(Peer& peer, const Service::Refused& refused) {
  if (!peer.connection.write_at_once(refused.text) || refused.close) {
    linger(peer);
  } else {
    peer.deadline = now_ + options_.limits.idle_time;
  }
}

void Loop::linger(Peer& peer) {
  shutdown(peer.connection.socket(), SHUT_WR);
  peer.state = State::kLingering;
  peer.deadline = now_ + (stopping_ ? kLingerAtStop : kLinger);
  step_lingering(peer, true);
}

void Loop::step_lingering(Peer& peer, bool readable) {
  if (stopping_) peer.deadline = std::min(peer.deadline, now_ + kLingerAtStop);
  if (readable) {
    const Connection::Arrival arrival = peer.connection.gather(options_.limits.head.bytes + 1);
    peer.lingered_bytes += peer.connection.gathered().size();
    peer.connection.consume(peer.connection.gathered().size());
    if (arrival == Connection::Arrival::kEnd || peer.lingered_bytes > kLingerBytes) peer.state = State::kClosed;
  }
  if (now_ >= peer.deadline) peer.state = State::kClosed;
}

}  // namespace trireme::http
