// device/vector_math.h -- the first use of MKL's vector mathematics, by one thread.
//
// exp, log, sin, cos and the like of the tensor library's CPU tensors are MKL's. It finds out about the processor when
// it is first used, and where two threads do that at once, one may be given a coarser way: in some 2 of 100 processes
// on an Intel processor the first logsumexp of doubles was wrong by 1e-10, and right ever after. Same numbers, same
// bits is what we promise, so it is used once when this library is loaded.
// Depends on: std.
#pragma once

namespace trireme::device {

/// Again: nothing happens.
void settle_vector_math();
bool is_vector_math_settled();

}  // namespace trireme::device
