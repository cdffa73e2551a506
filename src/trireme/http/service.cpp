#include "trireme/http/service.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>

#include "trireme/base/stopwatch.h"

namespace trireme::http {
namespace {

// Chunks of one byte take six; whatever is sent beyond that is no body.
constexpr std::uint64_t kChunkOverhead = 8, kChunkSlack = 64 << 10;

// What every answer says unless its handler says otherwise: nothing is guessed, embedded, loaded from elsewhere or
// kept.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kDefaults{{
    {"X-Content-Type-Options", "nosniff"},
    {"Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"},
    {"Referrer-Policy", "no-referrer"},
    {"Cache-Control", "no-store"},
}};

void add_defaults(Response& response) {
  for (const auto& [name, value] : kDefaults) {
    if (!find_header(response.headers, name)) response.set(name, value);
  }
}

std::string wire_text(const Response& response, bool close, bool head_only) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  out += fmt::format("Content-Length: {}\r\n{}\r\n", response.body.size(), close ? "Connection: close\r\n" : "");
  if (!head_only) out += response.body;
  return out;
}

// A label must not take whatever a client invents.
std::string_view method_label(std::string_view method) {
  constexpr std::array<std::string_view, 7> kKnown{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
  return std::ranges::find(kKnown, method) != kKnown.end() ? method : "other";
}

class StreamWriter final : public Writer {
 public:
  StreamWriter(Connection& connection, const std::function<bool(std::string_view)>& write)
      : connection_(connection), write_(write) {}
  bool write(std::string_view bytes) override {
    whole_ = whole_ && connection_.connected() && write_(bytes);
    return whole_;
  }
  Client& client() override { return connection_; }
  bool whole() const { return whole_; }

 private:
  Connection& connection_;
  const std::function<bool(std::string_view)>& write_;
  bool whole_ = true;
};

}  // namespace

struct Service::Finished {
  std::string_view remote, method, path, route;
  int status;
  std::uint64_t bytes;
  std::optional<double> seconds;  // none: it was refused before it began
};

Service::Service(const ServerOptions& options, Access access, Metrics& metrics, const Codec& codec)
    : options_(options), access_(std::move(access)), metrics_(metrics), codec_(codec) {}

void Service::note(const Finished& finished) const {
  metrics_
      .counter("trireme_http_requests_total", "Requests answered, by the pattern of their route",
               {{"route", std::string(finished.route)},
                {"method", std::string(method_label(finished.method))},
                {"status", std::to_string(finished.status)}})
      .add();
  if (finished.seconds)
    metrics_
        .histogram("trireme_http_request_seconds", "From a request's head to the end of its answer", time_bounds(),
                   {{"route", std::string(finished.route)}})
        .observe(*finished.seconds);
  // Without the query and the headers: keys may be in them.
  log(options_.access_log, "http: {} \"{} {}\" {}, {} bytes, {:.1f} ms", finished.remote, finished.method,
      finished.path, finished.status, finished.bytes, finished.seconds.value_or(0) * 1e3);
}

Service::Refused Service::refused(Response response, const Head* head, std::string_view route,
                                  const std::string& remote) const {
  add_defaults(response);
  if (response.status == 503) response.set("Retry-After", std::to_string(options_.limits.retry_after.count()));
  if (response.status == 401) response.set("WWW-Authenticate", "Bearer");
  // What stands behind a head that is not understood, or is a body that nobody reads, would be taken for a request.
  const bool close = !head || head->close || head->has_body() || response.status == 503;
  Refused out{wire_text(response, close, head && head->method == "HEAD"), close};
  const std::string_view target = head ? std::string_view(head->target) : "";
  note({remote, head ? head->method : "", target.substr(0, target.find('?')), route, response.status, out.text.size(),
        std::nullopt});
  return out;
}

Service::Refused Service::refuse(const HttpError& error, const std::string& remote) const {
  return refused(error.response(), nullptr, "", remote);
}

