#include "trireme/comm/mailbox_threads.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <list>
#include <map>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/mailbox_bodies.h"

namespace trireme::comm {
namespace {

using ThreadMailClock = std::chrono::steady_clock;

class ThreadMailHub {
 public:
  struct Letter {
    Mail mail;
    ThreadMailClock::time_point ready;
    QueueMeter::Nanoseconds posted;
  };
  struct Box {
    std::list<Letter> letters;           // as they were posted
    std::map<int, std::size_t> untaken;  // bytes by sender
    std::map<std::pair<int, std::uint32_t>, ThreadMailClock::time_point>
        last;  // when that sender's mail of the tag is ready
    std::map<int, ThreadMailClock::time_point> link_free;
    std::condition_variable changed;
    QueueMeter meter;
  };
  ThreadMailHub(int count, const ThreadMail& options)
      : options_(options), random_(options.seed, "mailbox/jitter"), boxes_(static_cast<std::size_t>(count)) {}

  Box& box(int address) {
    if (address < 0 || static_cast<std::size_t>(address) >= boxes_.size())
      throw CommError(fmt::format("there is no mailbox {}, only 0 to {}", address, boxes_.size() - 1));
    return boxes_[static_cast<std::size_t>(address)];
  }
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    if (!failure_) failure_ = failure;
    for (Box& each : boxes_) each.changed.notify_all();
  }
  std::exception_ptr failure() const { return failure_; }
  void check() const {
    if (failure_) throw BodyStopped{};
  }
  bool may_post(int from, int to, std::size_t bytes) {
    const std::size_t untaken = box(to).untaken[from];
    return untaken == 0 || untaken + bytes <= options_.credit_bytes;
  }
  void post(int from, int to, Mail mail) {
    Box& at = box(to);
    const auto now = ThreadMailClock::now();
    using Duration = ThreadMailClock::duration;
    ThreadMailClock::time_point sent = std::max(now, at.link_free[from]);
    if (options_.bytes_per_second > 0) {
      sent += std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(static_cast<double>(mail.bytes.size()) / options_.bytes_per_second));
      at.link_free[from] = sent;
    }
    auto ready = sent + options_.latency;
    if (options_.jitter.count() > 0) {
      const double draw = -std::log1p(-random_.uniform(draws_++));
      ready += std::chrono::duration_cast<Duration>(options_.jitter * std::min(draw, 20.0));
    }
    auto& last = at.last[{from, mail.tag}];
    ready = last = std::max(last, ready);
    at.untaken[from] += mail.bytes.size();
    const auto posted = QueueMeter::now();
    at.meter.arrive(posted);
    at.letters.push_back({std::move(mail), ready, posted});
    at.changed.notify_all();
  }
  /// The letter that is ready and has the highest priority; `wake`: when the next one will be.
  std::optional<Mail> take(int me, std::optional<std::uint32_t> tag, ThreadMailClock::time_point& wake) {
    Box& at = box(me);
    const auto now = ThreadMailClock::now();
    wake = now + std::chrono::hours(1);
    const auto best = letter_to_hand_out(at.letters, tag, [&](const Letter& letter) {
      if (letter.ready > now) wake = std::min(wake, letter.ready);
      return letter.ready <= now;
    });
    if (best == at.letters.end()) return std::nullopt;
    Mail mail = std::move(best->mail);
    at.meter.depart(best->posted);
    at.letters.erase(best);
    at.untaken[mail.from] -= mail.bytes.size();
    box(mail.from).changed.notify_all();  // credit
    return mail;
  }

  std::mutex mutex;
  const ThreadMail options_;

 private:
  const Random random_;
  std::uint64_t draws_ = 0;
  std::vector<Box> boxes_;
  std::exception_ptr failure_;
};

class ThreadMailbox final : public Mailbox {
 public:
  ThreadMailbox(ThreadMailHub& hub, int me) : hub_(hub), me_(me) {}
  int address() const override { return me_; }

  void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) override {
    std::unique_lock lock(hub_.mutex);
    const bool posted = hub_.box(me_).changed.wait_for(lock, hub_.options_.deadline, [&] {
      hub_.check();
      return hub_.may_post(me_, to, bytes.size());
    });
    if (!posted)
      throw CommError(fmt::format("mailbox {} waited too long to post {} bytes to mailbox {}", me_, bytes.size(), to),
                      fmt::format("look whether mailbox {} receives", to));
    hub_.post(me_, to, {me_, tag, priority, {bytes.begin(), bytes.end()}});
  }
  bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                      std::span<const std::byte> rest) override {
    {
      const std::lock_guard lock(hub_.mutex);
      hub_.check();
      if (!hub_.may_post(me_, to, head.size() + rest.size())) return false;
    }
    // Copied without the lock; what this mailbox may post grows meanwhile, if it changes.
    Mail mail{me_, tag, priority, joined_bytes(head, rest)};
    const std::lock_guard lock(hub_.mutex);
    hub_.post(me_, to, std::move(mail));
    return true;
  }
  Mail receive(std::optional<std::uint32_t> tag) override {
    std::optional<Mail> mail = receive_for(hub_.options_.deadline, tag);
    if (!mail) throw CommError(fmt::format("mailbox {} got no mail in time", me_));
    return *std::move(mail);
  }
  std::optional<Mail> receive_for(Milliseconds time, std::optional<std::uint32_t> tag) override {
    std::unique_lock lock(hub_.mutex);
    const auto until = ThreadMailClock::now() + time;
    ThreadMailClock::time_point wake;
    while (true) {
      hub_.check();
      if (std::optional<Mail> mail = hub_.take(me_, tag, wake)) return mail;
      if (ThreadMailClock::now() >= until) return std::nullopt;
      hub_.box(me_).changed.wait_until(lock, std::min(wake, until));
    }
  }
  std::optional<Mail> try_receive(std::optional<std::uint32_t> tag) override {
    const std::lock_guard lock(hub_.mutex);
    hub_.check();
    ThreadMailClock::time_point wake;
    return hub_.take(me_, tag, wake);
  }
  std::vector<Mail> take_returned() override { return {}; }
  /// On its way included: a link is a queue, too.
  QueueReading queue() const override {
    const std::lock_guard lock(hub_.mutex);
    return hub_.box(me_).meter.read();
  }

 private:
  ThreadMailHub& hub_;
  const int me_;
};

class HubRoom final : public ThreadMailRoom {
 public:
  HubRoom(int count, const ThreadMail& options) : hub_(count, options) {}
  std::unique_ptr<Mailbox> open(int address) override { return std::make_unique<ThreadMailbox>(hub_, address); }

 private:
  ThreadMailHub hub_;
};

}  // namespace

std::shared_ptr<ThreadMailRoom> make_thread_mail_room(int count, const ThreadMail& options) {
  return std::make_shared<HubRoom>(count, options);
}

void run_thread_mailboxes(int count, const ThreadMail& options, const std::function<void(Mailbox&)>& body) {
  ThreadMailHub hub(count, options);
  run_bodies(
      count,
      [&](int me) {
        ThreadMailbox mailbox(hub, me);
        body(mailbox);
      },
      [&](int, const std::exception_ptr& failure) {
        if (failure) hub.fail(failure);
      });
  if (hub.failure()) std::rethrow_exception(hub.failure());
}

}  // namespace trireme::comm
