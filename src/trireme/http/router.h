// http/router.h -- which route a path belongs to: patterns against segments, nothing else.
//
// "/runs/{run}/events": a parameter takes one segment, decoded, whatever is in it. "{model...}" at the end takes all
// that are left, with slashes between. A literal segment is preferred to a parameter, that to the rest.
// Depends on: head, message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/http/access.h"
#include "trireme/http/head.h"
#include "trireme/http/message.h"

namespace trireme::http {

struct RouteOptions {
  Need need = Need::kKey;
  /// Answered even while as many requests run as may, and while the server drains: for probes.
  bool always = false;
};

struct Route {
  std::string method, pattern;
  RouteOptions options;
  Handler handler;
};

class Router {
 public:
  /// InternalError for a pattern that is no pattern, or is there already.
  void add(Route route);

  struct Match {
    const Route* route;
    Fields params;
  };
  /// HttpError 404, or 405 with the methods that there are in `allowed`. GET routes answer HEAD too.
  Match find(std::string_view method, const Target& target, std::string& allowed) const;

 private:
  struct Entry {
    Route route;
    std::vector<std::string> segments;
  };
  std::vector<Entry> entries_;
};

}  // namespace trireme::http
