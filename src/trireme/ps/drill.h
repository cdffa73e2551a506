// ps/drill.h -- a storm on real processes: servers are killed with SIGKILL under load, one after the other.
//
// Servers are processes over UCX, here or on other hosts; manager and worker are this one. The worker takes sequential
// steps of SGD on a small model the whole time. Again and again a server is killed; the control plane tells the
// manager, those that have copies go on, and a new process joins. Some are frozen instead (SIGSTOP): their connections
// stay, so only their heartbeat tells, and they wake up when another has their place. At the end the weights must be,
// bit for bit, those of as many steps on one thread: no acknowledged push was lost, none was applied twice.
// Depends on: base (child processes), comm (control plane, UCX mailboxes), node.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/child_process.h"

namespace trireme::ps {

/// Where the control plane is met.
struct DrillPlane {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string token = {};  ///< none: servers are processes of this machine and user
  std::chrono::milliseconds heartbeat_timeout{10'000};
};

struct DrillOptions {
  int servers = 3, copies = 2, kills = 3;
  int frozen = 0;  ///< the last of the kills: SIGSTOP instead
  std::uint64_t keys = 20'000, seed = 0;
  DrillPlane plane = {};
  /// Starts a server with these arguments: its rank, where the control plane is, whether it joins.
  std::function<std::unique_ptr<ChildProcess>(int rank, const std::vector<std::string>& arguments)> start;
  /// Signals it, wherever it runs.
  std::function<void(const ChildProcess& server, int signal)> signal;
  std::function<void(const std::string& line)> tell;  ///< of each death
};

struct DrillResult {
  std::int64_t acknowledged = 0;  ///< pushes
  std::int64_t again = 0;         ///< messages that went out again
  std::int64_t epochs = 0;
  bool same_bits = false;  ///< as so many steps on one thread
  double seconds = 0, slowest_step = 0, median_step = 0;
  double recovery = 0;  ///< seconds from a kill until every range had its copies again, the new server's included: mean
  double frozen_recovery = 0;  ///< the same of those that froze: the heartbeat first
};

/// The storm; throws CommError when it does not get through.
DrillResult run_drill(const DrillOptions& options);
/// A server process of it: until the job is over.
void run_drill_server(int rank, const DrillPlane& plane, std::uint64_t keys, bool join);

}  // namespace trireme::ps
