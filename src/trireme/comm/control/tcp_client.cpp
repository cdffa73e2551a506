// A rank's end of the TCP control plane: calls from any thread, and one thread of its own that reads.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/control.h"
#include "trireme/comm/control/handshake.h"
#include "trireme/comm/control/listener.h"
#include "trireme/comm/control/socket.h"
#include "trireme/comm/control/store.h"
#include "trireme/comm/control/wire.h"

namespace trireme::comm {
namespace {

using namespace control;
using namespace std::chrono_literals;

// For the server to close the connection after our good-bye; where a rank has failed it may not hear it.
constexpr std::chrono::milliseconds kGoodbyeWait = 2s, kFailedGoodbyeWait = 500ms;
constexpr std::size_t kMaxNoticeBytes = 64 << 10;
constexpr std::size_t kClientReadBytes = 256 << 10;

class Client : public ControlPlane {
 public:
  explicit Client(const TcpControlOptions& options) : options_(options), connection_(shake_hands(options)) {
    reader_ = std::thread([this] { run(); });
  }

  ~Client() override {
    listener_.listen(nullptr, nullptr);
    leaving_ = true;
    send({.type = MessageType::kBye});
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, failed_ ? kFailedGoodbyeWait : kGoodbyeWait, [&] { return !lost_.empty(); });
    }
    shutdown(connection_.fd.get(), SHUT_RDWR);  // ends the reader's wait, should the server not have closed
    reader_.join();
  }

  int rank() const override { return options_.rank; }
  int ranks() const override { return options_.ranks; }

  void set(const std::string& key, const std::string& value) override {
    call({.type = MessageType::kSet, .key = key, .value = value}, "set");
  }

  std::optional<std::string> get(const std::string& key) override {
    Message reply = call({.type = MessageType::kGet, .key = key}, "get");
    if (!reply.flag) return std::nullopt;
    return std::move(reply.value);
  }

  std::optional<std::string> wait_unless(const std::string& key, Milliseconds timeout,
                                         const std::function<bool()>& stop) override {
    const auto deadline = deadline_after(timeout);
    const std::uint64_t id = start({.type = MessageType::kWait, .number = timeout.count(), .key = key});
    bool stopped = false;
    if (auto reply = finish(id, deadline, stop, &stopped)) return std::move(reply->value);
    if (stopped) return std::nullopt;
    // The key may be there and only its way here was longer than a short timeout: ask once more, without hurry.
    if (auto value = get(key)) return *std::move(value);
    throw key_timeout(rank(), key, timeout);
  }

  std::int64_t add(const std::string& key, std::int64_t delta) override {
    return call({.type = MessageType::kAdd, .number = delta, .key = key}, "add").number;
  }

  void erase(const std::string& key) override { call({.type = MessageType::kErase, .key = key}, "erase"); }

  void announce(Notice::Kind kind, const std::string& text) noexcept override {
    if (kind != Notice::Kind::kLeft) failed_ = true;
    try {
      send({.type = MessageType::kAnnounce,
            .number = static_cast<std::int64_t>(kind),
            .value = text.substr(0, kMaxNoticeBytes)});
    } catch (const std::exception& error) {
      log_error("a notice could not be announced: {}", error.what());
    }
  }

