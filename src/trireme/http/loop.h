// http/loop.h -- the thread that has all connections: it accepts, gathers heads, refuses, and hands what is let in to
// workers.
//
// Only this thread opens and closes sockets. A worker borrows its connection from begin_request() until it has written
// the outcome, which is the last thing it does with it.
// Depends on: base, connection, listener, service, workers.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/http/connection.h"
#include "trireme/http/listener.h"
#include "trireme/http/service.h"
#include "trireme/http/workers.h"

namespace trireme::http {

class Loop {
 public:
  Loop(ServerOptions options, Metrics& metrics);
  ~Loop();  // stop()
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  int port() const { return port_; }
  const ServerOptions& options() const { return options_; }
  bool draining() const { return draining_; }
  Router& router();

  void start();
  bool drain(std::chrono::milliseconds timeout);
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Outcome : std::uint8_t { kNone, kKeep, kClose };
  enum class State : std::uint8_t { kGathering, kRunning, kLingering, kClosed };

  struct Peer {
    Peer(int socket, std::string remote, const std::atomic<bool>& draining)
        : connection(socket, std::move(remote), draining) {}
    Connection connection;
    State state = State::kGathering;
    Clock::time_point deadline;
    bool fresh = true;     // has asked nothing yet
    bool limited = false;  // what runs counts among the requests that may run at once
    bool told_draining = false, cut = false;
    std::size_t lingered_bytes = 0;
    SharedQueueMeter::Nanoseconds arrived = 0;
    std::atomic<Outcome> outcome = Outcome::kNone;  // written by the worker, last
  };

  void wake();
  void run();
  void wait(std::vector<pollfd>& entries);
  void accept();
  void step(Peer& peer, short events);
  void step_gathering(Peer& peer, bool readable);
  void step_running(Peer& peer, short events);
  void step_lingering(Peer& peer, bool readable);
  void take_heads(Peer& peer);
  void begin_request(Peer& peer, Service::Admitted admitted);
  void refuse(Peer& peer, const Service::Refused& refused);
  void await_next(Peer& peer);
  void linger(Peer& peer);

  const ServerOptions options_;
  const ListenAddress address_;
  Service service_;
  Listener listener_;
  const int port_;
  struct Queues {
    SharedQueueMeter connections, requests;  // open; running, streams among them
  };
  const std::shared_ptr<Queues>
      queues_;  // shared with the metrics, which outlive the server and look whether it is there
  Gauge& connections_;
  Gauge& running_;
  const int wake_;

  std::atomic<bool> draining_ = false, stopping_ = false;
  std::mutex stop_mutex_, idle_mutex_;
  std::condition_variable idle_;
  std::size_t unfinished_ = 0;  // requests, under idle_mutex_
  bool drain_seen_ = false;     // likewise: the loop lets nothing in any more

  // Of the loop's thread alone.
  Workers* workers_ = nullptr;  // lives as long as the loop runs
  std::list<Peer> peers_;
  std::size_t limited_ = 0;
  Clock::time_point accept_again_;
  Clock::time_point now_;

  std::thread thread_;
};

}  // namespace trireme::http
