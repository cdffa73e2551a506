// comm/launch.h -- who this process is, told by whatever started it: mpirun, srun, torchrun, or nothing.
//
// The first of these that is there decides:
//   1. torchrun            TORCHELASTIC_RUN_ID, which only torchrun sets; it may itself run under srun or mpirun
//   2. Open MPI            OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; its daemons may run under srun
//   3. PMI (MPICH, Intel)  PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   4. Slurm               SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, given SLURM_STEP_ID: in a batch script or an
//                          salloc shell the others are set too, but nobody started ranks there. PMIX_RANK must agree
//   5. set by hand         RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE: torchrun's names, the common convention;
//                          RANK=0 WORLD_SIZE=1 is a run in one process
// RANK and WORLD_SIZE set by hand beside 2 to 4 must agree with them. A launcher's variables that are only half there,
// are not numbers, or contradict each other are a ConfigError: a wrong guess would surface as a hang on some other
// rank.
// Depends on: base.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::comm {

struct Launch {
  enum class Kind {
    kSingle,    ///< no launcher: one process
    kMpi,       ///< mpirun or mpiexec
    kSlurm,     ///< srun
    kTorchrun,  ///< torchrun, or its variables set by hand
  };
  Kind kind = Kind::kSingle;
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on this node; -1 where the launcher does not say
  /// Where rank 0 serves the control plane. Empty and 0 when the environment does not say (MPI): rank 0 then takes any
  /// free port and tells the others over the data path.
  ///   torchrun: MASTER_ADDR, MASTER_PORT; the port after it when torchrun's own store occupies that one.
  ///   Slurm:    MASTER_ADDR, MASTER_PORT where both are set, else the first node of the step and a port from the job
  ///   id.
  std::string control_host = {};
  int control_port = 0;
  /// Slurm: srun --mpi=pmix, so that MPI can start.
  bool pmix = false;

  bool operator==(const Launch&) const = default;
};

/// The value of a variable; nothing when it is unset or empty.
using EnvLookup = std::function<std::optional<std::string>(std::string_view)>;

/// From this process's environment.
Launch detect_launch();
Launch detect_launch(const EnvLookup& lookup);

/// "rank 3 of 8 (torchrun), local rank 1 of 4, control plane at node7:29501".
std::string to_text(const Launch& launch);

}  // namespace trireme::comm
