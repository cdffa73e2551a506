#include "trireme/comm/transports/threads.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/board.h"
#include "trireme/comm/gpu_memory.h"

namespace trireme::comm {
namespace {

// Up to here a message is copied, so that its sender goes on at once; above, waiting for the receiver is cheaper than a
// copy.
constexpr std::size_t kEagerBytes = 8 << 10;
// Taken at a time, so that other operations get their turn.
constexpr std::size_t kThreadsPieceBytes = 512 << 10;
constexpr std::size_t kThreadsBriefBytes = 64 << 10;
constexpr std::size_t kThreadsStreamBytes = 4 << 20;

struct Message {
  Envelope envelope;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::unique_ptr<std::byte[]> copy;       // a short message's own data
  std::atomic<bool> taken{false};          // the receiver has everything
  std::atomic<bool> withdrawn{false};      // the sender gave up: its memory may be gone
  std::atomic<std::uint32_t> touching{0};  // the receiver is reading the sender's memory
};
using MessagePtr = std::shared_ptr<Message>;  // shared by the sender and the lane or receiver

/// A posted receive, as the sender sees it.
struct Reception {
  const std::uint32_t channel, tag;
  MessagePtr message = nullptr;      // written by the sender, before `arrived`
  std::atomic<bool> arrived{false};  // the message is there

  bool matches(const Message& other) const { return channel == other.envelope.channel && tag == other.envelope.tag; }
};

/// From one rank to another. Whoever comes second, message or receive, finds the other one waiting: so they match in
/// the order in which both were posted, however late a receive is asked how it does. No message waits here together
/// with a receive that it matches.
struct Lane {
  std::mutex mutex;
  std::deque<MessagePtr> messages;
  std::deque<Reception*> receptions;

  void add(const MessagePtr& message) {
    const std::lock_guard lock(mutex);
    const auto it = std::ranges::find_if(receptions, [&](const Reception* r) { return r->matches(*message); });
    if (it == receptions.end()) {
      messages.push_back(message);
      return;
    }
    (*it)->message = message;
    (*it)->arrived.store(true, std::memory_order_release);
    receptions.erase(it);
  }
  void add(Reception& reception) {
    const std::lock_guard lock(mutex);
    const auto it = std::ranges::find_if(messages, [&](const MessagePtr& m) { return reception.matches(*m); });
    if (it == messages.end()) {
      receptions.push_back(&reception);
      return;
    }
    reception.message = std::move(*it);
    reception.arrived.store(true, std::memory_order_relaxed);
    messages.erase(it);
  }
  void remove(const Reception& reception) {
    const std::lock_guard lock(mutex);
    std::erase(receptions, &reception);
  }
};

/// What all ranks share.
struct ThreadsHub {
  ThreadsHub(int ranks_, int ranks_per_node_)
      : ranks(ranks_),
        ranks_per_node(ranks_per_node_),
        lanes(static_cast<std::size_t>(ranks_) * static_cast<std::size_t>(ranks_)),
        event_counts(static_cast<std::size_t>(ranks_)) {}
  Lane& lane(int from, int to) {
    return lanes[static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(to)];
  }

  const int ranks, ranks_per_node;
  std::vector<Lane> lanes;
  std::vector<EventCount> event_counts;
  std::mutex boards_mutex;
  std::map<std::uint32_t, std::weak_ptr<std::byte>> boards;  // by channel
};

class ThreadSend final : public Transfer {
 public:
  explicit ThreadSend(MessagePtr message) : message_(std::move(message)) {}
  ~ThreadSend() override { abandon(); }

  Progress advance(Effort) override {
    if (message_->copy || message_->taken.load(std::memory_order_acquire)) return Progress::kDone;
    return Progress::kStuck;
  }
  void abandon() noexcept override {
    if (message_->copy || message_->taken.load(std::memory_order_acquire)) return;
    // It stays in the lane: were it taken out, a later message that was copied would meet the receive meant for this
    // one. Either the receiver sees the withdrawal, or we see it touching: both are in one total order.
    message_->withdrawn.store(true, std::memory_order_seq_cst);
    while (message_->touching.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  }

 private:
  MessagePtr message_;
};

class ThreadRecv final : public Transfer {
 public:
  ThreadRecv(Lane& lane, EventCount& sender_bell, const Envelope& envelope, const Sink& sink)
      : lane_(lane),
        sender_bell_(sender_bell),
        envelope_(envelope),
        sink_(sink),
        reception_{.channel = envelope.channel, .tag = envelope.tag} {
    lane_.add(reception_);
  }
  ~ThreadRecv() override { abandon(); }

  Progress advance(Effort effort) override {
    if (done_) return Progress::kDone;
    const bool found_before = message_ != nullptr;
    if (!found_before && !find()) return Progress::kStuck;
    if (mismatched) return finish();
    if (sink_.count == 0) return finish();
    if (effort == Effort::kPost && message_->bytes > kThreadsBriefBytes)
      return found_before ? Progress::kStuck : Progress::kMoved;
    if (!message_->copy) {
      message_->touching.store(1, std::memory_order_seq_cst);
      if (message_->withdrawn.load(std::memory_order_seq_cst)) {
        message_->touching.store(0, std::memory_order_release);
        return Progress::kStuck;  // the sender's reason is on the way
      }
    }
    const std::size_t element = size_of(sink_.type);
    const bool on_gpu = envelope_.memory == DeviceKind::kCuda;
    const std::size_t count = on_gpu ? sink_.count : std::min(sink_.count - taken_, kThreadsPieceBytes / element);
    if (on_gpu) {
      gpu_memory()->copy(sink_.to, message_->data, sink_.bytes());  // started, after what makes the data: gpu_memory.h
    } else {
      take(taken_ * element, count);
    }
    if (!message_->copy) message_->touching.store(0, std::memory_order_release);
    taken_ += count;
    return taken_ == sink_.count ? finish() : Progress::kMoved;
  }
  void abandon() noexcept override {
    done_ = true;
    if (!reception_.arrived.load(std::memory_order_acquire)) lane_.remove(reception_);
  }

