#include "trireme/comm/mailbox_timed.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <list>
#include <map>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/mailbox_bodies.h"

namespace trireme::comm {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// All clocks and all mail. Whoever has the turn is not later than anybody else could go on, so what is sent to it
/// afterwards comes afterwards.
class TimedHub {
 public:
  TimedHub(int count, const TimedMail& options)
      : options_(options), random_(options.seed, "mailbox/jitter"), seats_(static_cast<std::size_t>(count)) {}

  void enter(int me) {
    std::unique_lock lock(mutex_);
    at(me).here = true;
    if (++entered_ == static_cast<int>(seats_.size())) pass_turn();
    wait_for_turn(lock, me);
  }
  void leave(int me, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    at(me).here = false;
    pass_turn();
  }
  std::exception_ptr failure() const { return failure_; }

  double now(int me) const { return seats_[static_cast<std::size_t>(me)].now; }

  /// Goes on `seconds` later.
  void advance(int me, double seconds) {
    std::unique_lock lock(mutex_);
    Seat& seat = at(me);
    seat.wanted = {.until = seat.now + std::max(0.0, seconds), .mail = false, .tag = {}};
    pass_turn();
    wait_for_turn(lock, me);
    seat.now = seat.wanted.until;
  }
  /// The first mail that comes until then, at the time at which it comes; of several the highest priority.
  std::optional<Mail> receive(int me, double until, std::optional<std::uint32_t> tag) {
    std::unique_lock lock(mutex_);
    Seat& seat = at(me);
    seat.wanted = {.until = until, .mail = true, .tag = tag};
    pass_turn();
    wait_for_turn(lock, me);
    if (stuck_) {
      throw CommError(fmt::format("mailbox {} waits for mail, and so does everybody else: none is on its way", me),
                      "post before you wait, or let one of them end");
    }
    seat.now = std::max(seat.now, wake(seat));
    return take(seat, tag);
  }
  void post(int from, int to, Mail mail) {
    const std::lock_guard lock(mutex_);
    Seat& receiver = at(to);
    const double now = at(from).now;
    double sent = std::max(now, receiver.link_free[from]);
    if (options_.bytes_per_second > 0) {
      sent += static_cast<double>(mail.bytes.size()) / options_.bytes_per_second;
      receiver.link_free[from] = sent;
    }
    double ready = sent + options_.latency_s;
    if (options_.jitter_s > 0) ready -= options_.jitter_s * std::log1p(-random_.uniform(draws_++));
    double& last = receiver.last[{from, mail.tag}];
    ready = last = std::max(last, ready);
    receiver.meter.arrive(nanoseconds(now));
    receiver.letters.push_back({std::move(mail), ready, now});
  }
  QueueReading queue(int me) {
    const std::lock_guard lock(mutex_);
    const Seat& seat = at(me);
    return seat.meter.read(nanoseconds(seat.now));
  }

 private:
  struct Letter {
    Mail mail;
    double ready, posted;
  };
  /// What a mailbox waits for: a time, or mail until then.
  struct Wanted {
    double until = 0;
    bool mail = false;
    std::optional<std::uint32_t> tag = {};
  };
  struct Seat {
    double now = 0;
    bool here = false;
    Wanted wanted = {};
    std::list<Letter> letters = {};  // as they were posted
    std::map<int, double> link_free = {};
    std::map<std::pair<int, std::uint32_t>, double> last = {};  // when that sender's mail of the tag is ready
    QueueMeter meter{0};
  };
  static QueueMeter::Nanoseconds nanoseconds(double seconds) {
    return static_cast<QueueMeter::Nanoseconds>(seconds * 1e9);
  }
  Seat& at(int address) {
    if (address < 0 || static_cast<std::size_t>(address) >= seats_.size())
      throw CommError(fmt::format("there is no mailbox {}, only 0 to {}", address, seats_.size() - 1));
    return seats_[static_cast<std::size_t>(address)];
  }
  void wait_for_turn(std::unique_lock<std::mutex>& lock, int me) {
    changed_.wait(lock, [&] { return turn_ == me; });
    if (failure_) throw BodyStopped{};
  }
  /// When a mailbox goes on, as far as is known now.
  static double wake(const Seat& seat) {
    double wake = seat.wanted.until;
    if (!seat.wanted.mail) return wake;
    for (const Letter& letter : seat.letters) {
      if (!seat.wanted.tag || letter.mail.tag == *seat.wanted.tag) wake = std::min(wake, letter.ready);
    }
    return std::max(wake, seat.now);
  }
  std::optional<Mail> take(Seat& seat, std::optional<std::uint32_t> tag) {
    const auto best =
        letter_to_hand_out(seat.letters, tag, [&](const Letter& letter) { return letter.ready <= seat.now; });
    if (best == seat.letters.end()) return std::nullopt;
    Mail mail = std::move(best->mail);
    seat.meter.depart(nanoseconds(best->posted), nanoseconds(seat.now));
    seat.letters.erase(best);
    return mail;
  }
  /// To the earliest; of several the lowest address.
  void pass_turn() {
    int next = -1;
    double earliest = kNever;
    for (int i = 0; i < static_cast<int>(seats_.size()); ++i) {
      const Seat& seat = at(i);
      if (!seat.here) continue;
      const double when = wake(seat);
      if (next < 0 || when < earliest) next = i, earliest = when;
    }
    stuck_ = next >= 0 && earliest == kNever;
    turn_ = next;
    changed_.notify_all();
  }

  const TimedMail options_;
  const Random random_;
  std::uint64_t draws_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> seats_;
  int entered_ = 0, turn_ = -1;
  bool stuck_ = false;
  std::exception_ptr failure_;
};

class TimedPost final : public TimedMailbox {
 public:
  TimedPost(TimedHub& hub, int me) : hub_(hub), me_(me) {}
  int address() const override { return me_; }
  double now() const override { return hub_.now(me_); }
  void advance(double seconds) override { hub_.advance(me_, seconds); }

  void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) override {
    hub_.post(me_, to, {me_, tag, priority, {bytes.begin(), bytes.end()}});
  }
  bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                      std::span<const std::byte> rest) override {
    hub_.post(me_, to, {me_, tag, priority, joined_bytes(head, rest)});
    return true;
  }
  Mail receive(std::optional<std::uint32_t> tag) override {
    std::optional<Mail> mail = hub_.receive(me_, kNever, tag);
    TRIREME_CHECK(mail.has_value(), "mailbox {} got a turn without mail", me_);
    return *std::move(mail);
  }
  std::optional<Mail> receive_for(Milliseconds time, std::optional<std::uint32_t> tag) override {
    return hub_.receive(me_, now() + std::chrono::duration<double>(time).count(), tag);
  }
  std::optional<Mail> try_receive(std::optional<std::uint32_t> tag) override { return hub_.receive(me_, now(), tag); }
  std::vector<Mail> take_returned() override { return {}; }
  QueueReading queue() const override { return hub_.queue(me_); }

 private:
  TimedHub& hub_;
  const int me_;
};

}  // namespace

void run_timed_mailboxes(int count, const TimedMail& options, const std::function<void(TimedMailbox&)>& body) {
  TimedHub hub(count, options);
  run_bodies(
      count,
      [&](int me) {
        hub.enter(me);
        TimedPost mailbox(hub, me);
        body(mailbox);
      },
      [&](int me, const std::exception_ptr& failure) { hub.leave(me, failure); });
  if (hub.failure()) std::rethrow_exception(hub.failure());
}

}  // namespace trireme::comm