  std::vector<std::optional<std::string>> ask(std::span<const int> asked, const std::string& question,
                                              Milliseconds timeout) noexcept override {
    std::vector<std::optional<std::string>> answers(asked.size());
    try {
      const auto deadline = deadline_after(timeout);
      std::map<std::size_t, std::uint64_t> ids;  // [position in asked]
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (asked[i] == rank()) continue;
        ids[i] = start({.type = MessageType::kAsk, .rank = asked[i], .number = timeout.count(), .value = question});
      }
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (asked[i] == rank()) {
          answers[i] = listener_.answer(question);
        } else if (auto reply = finish(ids.at(i), deadline); reply && reply->flag) {
          answers[i] = std::move(reply->value);
        }
      }
    } catch (const std::exception& error) {
      log_warn("not all ranks could be asked: {}", error.what());
    }
    return answers;
  }

  void listen(std::function<void(const Notice&)> on_notice,
              std::function<std::string(const std::string&)> on_question) override {
    listener_.listen(std::move(on_notice), std::move(on_question));
  }

 private:
  std::string lost_text() const { return fmt::format("{} is lost: {}", describe(options_), lost_); }

  /// Sends a request whose reply finish() takes; the number pairs them.
  std::uint64_t start(Message message) {
    check_control_sizes(message.key, message.value);
    {
      const std::lock_guard lock(mutex_);
      message.id = next_id_++;
      replies_[message.id] = std::nullopt;
    }
    send(message);
    return message.id;
  }

  /// The reply, or nothing when it does not come before the deadline. Throws CommError when the request failed or the
  /// plane is lost. Nothing, too, when `stop` said so, which `stopped` then tells.
  std::optional<Message> finish(std::uint64_t id, Clock::time_point deadline, const std::function<bool()>& stop = {},
                                bool* stopped = nullptr) {
    std::unique_lock lock(mutex_);
    const auto settled = [&] { return replies_.at(id).has_value() || !lost_.empty(); };
    while (!settled() && Clock::now() < deadline) {
      if (std::this_thread::get_id() == reader_.get_id()) {
        // A callback calls: nobody else reads while it runs. What arrives for callbacks waits until it has returned.
        lock.unlock();
        read_some(next_look(deadline, stop));
        lock.lock();
      } else {
        changed_.wait_until(lock, next_look(deadline, stop), settled);
      }
      if (!settled() && asked_to_stop(lock, stop)) {
        *stopped = true;
        break;
      }
    }
    std::optional<Message> reply = std::move(replies_.extract(id).mapped());
    if (!reply && !lost_.empty()) throw CommError(lost_text(), "see rank 0's output for why it ended");
    if (reply && reply->type == MessageType::kFailure) throw CommError(reply->value, reply->key);
    return reply;
  }

  Message call(Message message, const char* what) {
    const std::string key = message.key;
    const auto deadline = deadline_after(options_.heartbeat_timeout);
    if (auto reply = finish(start(std::move(message)), deadline)) return *std::move(reply);
    throw CommError(fmt::format("{} did not answer {}(\"{}\") within {:.1f} s", describe(options_), what, key,
                                std::chrono::duration<double>(options_.heartbeat_timeout).count()),
                    "see whether rank 0's host is overloaded or cut off");
  }

  /// Any thread. A message that cannot be sent whole leaves the stream useless, so the plane is lost with it.
  void send(const Message& message) {
    const std::string frame = encode(message);
    const std::lock_guard lock(send_mutex_);
    if (!send_all(connection_.fd, frame, deadline_after(options_.heartbeat_timeout))) {
      // The reader finds the end, after what the server said before it.
      shutdown(connection_.fd.get(), SHUT_RDWR);
    }
  }

  void run() noexcept {
    try {
      next_heartbeat_ = Clock::now() + options_.heartbeat_every;
      heard_ = Clock::now();
      take_messages();
      while (true) {
        call_back();
        if (!read_some(Clock::now() + 1h)) break;
      }
      call_back();  // what came before the end
    } catch (const std::exception& error) {
      fail(fmt::format("its reader failed: {}", error.what()));
    }
    if (!leaving_) listener_.deliver(Notice::Kind::kLost, 0, lost_text());
  }

  /// Reader only: waits for bytes, at most until then, and keeps the heart beating. False once the plane is lost.
  bool read_some(Clock::time_point until) {
    if (Clock::now() >= next_heartbeat_) {
      send({.type = MessageType::kHeartbeat});
      next_heartbeat_ = Clock::now() + options_.heartbeat_every;
    }
    pollfd waiting{connection_.fd.get(), POLLIN, 0};
    const int ready = poll(&waiting, 1, poll_timeout_ms(std::min(until, next_heartbeat_)));
    if (ready < 0 && errno != EINTR) return fail(errno_text(errno));
    const Received received = receive(connection_.fd, buffer_.data(), buffer_.size());
    if (received.bytes > 0) {
      heard_ = Clock::now();
      connection_.in.feed({buffer_.data(), received.bytes});
      return take_messages();
    }
    if (received.ended) {
      return fail(fmt::format("it closed the connection{}", received.error ? " (" + *received.error + ")" : ""));
    }
    if (const auto silent = Clock::now() - heard_; silent > options_.heartbeat_timeout) {
      return fail(fmt::format("nothing was heard from it for {:.1f} s", std::chrono::duration<double>(silent).count()));
    }
    return true;
  }

  /// Reader only: hands out replies at once and puts aside what callbacks must hear. False once the plane is lost.
  bool take_messages() {
    try {
      while (auto message = connection_.in.next()) {
        switch (message->type) {
          case MessageType::kReply:
          case MessageType::kFailure: {
            const std::lock_guard lock(mutex_);
            // No entry: the one who asked gave up.
            if (const auto entry = replies_.find(message->id); entry != replies_.end()) entry->second = *message;
            changed_.notify_all();
            break;
          }
          case MessageType::kNotice:
          case MessageType::kQuestion:
            inbox_.push_back(*std::move(message));
            break;
          case MessageType::kRefused:
            return fail(message->value);
          default:  // heartbeats; the good-bye is followed by the end of the connection
            break;
        }
      }
    } catch (const WireError& error) {
      return fail(error.message());
    }
    return true;
  }

  /// Reader only: lets the listener hear what has arrived for it.
  void call_back() {
    while (!inbox_.empty()) {
      const Message message = std::move(inbox_.front());
      inbox_.pop_front();
      if (message.type == MessageType::kNotice) {
        // Listeners index by rank and kind: a server gone mad must not reach them.
        if (message.rank < 0 || message.rank >= ranks() || message.number < 0 ||
            message.number > static_cast<std::int64_t>(Notice::Kind::kRefused)) {
          continue;
        }
        const auto kind = static_cast<Notice::Kind>(message.number);
        if (kind != Notice::Kind::kLeft) failed_ = true;
        listener_.deliver(kind, message.rank, message.value);
        continue;
      }
      auto answer = listener_.answer(message.value);
      if (answer && answer->size() > kMaxControlValueBytes) answer.reset();  // as good as none
      send({.type = MessageType::kAnswer, .flag = answer.has_value(), .id = message.id, .value = answer.value_or("")});
    }
  }

  /// The first reason counts; false, for the caller to return.
  bool fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (lost_.empty()) lost_ = why;
    changed_.notify_all();
    return false;
  }

  const TcpControlOptions options_;
  Listener listener_;
  Handshake connection_;  // `in` belongs to the reader
  std::mutex send_mutex_;

  std::mutex mutex_;  // of the next four
  std::condition_variable changed_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::optional<Message>> replies_;  // of requests under way
  std::string lost_;                                         // why the plane is of no more use; empty while it is

  // The reader's own.
  Clock::time_point heard_, next_heartbeat_;
  std::deque<Message> inbox_;
  std::vector<char> buffer_ = std::vector<char>(kClientReadBytes);

  std::atomic<bool> leaving_ = false;
  std::atomic<bool> failed_ = false;  // this rank or another
  std::thread reader_;                // last: it uses all of the above
};

}  // namespace

std::unique_ptr<ControlPlane> connect_tcp_control(const TcpControlOptions& options) {
  return std::make_unique<Client>(options);
}

}  // namespace trireme::comm
