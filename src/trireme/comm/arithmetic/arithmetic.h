// comm/arithmetic/arithmetic.h -- combining buffers element by element, at the speed of memory.
//
// Every combination is commutative to the bit (minimum and maximum order -0 before +0 and pass NaN on; only which of
// two NaNs is passed on is left open), so two ranks that combine the same two values in either order agree.
// Half-precision values are combined in f32 and rounded once per call. Integers wrap; an average of integers divides
// the wrapped sum towards zero. The bodies are compiled once per instruction set (arithmetic/body.h) and picked when
// the program starts. Depends on: types.h.
#pragma once

#include <cstddef>

#include "trireme/comm/types.h"

namespace trireme::comm {

struct Arithmetic {
  /// to[i] = a[i] (+) b[i]; `to` may be `a` or `b`.
  void (*combine)(void* to, const void* a, const void* b, std::size_t count);
  /// Every to[k][i] = (from[0][i] (+) from[1][i] (+) ...) / divisor, in that order; a `to` may be one of the `from`.
  /// With `stream`, results bypass the caches: right for results nobody reads soon.
  void (*fold)(void* const* to, std::size_t tos, const void* const* from, std::size_t froms, std::size_t count,
               int divisor, bool stream);
  /// to[i] /= divisor.
  void (*divide)(void* to, std::size_t count, int divisor);
};

/// kAvg gives the functions of kSum; the division is the caller's.
const Arithmetic& arithmetic(DType type, Reduce reduce);

/// memcpy that bypasses the caches for the destination; worth it only for copies larger than a core's share of the
/// cache.
void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace trireme::comm
