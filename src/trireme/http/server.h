// http/server.h -- an HTTP server for a few programs of ours: an API, a page, metrics.
//
//   Metrics metrics;
//   Server server({.port = 8000, .access = {.keys = read_keys(path)}}, metrics);
//   server.get("/v1/models", [&](const Request&) { return Response::json(models()); });
//   server.start();                       // /health, /ready and /metrics are there by themselves
//   ...
//   server.drain(std::chrono::seconds(30));  // nothing new; what runs may finish
//
// One thread accepts, gathers heads and refuses what it can refuse by the head alone; a client that sends slowly, or
// nothing, costs a buffer and no thread. A request that is let in runs on a thread of its own until its answer has
// been sent. There is no TLS: elsewhere than on this machine put a proxy in front.
// Depends on: base, access, listener, message, metrics, router.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "trireme/base/log.h"
#include "trireme/http/access.h"
#include "trireme/http/message.h"
#include "trireme/http/metrics.h"
#include "trireme/http/router.h"

namespace trireme::http {

struct Limits {
  HeadLimits head;
  std::uint64_t body_bytes = 8 << 20;
  std::size_t connections = 1024;
  std::size_t requests = 64;                     // that run at once, streams among them; more get 503 with Retry-After
  std::chrono::milliseconds head_time{10'000};   // from its first byte to its last
  std::chrono::milliseconds body_time{60'000};   // likewise
  std::chrono::milliseconds write_time{10'000};  // for one write, and more for a large one
  std::chrono::milliseconds idle_time{60'000};   // between two requests
  std::chrono::seconds retry_after{1};
};

struct ServerOptions {
  std::string address = "127.0.0.1";
  int port = 0;  // 0: a free one
  AccessOptions access;
  Limits limits;
  LogLevel access_log = LogLevel::kDebug;
  /// Whether /ready says so before draining, such as once a model is loaded; none: always.
  std::function<bool()> is_ready;
};

class Loop;

class Server {
 public:
  /// Takes the port; ConfigError where that, or the options, cannot be. `metrics` outlives the server.
  Server(ServerOptions options, Metrics& metrics);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// "http://127.0.0.1:8000".
  std::string url() const;

  /// Before start(). Handlers run on several threads at once.
  void route(std::string method, std::string pattern, Handler handler, RouteOptions options = {});
  void get(std::string pattern, Handler handler, RouteOptions options = {});
  void post(std::string pattern, Handler handler, RouteOptions options = {});
  /// A file that is compiled in; `bytes` outlives the server. Browsers ask again each time and are told if it is the
  /// same.
  void asset(std::string path, std::string_view type, std::string_view bytes, RouteOptions options = {});
  void start();

  /// From now on new requests get 503, and /ready too; returns when nothing runs any more, or at the time-out, after
  /// stop(). True when nothing had to be cut.
  bool drain(std::chrono::milliseconds timeout);
  /// Cuts what runs and waits for its handlers, which see that their client is not connected any more.
  void stop();

 private:
  std::unique_ptr<Loop> loop_;
};

}  // namespace trireme::http
