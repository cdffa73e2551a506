// comm/process.h -- the rank of this process among processes that a launcher (mpirun, srun) started.
//
// Brings together who we are (launch.h), the transport between processes (the MPI plugin), and the control plane over
// TCP.
// Depends on: rank.h, launch.h, the plugin loader.
#pragma once

#include <memory>

#include "trireme/comm/launch.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

class ProcessRank {
 public:
  /// Throws ConfigError when the launcher's ranks cannot be reached by any transport of this build.
  ProcessRank(const Launch& launch, const RanksOptions& options);
  ~ProcessRank();
  Rank& rank() { return *rank_; }

 private:
  std::unique_ptr<TcpControlServer> server_;  // rank 0; ends after its own plane
  std::unique_ptr<Rank> rank_;
};

/// Runs `body` on this process's rank. When it throws, the other ranks are told, the error is printed, and the process
/// ends with status 1 without waiting for anybody: an orderly end of MPI would need the ranks that are lost.
void run_process_rank(const Launch& launch, const std::function<void(Rank&)>& body, const RanksOptions& options);

}  // namespace trireme::comm
