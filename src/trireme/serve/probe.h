// serve/probe.h -- one forward and backward pass of a published model, for comparison with another implementation.
//
// Ranks split the matrices (tensor parallelism); logits, loss and gradient norms are those of the whole model.
// Depends on: checkpoint, comm, commands.h, models, parallel.
#pragma once

#include "trireme/comm/group.h"
#include "trireme/serve/commands.h"

namespace trireme::serve {

/// By all ranks of `world`; rank 0 writes.
ProbeResult probe(const ProbeRequest& request, comm::Group& world);

}  // namespace trireme::serve
