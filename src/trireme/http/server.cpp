#include "trireme/http/server.h"

#include "trireme/http/loop.h"

namespace trireme::http {
namespace {

std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace

Server::Server(ServerOptions options, Metrics& metrics) : loop_(std::make_unique<Loop>(std::move(options), metrics)) {
  constexpr RouteOptions kProbe{.need = Need::kNothing, .always = true};
  // Health is about the process, readiness about whether to send it more: a draining server is healthy and not ready.
  get(
      "/health", [](const Request&) { return Response::json(R"({"status":"ok"})"); }, kProbe);
  get(
      "/ready",
      [loop = loop_.get()](const Request&) {
        if (loop->draining()) return Response::json(R"({"status":"draining"})", 503);
        const auto& is_ready = loop->options().is_ready;
        if (is_ready && !is_ready()) return Response::json(R"({"status":"starting"})", 503);
        return Response::json(R"({"status":"ready"})");
      },
      kProbe);
  get("/metrics", [&metrics](const Request&) { return Response::text(metrics.text(), Metrics::kContentType); },
      {.always = true});
}

Server::~Server() = default;

int Server::port() const { return loop_->port(); }

std::string Server::url() const {
  std::string host = loop_->options().address;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::" || host == "[::]") host = "[::1]";
  if (host.find(':') != std::string::npos && !host.starts_with('[')) host = fmt::format("[{}]", host);
  return fmt::format("http://{}:{}", host, port());
}

void Server::route(std::string method, std::string pattern, Handler handler, RouteOptions options) {
  loop_->router().add({std::move(method), std::move(pattern), options, std::move(handler)});
}

void Server::get(std::string pattern, Handler handler, RouteOptions options) {
  route("GET", std::move(pattern), std::move(handler), options);
}

void Server::post(std::string pattern, Handler handler, RouteOptions options) {
  route("POST", std::move(pattern), std::move(handler), options);
}

void Server::asset(std::string path, std::string_view type, std::string_view bytes, RouteOptions options) {
  const std::string tag = fmt::format("\"{:016x}\"", fnv1a(bytes));
  get(
      std::move(path),
      [tag, bytes, type = std::string(type)](const Request& request) {
        const std::string* known = request.header("If-None-Match");
        Response response;
        if (known && *known == tag) {
          response.status = 304;
        } else {
          response = Response::text(std::string(bytes), type);
        }
        response.set("ETag", tag).set("Cache-Control", "no-cache");
        return response;
      },
      options);
}

void Server::start() { loop_->start(); }
bool Server::drain(std::chrono::milliseconds timeout) { return loop_->drain(timeout); }
void Server::stop() { loop_->stop(); }

}  // namespace trireme::http
