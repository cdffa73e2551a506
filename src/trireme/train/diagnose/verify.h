// train/diagnose/verify.h -- does a layout compute what one rank computes? Runs both and compares every number that
// matters.
//
// The reference runs on rank 0 alone; then all ranks run the layout, and each compares the parts that it holds with the
// reference's, by global index. A difference is told relative to the whole tensor's norm, but to no less than a part of
// the largest norm in its layer: some gradients are zero in exact arithmetic, and what is left of them is rounding.
// Depends on: comm, data, layout, nn, spec, train.
#pragma once

#include <string>
#include <vector>

#include "trireme/train/commands.h"

namespace trireme::train {

/// Called by every rank; the same answers on each.
void verify(const VerifyRequest& request, comm::Rank& rank, const OnVerified& each);

/// What is still called equal, for a precision.
VerifyTolerance tolerance_of(spec::Precision precision);

}  // namespace trireme::train
