// Mailboxes of threads under one scheduler: a single turn goes round, and a seed decides where.
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/mailbox_bodies.h"

namespace trireme::comm {
namespace {

/// All mailboxes, the frames under way between them, and whose turn it is.
class SeededHub {
 public:
  SeededHub(int count, const SeededMail& options)
      : options_(options), random_(options.seed, "mailbox/deliveries"), ranks_(static_cast<std::size_t>(count)) {
    for (int me = 0; me < count; ++me) at(me).protocol = std::make_unique<MailProtocol>(1, options.limits);
    for (int me = 0; me < count; ++me) {
      for (int other = 0; other < count; ++other) at(me).protocol->connected(other);
      collect(me);
    }
  }

  MailProtocol& protocol(int me) { return *at(me).protocol; }

  /// The calling thread is `me`, which gets its first turn here.
  void enter(int me) {
    std::unique_lock lock(mutex_);
    if (++entered_ == static_cast<int>(ranks_.size())) pass_turn();
    changed_.wait(lock, [&] { return turn_ == me; });
  }
  /// A point at which others may go on; `ready` says whether `me` can: until then it gets no turn.
  void yield(int me, const std::function<bool()>& ready) {
    std::unique_lock lock(mutex_);
    collect(me);
    at(me).ready = &ready;
    pass_turn();
    changed_.wait(lock, [&] { return turn_ == me; });
    at(me).ready = nullptr;
    if (failure_) throw BodyStopped{};
    if (stuck_ && !ready()) {
      throw CommError(fmt::format("mailbox {} waits for mail, and so does everybody else: none is on its way", me),
                      "post before you wait, or let one of them end");
    }
  }
  void leave(int me, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    at(me).here = false;
    collect(me);
    pass_turn();
  }
  std::exception_ptr failure() const { return failure_; }

 private:
  struct Seat {
    std::unique_ptr<MailProtocol> protocol;
    const std::function<bool()>* ready = nullptr;  // waits until this; null: has or had the turn
    bool here = true;
  };
  struct Flying {
    int from, to;
    MailFrame frame;
  };
  Seat& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::uint64_t draw(std::size_t count) { return random_.below(count, draws_++); }

  void collect(int me) {
    for (auto& [to, frame] : at(me).protocol->take_outgoing()) flying_.push_back({me, to, std::move(frame)});
  }

  /// One step of the world between turns: a frame arrives, or a connection breaks and comes back.
  void step() {
    if (options_.breaks_per_mille > 0 && draw(1000) < static_cast<std::uint64_t>(options_.breaks_per_mille)) {
      const int a = static_cast<int>(draw(ranks_.size())), b = static_cast<int>(draw(ranks_.size()));
      std::erase_if(flying_, [&](const Flying& f) { return (f.from == a && f.to == b) || (f.from == b && f.to == a); });
      at(a).protocol->disconnected(b);
      at(b).protocol->disconnected(a);
      at(a).protocol->connected(b);
      if (a != b) at(b).protocol->connected(a);
      collect(a);
      collect(b);
      return;
    }
    const std::size_t which = draw(flying_.size());
    const Flying arriving = std::move(flying_[which]);
    flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(which));
    at(arriving.to).protocol->receive(arriving.from, arriving.frame);
    collect(arriving.to);
  }

  /// Whoever can go on, or a frame: each as likely. Mailboxes of bodies that have ended still acknowledge.
  void pass_turn() {
    stuck_ = false;
    while (true) {
      std::vector<int> able;
      bool some_here = false;
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        const Seat& seat = at(r);
        if (!seat.here) continue;
        some_here = true;
        if (seat.ready == nullptr || (*seat.ready)() || failure_) able.push_back(r);
      }
      if (!some_here) return;
      if (able.empty() && flying_.empty()) {
        stuck_ = true;
        for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
          if (at(r).here) able.push_back(r);
        }
      }
      const std::uint64_t choice = draw(able.size() + flying_.size());
      if (choice < able.size()) {
        turn_ = able[choice];
        changed_.notify_all();
        return;
      }
      step();
    }
  }

  const SeededMail options_;
  const Random random_;
  std::uint64_t draws_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> ranks_;
  std::vector<Flying> flying_;
  int entered_ = 0, turn_ = -1;
  bool stuck_ = false;
  std::exception_ptr failure_;
};

class SeededPost final : public Mailbox {
 public:
  SeededPost(SeededHub& hub, int me) : hub_(hub), me_(me) {}
  int address() const override { return me_; }

  void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) override {
    hub_.yield(me_, [&] { return mine().may_post(to, bytes.size()); });
    mine().post(to, tag, priority, {bytes.begin(), bytes.end()});
  }
  bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                      std::span<const std::byte> rest) override {
    hub_.yield(me_, [] { return true; });
    if (!mine().may_post(to, head.size() + rest.size())) return false;
    mine().post(to, tag, priority, joined_bytes(head, rest));
    return true;
  }
  Mail receive(std::optional<std::uint32_t> tag) override {
    hub_.yield(me_, [&] { return mine().has_mail(tag); });
    std::optional<Mail> mail = mine().take(tag);
    TRIREME_CHECK(mail.has_value(), "mailbox {} got a turn without mail", me_);
    return *std::move(mail);
  }
  /// There is no clock: the time is a turn.
  std::optional<Mail> receive_for(Milliseconds, std::optional<std::uint32_t> tag) override { return try_receive(tag); }
  std::optional<Mail> try_receive(std::optional<std::uint32_t> tag) override {
    hub_.yield(me_, [] { return true; });
    return mine().take(tag);
  }
  std::vector<Mail> take_returned() override { return mine().take_returned(); }
  QueueReading queue() const override { return hub_.protocol(me_).queue(); }

 private:
  MailProtocol& mine() { return hub_.protocol(me_); }

  SeededHub& hub_;
  const int me_;
};

}  // namespace

void run_mailboxes(int count, const SeededMail& options, const std::function<void(Mailbox&)>& body) {
  SeededHub hub(count, options);
  run_bodies(
      count,
      [&](int me) {
        hub.enter(me);
        SeededPost mailbox(hub, me);
        body(mailbox);
      },
      [&](int me, const std::exception_ptr& failure) { hub.leave(me, failure); });
  if (hub.failure()) std::rethrow_exception(hub.failure());
}

}  // namespace trireme::comm
