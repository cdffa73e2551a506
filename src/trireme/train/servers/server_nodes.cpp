#include "trireme/train/servers/server_nodes.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdint>

#include "trireme/base/error.h"
#include "trireme/comm/control.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"
#include "trireme/ps/node.h"

namespace trireme::train {

/// Waits in short turns, between which it looks around.
class ServerNodes::WatchedMailbox final : public comm::Mailbox {
 public:
  WatchedMailbox(std::unique_ptr<comm::Mailbox> inner, ServerNodes& nodes) : inner_(std::move(inner)), nodes_(nodes) {}
  int address() const override { return inner_->address(); }
  void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) override {
    inner_->post(to, tag, priority, bytes);
  }
  bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                      std::span<const std::byte> rest) override {
    nodes_.check();
    return inner_->try_post_parts(to, tag, priority, head, rest);
  }
  comm::Mail receive(std::optional<std::uint32_t> tag) override {
    std::optional<comm::Mail> mail = receive_for(nodes_.options_.deadline, tag);
    if (!mail)
      throw CommError(fmt::format("no parameter server or replica wrote to mailbox {} in {:.0f} s", address(),
                                  std::chrono::duration<double>(nodes_.options_.deadline).count()),
                      "look whether a rank is stuck; comm.deadline says how long to wait");
    return *std::move(mail);
  }
  std::optional<comm::Mail> receive_for(Milliseconds time, std::optional<std::uint32_t> tag) override {
    const auto until = std::chrono::steady_clock::now() + time;
    constexpr Milliseconds kTurn{100};
    do {
      nodes_.check();
      if (std::optional<comm::Mail> mail = inner_->receive_for(std::min(kTurn, time), tag)) return mail;
    } while (std::chrono::steady_clock::now() < until);
    return std::nullopt;
  }
  std::optional<comm::Mail> try_receive(std::optional<std::uint32_t> tag) override { return inner_->try_receive(tag); }
  std::vector<comm::Mail> take_returned() override { return inner_->take_returned(); }
  QueueReading queue() const override { return inner_->queue(); }

 private:
  std::unique_ptr<comm::Mailbox> inner_;
  ServerNodes& nodes_;
};

namespace {

/// Thrown into threads that serve when nobody needs them any more.
struct ServersEnd {};

}  // namespace

ServerNodes::ServerNodes(comm::Group& world, const ServerNodesOptions& options) : world_(world), options_(options) {
  const int first_worker = 1 + options.servers;
  if (!world.has_processes() || world.size() == 1) share_room(first_worker + world.size());
  mailbox_ = open(first_worker + world.rank());
  if (world.rank() == 0) {
    ps::ManagerOptions nodes{.address = 0, .copies = options.copies};
    for (int i = 0; i < options.servers; ++i) nodes.servers.push_back(1 + i);
    for (int i = 0; i < world.size(); ++i) nodes.workers.push_back(first_worker + i);
    start(0, [nodes](comm::Mailbox& mailbox) {
      ps::Manager manager(nodes);
      ps::manage(mailbox, manager);
    });
  }
  if (world.rank() < options.servers) {
    server_mailbox_ = start(1 + world.rank(), [this](comm::Mailbox& mailbox) {
      at::set_num_threads(1);
      ps::Server server({.address = mailbox.address(), .keys = options_.keys, .type = options_.type}, options_.rule());
      ps::serve(mailbox, server, 0);
    });
  }
}

ServerNodes::~ServerNodes() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

/// Ranks are threads of one process: rank 0 tells the others where the room is.
void ServerNodes::share_room(int count) {
  std::shared_ptr<comm::ThreadMailRoom> made;
  std::int64_t place = 0;
  if (world_.rank() == 0) {
    made = comm::make_thread_mail_room(count, {.deadline = options_.deadline});
    place = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(&made));
  }
  if (world_.size() > 1) world_.broadcast(comm::Buffer{&place, 1, comm::DType::kI64}, 0).wait();
  room_ = *reinterpret_cast<std::shared_ptr<comm::ThreadMailRoom>*>(static_cast<std::uintptr_t>(place));
  if (world_.size() > 1) world_.barrier().wait();  // all have it before the first one's goes
}

std::unique_ptr<comm::Mailbox> ServerNodes::open(int address) {
  auto inner =
      room_ ? room_->open(address)
            : comm::make_process_mailbox(world_.control(), {.address = address,
                                                            .interfaces = comm::choose_interfaces(options_.interface),
                                                            .deadline = options_.deadline,
                                                            .linger = std::chrono::milliseconds(500)});
  return std::make_unique<WatchedMailbox>(std::move(inner), *this);
}

std::shared_ptr<comm::Mailbox> ServerNodes::start(int address, const std::function<void(comm::Mailbox&)>& body) {
  std::shared_ptr<comm::Mailbox> mailbox = open(address);  // the thread's and whoever reads its queue
  threads_.emplace_back([this, mailbox, body] {
    try {
      body(*mailbox);
    } catch (const ServersEnd&) {
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
  });
  return mailbox;
}

void ServerNodes::check() {
  if (stop_) throw ServersEnd{};
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  world_.check_peers();
}

}  // namespace trireme::train
