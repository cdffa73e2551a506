// http/service.h -- one request, from its head to the end of its answer.
//
// admit() decides by the head alone, in the server's loop; run() does the work, on a thread of its own.
// Depends on: base, access, codec, connection, metrics, router.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <variant>

#include "trireme/http/access.h"
#include "trireme/http/codec.h"
#include "trireme/http/connection.h"
#include "trireme/http/router.h"
#include "trireme/http/server.h"

namespace trireme::http {

class Service {
 public:
  Service(const ServerOptions& options, Access access, Metrics& metrics, const Codec& codec);

  Router& router() { return router_; }

  /// A request that may run.
  struct Admitted {
    Head head;
    Target target;
    Router::Match match;
    std::chrono::steady_clock::time_point begin;
    bool close = false;  // after its answer
  };
  struct Refused {
    std::string text;  // of the whole answer
    bool close = false;
  };
  struct State {
    bool busy = false, draining = false;
  };
  std::variant<Admitted, Refused> admit(std::string_view head, const State& state, const std::string& remote) const;
  /// The answer to who sends no head in time, and to one connection too many.
  Refused refuse(const HttpError& error, const std::string& remote) const;

  /// True when another request may follow on the connection.
  bool run(Connection& connection, const Admitted& admitted) const;

 private:
  struct Finished;
  Response handled(const Route& route, const Request& request) const;
  Refused refused(Response response, const Head* head, std::string_view route, const std::string& remote) const;
  void note(const Finished& finished) const;

  const ServerOptions& options_;
  Access access_;
  Metrics& metrics_;
  const Codec& codec_;
  Router router_;
};

}  // namespace trireme::http
