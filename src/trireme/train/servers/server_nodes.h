// train/servers/server_nodes.h -- parameter servers beside the ranks of a run: their threads, and mailboxes to them.
//
// The first ranks run a server each on a thread of their own, rank 0 the manager too. Ranks that are threads share a
// mail room, processes (MPI, torchrun, Slurm) have mailboxes over MPI or UCX. Whoever waits for mail looks now and then
// whether a rank has failed, so that none waits for one that is gone.
// Depends on: comm, ps, spec.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/mailbox_threads.h"
#include "trireme/ps/update_rule.h"

namespace trireme::train {

struct ServerNodesOptions {
  int servers = 1, copies = 1;
  std::uint64_t keys = 0;
  ps::ValueType type = ps::ValueType::kF64;
  std::function<std::unique_ptr<ps::UpdateRule>()> rule;
  std::string interface = {};                   ///< UCX: comm.interface
  std::chrono::milliseconds deadline{600'000};  ///< for mail
};

class ServerNodes {
 public:
  /// On all ranks together. `world` is borrowed.
  ServerNodes(comm::Group& world, const ServerNodesOptions& options);
  /// When no rank needs a server any more.
  ~ServerNodes();
  ServerNodes(const ServerNodes&) = delete;
  ServerNodes& operator=(const ServerNodes&) = delete;

  /// Of this rank's worker.
  comm::Mailbox& mailbox() { return *mailbox_; }
  /// Mail of the server on this rank that it has not taken yet; nothing where there is none.
  std::optional<QueueReading> server_mail() const {
    return server_mailbox_ ? std::optional(server_mailbox_->queue()) : std::nullopt;
  }

 private:
  class WatchedMailbox;
  std::unique_ptr<comm::Mailbox> open(int address);
  void share_room(int count);
  std::shared_ptr<comm::Mailbox> start(int address, const std::function<void(comm::Mailbox&)>& body);
  /// Throws where waiting is in vain.
  void check();

  comm::Group& world_;
  const ServerNodesOptions options_;
  std::shared_ptr<comm::ThreadMailRoom> room_;  // by all ranks that are threads; null: processes
  std::unique_ptr<comm::Mailbox> mailbox_;
  std::shared_ptr<comm::Mailbox> server_mailbox_;  // with the thread that serves
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;  // of a thread of this rank
  std::vector<std::thread> threads_;
};

}  // namespace trireme::train
