#include "trireme/comm/transports/emulated.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "trireme/comm/recorder.h"

namespace trireme::comm {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class EmulatedTransport;

/// A send that is under way: handed to the inner transport when it is due at the receiver.
class EmulatedSend final : public Transfer {
 public:
  EmulatedSend(EmulatedTransport& owner, const Envelope& envelope, const void* data, std::size_t bytes,
               std::int64_t due_ns)
      : owner_(owner), envelope_(envelope), data_(data), bytes_(bytes), due_ns_(due_ns) {}
  ~EmulatedSend() override;

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  std::int64_t due_ns() const { return due_ns_; }
  void deliver();

 private:
  EmulatedTransport& owner_;
  Envelope envelope_;
  const void* data_;
  std::size_t bytes_;
  std::int64_t due_ns_;
  std::unique_ptr<Transfer> inner_;
};

class EmulatedRecv final : public Transfer {
 public:
  EmulatedRecv(EmulatedTransport& owner, std::unique_ptr<Transfer> inner, std::int64_t duration_ns)
      : owner_(owner), inner_(std::move(inner)), duration_ns_(duration_ns) {}

  Progress advance(Effort effort) override;
  void abandon() noexcept override { inner_->abandon(); }

 private:
  EmulatedTransport& owner_;
  std::unique_ptr<Transfer> inner_;
  std::int64_t duration_ns_;
  std::int64_t complete_ns_ = -1;  // once arrived: when the port is through with it
};

class EmulatedTransport final : public Transport {
 public:
  EmulatedTransport(std::unique_ptr<Transport> inner, const EmulatedNetwork& network)
      : inner_(std::move(inner)), network_(network), nodes_(inner_->node_of()) {}

  std::string_view name() const override { return "emulated"; }
  int rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  std::vector<int> node_of() const override { return nodes_; }
  void join(const Members& members) override { inner_->join(members); }
  void leave(const Members& members) noexcept override { inner_->leave(members); }
  EventCount* event_count() override { return inner_->event_count(); }

  std::unique_ptr<Transfer> post_send(const Envelope& envelope, const void* data, std::size_t bytes) override {
    const EmulatedLink& link = link_to(envelope.peer);
    const std::int64_t leaves = std::max(now_ns(), out_free_ns_) + duration(link, bytes);
    out_free_ns_ = leaves;
    auto send = std::make_unique<EmulatedSend>(*this, envelope, data, bytes, leaves + link.latency.count());
    held_.push_back(send.get());
    update_next_event();
    return send;
  }
  std::unique_ptr<Transfer> post_recv(const Envelope& envelope, const Sink& sink) override {
    return std::make_unique<EmulatedRecv>(*this, inner_->post_recv(envelope, sink),
                                          duration(link_to(envelope.peer), sink.bytes()));
  }

  bool progress() override {
    const std::int64_t now = now_ns();
    bool moved = inner_->progress();
    // In the order posted among those due, so that messages between two ranks stay in order.
    for (std::size_t i = 0; i < held_.size();) {
      if (held_[i]->due_ns() > now) {
        ++i;
        continue;
      }
      EmulatedSend* send = held_[i];
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      send->deliver();
      moved = true;
    }
    std::erase_if(arrivals_, [&](std::int64_t due) { return due <= now; });
    update_next_event();
    return moved;
  }
  bool may_sleep() override { return inner_->may_sleep(); }
  std::int64_t next_event_ns() const override { return next_event_ns_.load(std::memory_order_relaxed); }

  /// When the port has taken in a message that has just arrived.
  std::int64_t take_in(std::int64_t duration_ns) {
    in_free_ns_ = std::max(in_free_ns_ + duration_ns, now_ns());
    arrivals_.push_back(in_free_ns_);
    update_next_event();
    return in_free_ns_;
  }
  void forget(EmulatedSend* send) { std::erase(held_, send); }
  Transport& inner() { return *inner_; }

 private:
  const EmulatedLink& link_to(int peer) const {
    return nodes_[static_cast<std::size_t>(peer)] == nodes_[static_cast<std::size_t>(rank())] ? network_.inside
                                                                                              : network_.across;
  }
  static std::int64_t duration(const EmulatedLink& link, std::size_t bytes) {
    return link.bytes_per_second > 0
               ? static_cast<std::int64_t>(static_cast<double>(bytes) / link.bytes_per_second * 1e9)
               : 0;
  }
  void update_next_event() {
    std::int64_t next = kNever;
    for (const EmulatedSend* send : held_) next = std::min(next, send->due_ns());
    for (const std::int64_t due : arrivals_) next = std::min(next, due);
    next_event_ns_.store(next, std::memory_order_relaxed);
  }

  std::unique_ptr<Transport> inner_;
  EmulatedNetwork network_;
  std::vector<int> nodes_;
  std::vector<EmulatedSend*> held_;     // in the order posted
  std::vector<std::int64_t> arrivals_;  // when messages being taken in are complete
  std::int64_t out_free_ns_ = 0, in_free_ns_ = 0;
  std::atomic<std::int64_t> next_event_ns_{kNever};  // read by the engine without its lock
};

EmulatedSend::~EmulatedSend() { owner_.forget(this); }

void EmulatedSend::deliver() { inner_ = owner_.inner().post_send(envelope_, data_, bytes_); }

Progress EmulatedSend::advance(Effort effort) { return inner_ ? inner_->advance(effort) : Progress::kStuck; }

void EmulatedSend::abandon() noexcept {
  owner_.forget(this);
  if (inner_) inner_->abandon();
}

Progress EmulatedRecv::advance(Effort effort) {
  if (complete_ns_ < 0) {
    const Progress progress = inner_->advance(effort);
    if (progress != Progress::kDone) return progress;
    mismatched = inner_->mismatched;
    theirs = inner_->theirs;
    their_bytes = inner_->their_bytes;
    if (mismatched) return Progress::kDone;
    complete_ns_ = owner_.take_in(duration_ns_);
  }
  return now_ns() >= complete_ns_ ? Progress::kDone : Progress::kStuck;
}

}  // namespace

std::unique_ptr<Transport> make_emulated_transport(std::unique_ptr<Transport> inner, const EmulatedNetwork& network) {
  return std::make_unique<EmulatedTransport>(std::move(inner), network);
}

cost::Links links_of(const EmulatedNetwork& network, double gamma) {
  const auto cost_of = [&](const EmulatedLink& link) {
    return cost::LinkCost{.alpha = static_cast<double>(link.latency.count()) * 1e-9,
                          .beta = link.bytes_per_second > 0 ? 1 / link.bytes_per_second : 0,
                          .gamma = gamma};
  };
  return {.inside = cost_of(network.inside), .across = cost_of(network.across)};
}

}  // namespace trireme::comm
