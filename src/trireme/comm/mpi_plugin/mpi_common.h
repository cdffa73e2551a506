// comm/mpi_plugin/mpi_common.h -- small things every file of the plugin needs: checked calls, types, communicators.
// Depends on: MPI.
#pragma once

// The deprecated C++ bindings do not compile without warnings, and nobody needs them.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "trireme/comm/call.h"
#include "trireme/comm/types.h"

namespace trireme::comm {

/// Throws CommError with MPI's own words when `code` is not success.
void check_mpi(int code, const char* what);

MPI_Datatype mpi_type(DType type);
/// Average maps to the sum. Half-precision types get operations of ours: MPI has none.
MPI_Op mpi_op(DType type, Reduce reduce);

/// Held around calls of MPI: those of groups come under their engine's lock, mail comes from a thread of its own, and
/// MPI was promised one at a time (MPI_THREAD_SERIALIZED).
std::recursive_mutex& mpi_calls();

/// MPI counts are ints.
inline constexpr std::size_t kLargestMessage = std::size_t{1} << 30;

}  // namespace trireme::comm
