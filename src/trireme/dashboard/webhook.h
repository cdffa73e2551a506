// dashboard/webhook.h -- tells another server what happened: a POST with JSON, signed, that blocks nobody.
//
//   X-Trireme-Event: experiment_done
//   X-Trireme-Signature: sha256=HEX        HMAC-SHA256 of the body with the secret; only where there is one
//
// Three tries, a second and four seconds apart. At most 256 wait; what comes beyond is dropped and logged.
// Depends on: base (sha256), http (post).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/http/post.h"

namespace trireme::dashboard {

struct WebhookOptions {
  std::vector<std::string> urls;
  std::string secret;
  std::chrono::milliseconds first_wait{1000};  ///< before the second try; four times as long before the third
  /// Tests put their own here.
  std::function<http::PostAnswer(const http::PostRequest&)> post = &http::post_json;
};

/// "sha256=HEX".
std::string signature_of(std::string_view secret, std::string_view body);

class Webhook {
 public:
  /// ConfigError where an address is none.
  explicit Webhook(WebhookOptions options);
  /// What waits is tried once more at most.
  ~Webhook();
  Webhook(const Webhook&) = delete;
  Webhook& operator=(const Webhook&) = delete;

  bool wanted() const { return !addresses_.empty(); }
  /// Returns at once.
  void tell(std::string event, std::string body);

  struct Counts {
    std::size_t sent = 0, failed = 0, dropped = 0;
  };
  Counts counts() const;
  /// From tell() until it was sent or given up.
  QueueReading queue() const;

 private:
  struct Message {
    std::string event, body;
    QueueMeter::Nanoseconds told = 0;
  };
  void run();
  void send(const Message& message);
  bool wait(std::chrono::milliseconds time);

  WebhookOptions options_;
  std::vector<http::Address> addresses_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> waiting_;
  Counts counts_;
  QueueMeter meter_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace trireme::dashboard
