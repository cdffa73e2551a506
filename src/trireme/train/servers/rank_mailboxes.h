// train/servers/rank_mailboxes.h -- mailboxes beside the ranks of a run, and threads that serve on them.
//
// Ranks that are threads share a mail room, processes (MPI, torchrun, Slurm) have mailboxes over MPI or UCX. Whoever
// waits for mail looks now and then whether a rank or a serving thread has failed, so that none waits for one that is
// gone.
// Depends on: comm.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/mailbox_threads.h"

namespace trireme::train {

class RankMailboxes {
 public:
  /// On all ranks together: addresses 0 to count - 1 over all of them. `world` is borrowed.
  RankMailboxes(comm::Group& world, int count, std::string interface, std::chrono::milliseconds deadline);
  ~RankMailboxes() { stop(); }
  RankMailboxes(const RankMailboxes&) = delete;
  RankMailboxes& operator=(const RankMailboxes&) = delete;

  std::unique_ptr<comm::Mailbox> open(int address);
  /// Serves on a thread of its own; the mailbox is the thread's and whoever reads its queue.
  std::shared_ptr<comm::Mailbox> start(int address, const std::function<void(comm::Mailbox&)>& body);
  /// What somebody on this rank threw: all who wait here throw it.
  void fail(std::exception_ptr failure);
  /// Nobody on this rank needs a thread any more: they end when they next wait.
  void stop();

 private:
  class WatchedMailbox;
  void share_room(int count);
  /// Throws where waiting is in vain.
  void check();

  comm::Group& world_;
  const std::string interface_;  // UCX: comm.interface
  const std::chrono::milliseconds deadline_;
  std::shared_ptr<comm::ThreadMailRoom> room_;  // by all ranks that are threads; null: processes
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

/// Thrown into threads that serve when nobody needs them any more.
struct ServingEnds {};

}  // namespace trireme::train