 private:
  bool find() {
    if (!reception_.arrived.load(std::memory_order_acquire)) return false;
    message_ = std::move(reception_.message);
    theirs = message_->envelope.key;
    their_bytes = message_->bytes;
    mismatched = theirs != envelope_.key || their_bytes != sink_.bytes();
    return true;
  }
  void take(std::size_t at, std::size_t count) {
    auto* to = static_cast<std::byte*>(sink_.to) + at;
    const std::byte* data = message_->data + at;
    const std::size_t bytes = count * size_of(sink_.type);
    if (sink_.from != nullptr) {
      const std::byte* from = static_cast<const std::byte*>(sink_.from) + at;
      arithmetic(sink_.type, sink_.reduce).combine(to, from, data, count);
    } else if (message_->bytes >= kThreadsStreamBytes) {
      stream_copy(to, data, bytes);
    } else {
      std::memcpy(to, data, bytes);
    }
  }
  Progress finish() {
    done_ = true;
    message_->taken.store(true, std::memory_order_release);
    if (!message_->copy) sender_bell_.notify();
    return Progress::kDone;
  }

  Lane& lane_;
  EventCount& sender_bell_;
  Envelope envelope_;
  Sink sink_;
  Reception reception_;
  MessagePtr message_;
  std::size_t taken_ = 0;
  bool done_ = false;
};

class ThreadsTransport final : public Transport {
 public:
  ThreadsTransport(std::shared_ptr<ThreadsHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  std::string_view name() const override { return "threads"; }
  bool moves(DeviceKind) const override { return true; }
  int rank() const override { return rank_; }
  int ranks() const override { return hub_->ranks; }
  std::vector<int> node_of() const override {
    std::vector<int> nodes(static_cast<std::size_t>(hub_->ranks), 0);
    if (hub_->ranks_per_node > 0) {
      for (int r = 0; r < hub_->ranks; ++r) nodes[static_cast<std::size_t>(r)] = r / hub_->ranks_per_node;
    }
    return nodes;
  }

  std::unique_ptr<Transfer> post_send(const Envelope& envelope, const void* data, std::size_t bytes) override {
    auto message = std::make_shared<Message>();
    message->envelope = envelope;
    message->bytes = bytes;
    message->data = static_cast<const std::byte*>(data);
    if (bytes <= kEagerBytes && envelope.memory == DeviceKind::kCpu) {
      message->copy.reset(new std::byte[std::max<std::size_t>(bytes, 1)]);
      if (bytes != 0) std::memcpy(message->copy.get(), data, bytes);
      message->data = message->copy.get();
    }
    hub_->lane(rank_, envelope.peer).add(message);
    hub_->event_counts[static_cast<std::size_t>(envelope.peer)].notify();
    return std::make_unique<ThreadSend>(std::move(message));
  }
  std::unique_ptr<Transfer> post_recv(const Envelope& envelope, const Sink& sink) override {
    return std::make_unique<ThreadRecv>(hub_->lane(envelope.peer, rank_),
                                        hub_->event_counts[static_cast<std::size_t>(envelope.peer)], envelope, sink);
  }

  std::unique_ptr<Board> make_board(const Members& members) override {
    const int ranks = static_cast<int>(members.ranks.size());
    const std::size_t slot = slot_bytes(/*processes=*/false, ranks);
    std::shared_ptr<std::byte> memory;
    {
      const std::lock_guard lock(hub_->boards_mutex);
      memory = hub_->boards[members.channel].lock();
      if (!memory) {
        constexpr std::align_val_t kLine{64};
        void* raw = ::operator new(BoardMemory::bytes(ranks, slot), kLine);
        BoardMemory::construct(raw, ranks);
        memory =
            std::shared_ptr<std::byte>(static_cast<std::byte*>(raw), [](std::byte* p) { ::operator delete(p, kLine); });
        hub_->boards[members.channel] = memory;
      }
    }
    std::vector<EventCount*> event_counts;
    for (const int r : members.ranks) event_counts.push_back(&hub_->event_counts[static_cast<std::size_t>(r)]);
    auto& shared = *reinterpret_cast<BoardMemory*>(memory.get());
    // The event counts live in the hub: keep both.
    auto keep =
        std::make_shared<std::pair<std::shared_ptr<std::byte>, std::shared_ptr<ThreadsHub>>>(std::move(memory), hub_);
    return std::make_unique<Board>(Board::Parts{.memory = shared,
                                                .me = members.me,
                                                .ranks = ranks,
                                                .slot_bytes = slot,
                                                .event_counts = std::move(event_counts),
                                                .keep_alive = std::move(keep)});
  }

  EventCount* event_count() override { return &hub_->event_counts[static_cast<std::size_t>(rank_)]; }

 private:
  std::shared_ptr<ThreadsHub> hub_;  // shared by all ranks of the process
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_threads_transport(int ranks, int ranks_per_node) {
  const auto hub = std::make_shared<ThreadsHub>(ranks, ranks_per_node);
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (int r = 0; r < ranks; ++r) endpoints.push_back(std::make_unique<ThreadsTransport>(hub, r));
  return endpoints;
}

}  // namespace trireme::comm
