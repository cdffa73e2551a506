// http/connection.h -- one client's socket: bytes that came and were not read yet, and writes that do not wait for
// ever.
//
// The server's loop owns every connection. It gathers heads without waiting; while a request runs, a worker reads
// the body and writes the answer, and the loop only watches whether the client is still there.
// Depends on: base, codec, message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "trireme/http/codec.h"
#include "trireme/http/message.h"

namespace trireme::http {

class Connection final : public Wire, public Client {
 public:
  using Clock = std::chrono::steady_clock;

  /// Owns the socket, which does not block. `draining` is its server's: what a handler reads is then never older than
  /// what any other client has been told.
  Connection(int socket, std::string remote, const std::atomic<bool>& draining);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return socket_; }
  const std::string& remote() const { return remote_; }

  // ---- while no request runs, by the loop

  enum class Arrival : std::uint8_t { kSome, kNone, kEnd };
  /// Takes what is there, at most `most` bytes in all.
  Arrival gather(std::size_t most);
  std::string_view gathered() const { return std::string_view(bytes_).substr(taken_); }
  void consume(std::size_t bytes);
  /// What the socket takes at once; false when that was not all.
  bool write_at_once(std::string_view bytes);

  // ---- while a request runs, by its worker

  struct RequestLimits {
    Clock::time_point read_until;
    std::uint64_t most_bytes = 0;  // that may be read
    std::chrono::milliseconds write_time{10'000};
  };
  void begin_request(const RequestLimits& limits);
  /// No callback runs any more when it returns.
  void end_request();
  ssize_t read(char* into, std::size_t size) override;
  bool write(std::string_view bytes) override;
  bool timed_out() const { return timed_out_; }
  std::uint64_t written() const { return written_; }

  // ---- by any thread

  bool connected() const override { return !gone_.load(std::memory_order_relaxed); }
  bool draining() const override { return draining_; }
  void on_change(std::function<void()> wake) override;
  /// By the loop: the client has gone.
  void note_gone();
  /// By the loop: `draining` has turned true; whoever waits is woken.
  void note_draining() { call_wake(); }
  /// Both directions end at once; whoever waits for the socket is woken.
  void cut();

 private:
  void call_wake();

  const int socket_;
  const std::string remote_;
  std::string bytes_;
  std::size_t taken_ = 0;  // of bytes_
  RequestLimits limits_;
  std::uint64_t read_ = 0, written_ = 0;  // in this request
  bool timed_out_ = false;
  std::atomic<bool> gone_ = false;
  const std::atomic<bool>& draining_;
  std::mutex wake_mutex_;
  std::function<void()> wake_;
};

}  // namespace trireme::http
