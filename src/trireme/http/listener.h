// http/listener.h -- the socket a server listens at.
//
// Depends on: base.
#pragma once

#include <sys/socket.h>

#include <string>

namespace trireme::http {

/// Where to listen, looked up.
struct ListenAddress {
  std::string text;  // as it was asked for
  sockaddr_storage address{};
  socklen_t size = 0;
  bool loopback = false;  // other machines cannot reach it
};
/// A host's name or an address. ConfigError when there is none.
ListenAddress look_up(const std::string& address);

class Listener {
 public:
  /// Port 0 takes a free one. No other process can listen at the same port beside us. ConfigError when it is taken.
  Listener(const ListenAddress& address, int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int socket() const { return socket_; }
  int port() const { return port_; }

  struct Accepted {
    int socket = -1;         // -1: nobody is waiting
    bool exhausted = false;  // this process can open no more files
    std::string remote;      // "127.0.0.1:40312"
  };
  Accepted accept();
  /// Nobody can connect any more.
  void close();

 private:
  int socket_;
  int port_ = 0;
};

}  // namespace trireme::http
