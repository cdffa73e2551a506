#include "trireme/dashboard/webhook.h"

#include "trireme/base/log.h"
#include "trireme/base/sha256.h"

namespace trireme::dashboard {
namespace {

constexpr std::size_t kMostWaiting = 256;
constexpr int kTries = 3;

}  // namespace

std::string signature_of(std::string_view secret, std::string_view body) {
  const Sha256Digest digest = hmac_sha256(secret, body);
  return "sha256=" + to_hex({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

Webhook::Webhook(WebhookOptions options) : options_(std::move(options)) {
  for (const std::string& url : options_.urls) addresses_.push_back(http::parse_address(url));
  if (wanted()) thread_ = std::thread([this] { run(); });
}

Webhook::~Webhook() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Webhook::tell(std::string event, std::string body) {
  if (!wanted()) return;
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= kMostWaiting) {
    if (counts_.dropped++ == 0)
      log_warn("webhook: {} wait already; \"{}\" is dropped, and what comes while they do", waiting_.size(), event);
    return;
  }
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  meter_.arrive(now);
  waiting_.push_back({std::move(event), std::move(body), now});
  changed_.notify_all();
}

Webhook::Counts Webhook::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

QueueReading Webhook::queue() const {
  const std::lock_guard lock(mutex_);
  return meter_.read();
}

/// True when the time has passed; false when we are to end.
bool Webhook::wait(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [&] { return closing_; });
}

void Webhook::send(const Message& message) {
  for (const http::Address& address : addresses_) {
    http::PostRequest request{
        .address = address, .headers = {{"X-Trireme-Event", message.event}}, .body = message.body};
    if (!options_.secret.empty())
      request.headers.emplace_back("X-Trireme-Signature", signature_of(options_.secret, message.body));
    http::PostAnswer answer;
    std::chrono::milliseconds pause = options_.first_wait;
    for (int attempt = 1;; ++attempt, pause *= 4) {
      answer = options_.post(request);
      const bool taken = answer.status >= 200 && answer.status < 300;
      // What the other side calls our mistake does not get better by asking again.
      const bool hopeless = answer.status >= 400 && answer.status < 500 && answer.status != 429;
      if (taken || hopeless || attempt == kTries || !wait(pause)) break;
    }
    const bool taken = answer.status >= 200 && answer.status < 300;
    {
      const std::lock_guard lock(mutex_);
      ++(taken ? counts_.sent : counts_.failed);
    }
    if (!taken)
      log_warn("webhook: {} did not take \"{}\": {}", address.origin, message.event,
               answer.status == 0 ? answer.why : fmt::format("status {}", answer.status));
  }
}

void Webhook::run() {
  while (true) {
    Message message;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      message = std::move(waiting_.front());
      waiting_.pop_front();
    }
    send(message);
    const std::lock_guard lock(mutex_);
    meter_.depart(message.told);
  }
}

}  // namespace trireme::dashboard
