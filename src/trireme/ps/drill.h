// ps/drill.h -- a storm on real processes: servers are killed with SIGKILL under load, one after the other.
//
// Servers are processes over UCX; manager and worker are this one. The worker takes sequential steps of SGD on a small
// model the whole time. Again and again a server is killed; the control plane tells the manager, those that have copies
// go on, and a new process joins. At the end the weights must be, bit for bit, those of as many steps on one thread: no
// acknowledged push was lost, none was applied twice.
// Depends on: base (child processes), comm (control plane, UCX mailboxes), node.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::ps {

struct DrillOptions {
  int servers = 3, copies = 2, kills = 3;
  std::uint64_t keys = 20'000, seed = 0;
  /// The command of a server: these words, its rank and the port of the control plane.
  std::vector<std::string> server_command;
  std::function<void(const std::string& line)> tell;  ///< of each death
};

struct DrillResult {
  std::int64_t acknowledged = 0;  ///< pushes
  std::int64_t again = 0;         ///< messages that went out again
  std::int64_t epochs = 0;
  bool same_bits = false;  ///< as so many steps on one thread
  double seconds = 0, slowest_step = 0, median_step = 0;
  double recovery = 0;  ///< seconds from a kill until every range had its copies again, the new server's included: mean
};

/// The storm; throws CommError when it does not get through.
DrillResult run_drill(const DrillOptions& options);
/// A server process of it: until the job is over.
void run_drill_server(int rank, int port, std::uint64_t keys, bool join);

}  // namespace trireme::ps
