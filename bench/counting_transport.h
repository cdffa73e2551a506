// bench/counting_transport.h -- any transport, with a count of what a rank hands to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "trireme/comm/transport.h"

namespace trireme::bench {

/// Of one rank's sends to others.
struct Traffic {
  std::atomic<std::uint64_t> bytes{0}, messages{0};
};

/// Sends and receives only, as a network has them: no shared memory.
class CountingTransport final : public comm::Transport {
 public:
  /// `traffic` is borrowed.
  CountingTransport(std::unique_ptr<comm::Transport> inner, Traffic& traffic)
      : inner_(std::move(inner)), traffic_(traffic) {}

  std::string_view name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  std::vector<int> node_of() const override { return inner_->node_of(); }
  std::unique_ptr<comm::Transfer> post_send(const comm::Envelope& envelope, const void* data,
                                            std::size_t bytes) override {
    traffic_.bytes += bytes;
    ++traffic_.messages;
    return inner_->post_send(envelope, data, bytes);
  }
  std::unique_ptr<comm::Transfer> post_recv(const comm::Envelope& envelope, const comm::Sink& sink) override {
    return inner_->post_recv(envelope, sink);
  }
  void join(const comm::Members& members) override { inner_->join(members); }
  void leave(const comm::Members& members) noexcept override { inner_->leave(members); }
  void give_up() noexcept override { inner_->give_up(); }
  bool progress() override { return inner_->progress(); }
  comm::EventCount* event_count() override { return inner_->event_count(); }
  bool event_count_suffices() const override { return inner_->event_count_suffices(); }
  bool may_sleep() override { return inner_->may_sleep(); }
  std::int64_t next_event_ns() const override { return inner_->next_event_ns(); }

 private:
  std::unique_ptr<comm::Transport> inner_;
  Traffic& traffic_;
};

}  // namespace trireme::bench
