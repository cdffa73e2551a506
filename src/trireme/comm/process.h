// comm/process.h -- the rank of this process among processes that a launcher (mpirun, srun, torchrun) started.
//
// Brings together who we are (launch.h), the transport between processes (the MPI or the UCX plugin), and the control
// plane over TCP. With MPI the place of the control plane and a token for it go over MPI; without, the launcher says
// where ranks meet, and the user what the token is (control/token.h says who is let in without one).
// Depends on: rank.h, launch.h, the plugin loader.
#pragma once

#include <memory>

#include "trireme/base/plugin.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

/// One epoch of an elastic world (elastic_member.h): its ranks meet where its rank 0 happens to listen.
struct EpochMeeting {
  std::string job_id;                                   ///< of the epoch: ranks of another one are refused
  std::string token = {};                               ///< empty: as TcpControlOptions::token
  std::function<void(int port)> listens = {};           ///< rank 0's: told where it does
  std::function<bool()> called_off = {};                ///< the epoch will not be complete: no more waiting
  std::chrono::milliseconds connect_timeout{5'000};     ///< for a rank 0 that has said where it listens
  std::chrono::milliseconds heartbeat_timeout{30'000};  ///< a rank that is silent for so long is lost
};

class ProcessRank {
 public:
  /// Throws ConfigError when the launcher's ranks cannot be reached by any transport of this build. With `epoch`, over
  /// UCX; launch.control_port is 0 on rank 0.
  ProcessRank(const Launch& launch, const RanksOptions& options, const EpochMeeting* epoch = nullptr);
  ~ProcessRank();
  Rank& rank() { return *rank_; }

 private:
  std::unique_ptr<Transport> start_mpi(const Launch& launch, const RanksOptions& options);
  std::unique_ptr<Transport> start_ucx(const Launch& launch, const RanksOptions& options, const EpochMeeting* epoch);

  std::unique_ptr<TcpControlServer> server_;  // rank 0; ends after its own plane
  std::unique_ptr<ControlPlane> plane_;       // until the rank has it
  std::unique_ptr<Rank> rank_;
};

/// The UCX plugin, loaded so that UCX leaves the crash signals alone. Throws ConfigError when it was not built.
Plugin load_ucx();

/// Runs `body` on this process's rank. When it throws, the other ranks are told, the error is printed, and the process
/// ends with status 1 without waiting for anybody: an orderly end of MPI would need the ranks that are lost.
void run_process_rank(const Launch& launch, const std::function<void(Rank&)>& body, const RanksOptions& options);

}  // namespace trireme::comm
