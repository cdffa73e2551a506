// The control plane of ranks that are threads of one process: one hub in memory, shared by all planes.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/control.h"
#include "trireme/comm/control/listener.h"
#include "trireme/comm/control/store.h"

namespace trireme::comm {
namespace {

using control::Listener;
using control::Store;

struct ControlHub {
  explicit ControlHub(int ranks) : listeners(static_cast<std::size_t>(ranks)) {}

  std::mutex mutex;  // of the store only: callbacks run without it
  std::condition_variable stored;
  Store store;
  std::vector<Listener> listeners;  // [rank]; they lock themselves
};

class LocalControl : public ControlPlane {
 public:
  LocalControl(std::shared_ptr<ControlHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LocalControl() override {
    own().listen(nullptr, nullptr);
    if (!said_last_words_) announce(Notice::Kind::kLeft, fmt::format("rank {} left", rank_));
  }

  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(hub_->listeners.size()); }

  void set(const std::string& key, const std::string& value) override {
    {
      const std::lock_guard lock(hub_->mutex);
      hub_->store.set(key, value);
    }
    hub_->stored.notify_all();
  }

  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard lock(hub_->mutex);
    return hub_->store.get(key);
  }

  std::optional<std::string> wait_unless(const std::string& key, Milliseconds timeout,
                                         const std::function<bool()>& stop) override {
    const auto deadline = control::deadline_after(timeout);
    std::unique_lock lock(hub_->mutex);
    std::optional<std::string> value;
    const auto is_there = [&] { return (value = hub_->store.get(key)).has_value(); };
    while (!hub_->stored.wait_until(lock, control::next_look(deadline, stop), is_there)) {
      if (control::asked_to_stop(lock, stop)) return std::nullopt;
      if (std::chrono::steady_clock::now() >= deadline) throw control::key_timeout(rank_, key, timeout);
    }
    return value;
  }

  std::int64_t add(const std::string& key, std::int64_t delta) override {
    std::int64_t value = 0;
    {
      const std::lock_guard lock(hub_->mutex);
      value = hub_->store.add(key, delta);
    }
    hub_->stored.notify_all();
    return value;
  }

  void erase(const std::string& key) override {
    const std::lock_guard lock(hub_->mutex);
    hub_->store.erase(key);
  }

  void announce(Notice::Kind kind, const std::string& text) noexcept override {
    said_last_words_ = true;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (rank != rank_) listener(rank).deliver(kind, rank_, text);
    }
  }

  std::vector<std::optional<std::string>> ask(std::span<const int> asked, const std::string& question,
                                              Milliseconds timeout) noexcept override {
    std::vector<std::optional<std::string>> answers(asked.size());
    const auto deadline = control::deadline_after(timeout);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (asked[i] < 0 || asked[i] >= ranks()) continue;
      // An answer runs on this thread and cannot be cut short; but one that took too long must not be followed by more.
      if (i > 0 && std::chrono::steady_clock::now() >= deadline) break;
      answers[i] = listener(asked[i]).answer(question);
    }
    return answers;
  }

  void listen(std::function<void(const Notice&)> on_notice,
              std::function<std::string(const std::string&)> on_question) override {
    own().listen(std::move(on_notice), std::move(on_question));
  }

 private:
  Listener& listener(int rank) { return hub_->listeners[static_cast<std::size_t>(rank)]; }
  Listener& own() { return listener(rank_); }

  std::shared_ptr<ControlHub> hub_;  // shared by the planes of all ranks: any of them may be the last
  int rank_;
  std::atomic<bool> said_last_words_ = false;
};

}  // namespace

std::vector<std::unique_ptr<ControlPlane>> make_local_control(int ranks) {
  TRIREME_CHECK(ranks >= 1, "a control plane needs at least one rank, not {}", ranks);
  const auto hub = std::make_shared<ControlHub>(ranks);
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (int rank = 0; rank < ranks; ++rank) planes.push_back(std::make_unique<LocalControl>(hub, rank));
  return planes;
}

}  // namespace trireme::comm
