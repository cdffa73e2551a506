// http/message.h -- what a handler is given and what it gives back: plain values.
//
//   server.get("/v1/models/{model...}", [&](const Request& request) {
//     return Response::json(describe(request.param("model")));
//   });
//
// A handler may throw HttpError; the client then gets the JSON object that OpenAI's clients understand. Any other
// exception is logged and becomes a 500 that tells the client nothing.
// Depends on: base.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::http {

/// Names and values in the order they came in.
using Fields = std::vector<std::pair<std::string, std::string>>;
/// The first value; names of headers do not depend on case.
const std::string* find_header(const Fields& headers, std::string_view name);

/// The other end of the connection while a handler runs.
class Client {
 public:
  virtual ~Client() = default;
  /// False once the client has gone, or half closed, or stop() has cut the connection: end soon.
  virtual bool connected() const = 0;
  /// The server finishes what runs; a stream without an end of its own should end now.
  virtual bool draining() const = 0;
  /// `wake` is called whenever one of the two changes, by a thread of the server: it must be quick and not call back.
  /// Called at once where that has happened already; never again after the answer is complete.
  virtual void on_change(std::function<void()> wake) = 0;
};

struct Request {
  std::string method, path;  // the path as it was sent, without the query
  Fields params;             // of the route's pattern, decoded
  Fields query;              // decoded
  Fields headers;
  std::string body;
  std::string remote;        // "127.0.0.1:40312"
  Client* client = nullptr;  // outlives the answer, its stream included

  /// InternalError when the route has no such parameter.
  const std::string& param(std::string_view name) const;
  const std::string* query_value(std::string_view name) const;
  const std::string* header(std::string_view name) const { return find_header(headers, name); }
};

/// Where a stream's bytes go.
class Writer {
 public:
  virtual ~Writer() = default;
  /// False when they cannot arrive any more: the client has gone, takes nothing, or was cut.
  virtual bool write(std::string_view bytes) = 0;
  virtual Client& client() = 0;
};

struct Response {
  int status = 200;
  Fields headers;
  std::string body;
  /// Called after the head has been sent, in place of a body; the request is still there. When it throws, the
  /// connection is cut, so that no client takes a part for the whole.
  std::function<void(Writer&)> stream;

  static Response text(std::string body, std::string_view type = "text/plain; charset=utf-8");
  static Response json(std::string body, int status = 200);
  static Response streamed(std::string_view type, std::function<void(Writer&)> stream);

  /// InternalError where name or value could not stand in a head, such as one with a line break.
  Response& set(std::string_view name, std::string_view value) &;
  Response&& set(std::string_view name, std::string_view value) &&;
};

using Handler = std::function<Response(const Request&)>;

/// A refusal by status; `type` and `code` are OpenAI's words for it, `param` the field that is wrong.
class HttpError : public Error {
 public:
  struct Details {
    std::string type, code, param;  // empty: by the status, null, null
  };
  HttpError(int status, std::string message) : HttpError(status, std::move(message), Details()) {}
  HttpError(int status, std::string message, Details details);
  const char* kind() const noexcept override { return "http error"; }

  int status() const { return status_; }
  const Details& details() const { return details_; }
  /// {"error": {"message", "type", "param", "code"}}.
  Response response() const;

 private:
  int status_;
  Details details_;
};

/// "Not Found"; "Unknown" for a status without a name here.
std::string_view reason_phrase(int status);

/// The body as JSON. HttpError 415 for another content type, 400 with the byte for what is no JSON, too deep, or no
/// object.
nlohmann::json json_body(const Request& request);

}  // namespace trireme::http
