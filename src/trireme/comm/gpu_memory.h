// comm/gpu_memory.h -- how ranks that are threads copy and add up memory of the GPU that they share.
//
// This room knows no CUDA: whoever has kernels for it sets them here. They launch work on the GPU's default stream and
// wait for nothing. All threads of a process share that stream, and it runs what it is given in order: a rank that has
// put up its call has launched what makes its data, so whatever another rank launches after seeing the call comes after
// it, and so on for the backward pass.
// Depends on: types.h.
#pragma once

#include <cstddef>

#include "trireme/comm/types.h"

namespace trireme::comm {

struct GpuMemory {
  void (*copy)(void* to, const void* from, std::size_t bytes);
  /// Every to[k][i] = (from[0][i] (+) from[1][i] (+) ...) / divisor, in that order and as Arithmetic::fold rounds it; a
  /// `to` may be one of the `from`.
  void (*fold)(void* const* to, std::size_t tos, const void* const* from, std::size_t froms, std::size_t count,
               DType type, Reduce reduce, int divisor);
};

/// For all ranks of the process, from now on; `memory` is borrowed for good.
void set_gpu_memory(const GpuMemory& memory);
/// Null: nobody has set any.
const GpuMemory* gpu_memory();

}  // namespace trireme::comm
