// tests/http/client.h -- a client of bare bytes on 127.0.0.1, which can do everything wrong that a client can.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "trireme/http/events.h"
#include "trireme/http/server.h"

namespace trireme::http {

/// An answer as it came, framing checked and taken off.
struct Answer {
  int status = 0;
  std::string head, body;
  bool whole = false;  // it came to the end that it announced

  /// The value of a header; "(none)" without it.
  std::string header(std::string_view name) const {
    const std::string key = fmt::format("\r\n{}: ", name);
    const std::size_t begin = head.find(key);
    if (begin == std::string::npos) return "(none)";
    return head.substr(begin + key.size(), head.find("\r\n", begin + 2) - begin - key.size());
  }
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) close();
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool open() const { return socket_ >= 0; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  /// As much as goes; a server may have closed its end.
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void send_no_more() { shutdown(socket_, SHUT_WR); }

  /// The next bytes; empty at the end, and when none come for a long time.
  std::string receive(int timeout_ms = 5000) {
    std::array<char, 65536> buffer;
    pollfd entry{socket_, POLLIN, 0};
    if (poll(&entry, 1, timeout_ms) <= 0) return {};
    const ssize_t bytes = recv(socket_, buffer.data(), buffer.size(), 0);
    return bytes > 0 ? std::string(buffer.data(), static_cast<std::size_t>(bytes)) : std::string();
  }
  /// Until `end` has come, which is returned too; less at the end of the connection.
  std::string receive_until(std::string_view end) {
    std::size_t found = 0;
    while ((found = received_.find(end)) == std::string::npos) {
      const std::string more = receive();
      if (more.empty()) return std::exchange(received_, {});
      received_ += more;
    }
    std::string out = received_.substr(0, found + end.size());
    received_.erase(0, found + end.size());
    return out;
  }
  std::string receive_exactly(std::size_t bytes) {
    while (received_.size() < bytes) {
      const std::string more = receive();
      if (more.empty()) break;
      received_ += more;
    }
    std::string out = received_.substr(0, bytes);
    received_.erase(0, bytes);
    return out;
  }
  /// The server has closed the connection, and had nothing more to say.
  bool ended() { return received_.empty() && receive().empty(); }

  Answer answer(bool to_head = false) {
    Answer out;
    out.head = receive_until("\r\n\r\n");
    if (out.head.starts_with("HTTP/1.1 ")) out.status = std::atoi(out.head.c_str() + 9);
    const std::string length = out.header("Content-Length");
    if (to_head || out.status == 204 || out.status == 304 || out.status == 100) {
      out.whole = true;
    } else if (length != "(none)") {
      const auto bytes = static_cast<std::size_t>(std::atoll(length.c_str()));
      out.body = receive_exactly(bytes);
      out.whole = out.body.size() == bytes;
    } else if (out.header("Transfer-Encoding") == "chunked") {
      while (true) {
        const std::string line = receive_until("\r\n");
        if (!line.ends_with("\r\n")) break;
        const auto bytes = static_cast<std::size_t>(std::strtoul(line.c_str(), nullptr, 16));
        out.body += receive_exactly(bytes);
        if (receive_exactly(2) != "\r\n") break;
        if (bytes == 0) {
          out.whole = true;
          break;
        }
      }
    } else {
      for (std::string more = receive_exactly(1 << 16); !more.empty(); more = receive_exactly(1 << 16))
        out.body += more;
    }
    return out;
  }
  Answer ask(std::string_view bytes) {
    send(bytes);
    return answer();
  }

 private:
  int socket_;
  std::string received_;
};

inline std::string get_text(std::string_view target, std::string_view headers = "") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", target, headers);
}
inline std::string post_text(std::string_view target, std::string_view body, std::string_view headers = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{}\r\n{}", target, body.size(),
                     headers, body);
}

/// Whether `holds` comes true within some seconds.
template <typename Condition>
bool soon(Condition&& holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A server that echoes, for tests to add routes to before they start it.
class ServerTest : public ::testing::Test {
 protected:
  Server& make(ServerOptions options = {}) {
    server_ = std::make_unique<Server>(std::move(options), metrics_);
    server_->post("/echo", [](const Request& request) { return Response::text(request.body); });
    server_->get("/hello", [](const Request&) { return Response::text("hello"); });
    return *server_;
  }
  Server& started(ServerOptions options = {}) {
    make(std::move(options)).start();
    return *server_;
  }
  int port() const { return server_->port(); }
  Answer ask(std::string_view bytes) { return RawClient(port()).ask(bytes); }
  double running() {
    return metrics_.gauge("trireme_http_requests_running", "Requests that run, streams among them").value();
  }
  double connections() { return metrics_.gauge("trireme_http_connections", "Connections that are open").value(); }

  /// Before what handlers use goes.
  void TearDown() override {
    if (server_) server_->stop();
  }

  Metrics metrics_;
  std::unique_ptr<Server> server_;
};

}  // namespace trireme::http