std::variant<Service::Admitted, Service::Refused> Service::admit(std::string_view bytes, const State& state,
                                                                 const std::string& remote) const {
  Admitted out{.begin = std::chrono::steady_clock::now()};
  std::string allowed;
  const auto refuse_with = [&](const HttpError& error) {
    Response response = error.response();
    if (!allowed.empty()) response.set("Allow", allowed);
    const Route* route = out.match.route;
    return refused(std::move(response), out.head.method.empty() ? nullptr : &out.head, route ? route->pattern : "",
                   remote);
  };
  try {
    out.head = parse_head(bytes, options_.limits.head);
    std::optional<HttpError> no_route;
    try {
      out.target = parse_target(out.head.target);
      out.match = router_.find(out.head.method, out.target, allowed);
    } catch (const HttpError& error) {
      no_route = error;  // which routes there are is for those who may know
    }
    const RouteOptions route = out.match.route ? out.match.route->options : RouteOptions();
    access_.check(out.head, route.need);
    if (no_route) throw *no_route;
    if (state.draining && !route.always)
      throw HttpError(503, "the server is shutting down; ask again, it may be another one by then",
                      {.code = "draining"});
    if (out.head.content_length > options_.limits.body_bytes)
      throw HttpError(
          413, fmt::format("the body has {} bytes; {} are taken", out.head.content_length, options_.limits.body_bytes));
    if (state.busy && !route.always)
      throw HttpError(503,
                      fmt::format("{} requests are running, as many as may; ask again soon", options_.limits.requests),
                      {.code = "busy"});
  } catch (const HttpError& error) {
    return refuse_with(error);
  }
  // The library is lenient about chunks: after them, what follows is not trusted to begin where it says.
  out.close = out.head.close || out.head.chunked || state.draining;
  return out;
}

Response Service::handled(const Route& route, const Request& request) const {
  try {
    Response response = route.handler(request);
    for (const auto& [name, value] : response.headers)
      TRIREME_CHECK(is_token(name) && is_field_value(value), "the header \"{}\" cannot be sent", name);
    return response;
  } catch (const HttpError& error) {
    return error.response();
  } catch (const Error& error) {
    log_error("http: {} {}: {}", request.method, route.pattern, error.block());
  } catch (const std::exception& error) {
    log_error("http: {} {}: {}", request.method, route.pattern, error.what());
  } catch (...) {
    log_error("http: {} {} threw something that is no exception", request.method, route.pattern);
  }
  return HttpError(500, "something went wrong in the server; its log says what").response();
}

bool Service::run(Connection& connection, const Admitted& admitted) const {
  const Head& head = admitted.head;
  const Route& route = *admitted.match.route;
  const Limits& limits = options_.limits;
  Request request{.method = head.method,
                  .path = admitted.target.path,
                  .params = admitted.match.params,
                  .query = admitted.target.query,
                  .headers = head.headers,
                  .body = {},
                  .remote = connection.remote(),
                  .client = &connection};
  const std::string* encodings = head.header("Accept-Encoding");
  const Framing framing{.content_length = head.content_length,
                        .chunked = head.chunked,
                        .expects_continue = head.expects_continue,
                        .head_only = head.method == "HEAD",
                        .gzip = encodings && lists_word(*encodings, "gzip"),
                        .old_client = head.minor_version == 0,
                        .close = admitted.close,
                        .max_body_bytes = limits.body_bytes};
  connection.begin_request(
      {.read_until = std::chrono::steady_clock::now() + limits.body_time,
       .most_bytes = head.chunked ? kChunkOverhead * limits.body_bytes + kChunkSlack : head.content_length,
       .write_time = limits.write_time});
  int status = 0;
  bool last = admitted.close;  // on this connection
  const auto answer = [&](BodyState state, std::string body) {
    request.body = std::move(body);
    Response response;
    if (state == BodyState::kWhole) {
      response = handled(route, request);
    } else {
      const HttpError error = state == BodyState::kTooLong
                                  ? HttpError(413, fmt::format("{} bytes of body are taken", limits.body_bytes))
                              : connection.timed_out() ? HttpError(408, "the body did not come in time")
                                                       : HttpError(400, "the body is not what its head announces");
      response = error.response();
    }
    last = admitted.close || state != BodyState::kWhole || connection.draining();
    if (last) response.set("Connection", "close");
    add_defaults(response);
    status = response.status;
    return response;
  };
  const auto stream = [&](const Response& response, const std::function<bool(std::string_view)>& write) {
    StreamWriter writer(connection, write);
    try {
      response.stream(writer);
    } catch (const std::exception& error) {
      log_error("http: the stream of {} {} failed: {}", request.method, route.pattern, error.what());
      return false;
    }
    return writer.whole();
  };
  bool keep = false;
  try {
    keep = codec_.exchange(connection, framing, answer, stream) && !last;
  } catch (const std::exception& error) {
    log_error("http: {} {}: {}", request.method, route.pattern, error.what());
  }
  connection.end_request();
  note({request.remote, request.method, request.path, route.pattern, status, connection.written(),
        seconds_since(admitted.begin)});
  return keep;
}

}  // namespace trireme::http
