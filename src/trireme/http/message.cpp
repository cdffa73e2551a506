#include "trireme/http/message.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "trireme/base/text.h"
#include "trireme/http/head.h"

namespace trireme::http {
namespace {

constexpr int kMaxDepth = 64;

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

const std::string* find_header(const Fields& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (same_word(key, name)) return &value;
  }
  return nullptr;
}

const std::string& Request::param(std::string_view name) const {
  for (const auto& [key, value] : params) {
    if (key == name) return value;
  }
  throw InternalError(fmt::format("the route of {} {} has no parameter \"{}\"", method, path, name));
}

const std::string* Request::query_value(std::string_view name) const {
  for (const auto& [key, value] : query) {
    if (key == name) return &value;
  }
  return nullptr;
}

Response Response::text(std::string body, std::string_view type) {
  Response response;
  response.body = std::move(body);
  response.set("Content-Type", type);
  return response;
}

Response Response::json(std::string body, int status) {
  Response response = text(std::move(body), "application/json");
  response.status = status;
  return response;
}

Response Response::streamed(std::string_view type, std::function<void(Writer&)> stream) {
  Response response;
  response.stream = std::move(stream);
  response.set("Content-Type", type);
  return response;
}

Response& Response::set(std::string_view name, std::string_view value) & {
  if (!is_token(name) || !is_field_value(value))
    throw InternalError(fmt::format("the header \"{}\" of a response has a name or value that cannot be sent", name));
  std::erase_if(headers, [&](const auto& header) { return same_word(header.first, name); });
  headers.emplace_back(name, value);
  return *this;
}

Response&& Response::set(std::string_view name, std::string_view value) && { return std::move(set(name, value)); }

HttpError::HttpError(int status, std::string message, Details details)
    : Error(std::move(message)), status_(status), details_(std::move(details)) {
  if (details_.type.empty()) details_.type = type_of(status);
}

Response HttpError::response() const {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", message()},
                                         {"type", details_.type},
                                         {"param", or_null(details_.param)},
                                         {"code", or_null(details_.code)}}}};
  // A message may quote what the client sent, which need not be UTF-8.
  return Response::json(body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), status_);
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

nlohmann::json json_body(const Request& request) {
  if (const std::string* type = request.header("Content-Type")) {
    const std::string_view essence = trimmed(std::string_view(*type).substr(0, type->find(';')));
    if (!same_word(essence, "application/json"))
      throw HttpError(415, fmt::format("the body must be JSON, but its Content-Type is \"{}\": send "
                                       "\"Content-Type: application/json\"",
                                       essence));
  }
  bool too_deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;  // what is deeper is not even kept
  };
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(request.body, watch);
  } catch (const nlohmann::json::parse_error& error) {
    throw HttpError(400,
                    fmt::format("the body is no valid JSON: wrong at byte {} of {}", error.byte, request.body.size()));
  } catch (const nlohmann::json::out_of_range&) {
    throw HttpError(400, "the body has a number that is too large for 64 bits");
  }
  if (too_deep) throw HttpError(400, fmt::format("the body is nested deeper than {} levels", kMaxDepth));
  if (!json.is_object()) throw HttpError(400, "the body must be a JSON object");
  return json;
}

}  // namespace trireme::http
