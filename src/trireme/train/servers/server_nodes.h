// train/servers/server_nodes.h -- parameter servers beside the ranks of a run: their threads, and mailboxes to them.
//
// Ranks run a server each on a thread of its own, the first ones, or several where there are more servers than ranks;
// rank 0 the manager too.
// Depends on: ps, rank_mailboxes.h.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/ps/update_rule.h"
#include "trireme/train/servers/rank_mailboxes.h"

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
  ~ServerNodes() { mailboxes_.stop(); }
  ServerNodes(const ServerNodes&) = delete;
  ServerNodes& operator=(const ServerNodes&) = delete;

  /// Of this rank's worker.
  comm::Mailbox& mailbox() { return *mailbox_; }
  /// Mail of the servers on this rank that they have not taken yet; nothing where there are none.
  std::optional<QueueReading> server_mail() const;

 private:
  const ServerNodesOptions options_;
  RankMailboxes mailboxes_;
  std::unique_ptr<comm::Mailbox> mailbox_;
  std::vector<std::shared_ptr<comm::Mailbox>> server_mailboxes_;  // with the threads that serve
};

}  // namespace trireme::train
