#include "trireme/train/servers/rank_mailboxes.h"

#include <fmt/format.h>

#include <cstdint>

#include "trireme/base/error.h"
#include "trireme/comm/control.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::train {

/// Waits in short turns, between which it looks around.
class RankMailboxes::WatchedMailbox final : public comm::Mailbox {
 public:
  WatchedMailbox(std::unique_ptr<comm::Mailbox> inner, RankMailboxes& rank) : inner_(std::move(inner)), rank_(rank) {}
  int address() const override { return inner_->address(); }
  void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) override {
    const auto until = std::chrono::steady_clock::now() + rank_.deadline_;
    while (!try_post(to, tag, priority, bytes)) {
      if (std::chrono::steady_clock::now() > until)
        throw CommError(
            fmt::format("mailbox {} waited too long to post {} bytes to mailbox {}", address(), bytes.size(), to),
            fmt::format("look whether mailbox {} receives", to));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                      std::span<const std::byte> rest) override {
    rank_.check();
    return inner_->try_post_parts(to, tag, priority, head, rest);
  }
  comm::Mail receive(std::optional<std::uint32_t> tag) override {
    std::optional<comm::Mail> mail = receive_for(rank_.deadline_, tag);
    if (!mail)
      throw CommError(fmt::format("no parameter server or replica wrote to mailbox {} in {:.0f} s", address(),
                                  std::chrono::duration<double>(rank_.deadline_).count()),
                      "look whether a rank is stuck; comm.deadline says how long to wait");
    return *std::move(mail);
  }
  std::optional<comm::Mail> receive_for(Milliseconds time, std::optional<std::uint32_t> tag) override {
    const auto until = std::chrono::steady_clock::now() + time;
    constexpr Milliseconds kTurn{100};
    do {
      rank_.check();
      if (std::optional<comm::Mail> mail = inner_->receive_for(std::min(kTurn, time), tag)) return mail;
    } while (std::chrono::steady_clock::now() < until);
    return std::nullopt;
  }
  std::optional<comm::Mail> try_receive(std::optional<std::uint32_t> tag) override { return inner_->try_receive(tag); }
  std::vector<comm::Mail> take_returned() override { return inner_->take_returned(); }
  QueueReading queue() const override { return inner_->queue(); }

 private:
  std::unique_ptr<comm::Mailbox> inner_;
  RankMailboxes& rank_;
};

RankMailboxes::RankMailboxes(comm::Group& world, int count, std::string interface, std::chrono::milliseconds deadline)
    : world_(world), interface_(std::move(interface)), deadline_(deadline) {
  if (!world.has_processes() || world.size() == 1) share_room(count);
}

/// Ranks are threads of one process: rank 0 tells the others where the room is.
void RankMailboxes::share_room(int count) {
  std::shared_ptr<comm::ThreadMailRoom> made;
  std::int64_t place = 0;
  if (world_.rank() == 0) {
    made = comm::make_thread_mail_room(count, {.deadline = deadline_});
    place = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&made));
  }
  if (world_.size() > 1) world_.broadcast(comm::Buffer{&place, 1, comm::DType::kI64}, 0).wait();
  room_ = *reinterpret_cast<std::shared_ptr<comm::ThreadMailRoom>*>(static_cast<std::uintptr_t>(place));
  if (world_.size() > 1) world_.barrier().wait();  // all have it before the first one's goes
}

std::unique_ptr<comm::Mailbox> RankMailboxes::open(int address) {
  auto inner = room_ ? room_->open(address)
                     : comm::make_process_mailbox(world_.control(), {.address = address,
                                                                     .interfaces = comm::choose_interfaces(interface_),
                                                                     .deadline = deadline_,
                                                                     .linger = std::chrono::milliseconds(500)});
  return std::make_unique<WatchedMailbox>(std::move(inner), *this);
}

std::shared_ptr<comm::Mailbox> RankMailboxes::start(int address, const std::function<void(comm::Mailbox&)>& body) {
  std::shared_ptr<comm::Mailbox> mailbox = open(address);
  threads_.emplace_back([this, mailbox, body] {
    try {
      body(*mailbox);
    } catch (const ServingEnds&) {
    } catch (...) {
      fail(std::current_exception());
    }
  });
  return mailbox;
}

void RankMailboxes::fail(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
}

void RankMailboxes::stop() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void RankMailboxes::check() {
  if (stop_) throw ServingEnds{};
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  world_.check_peers();
}

}  // namespace trireme::train
