// serve/probe.h -- one forward and backward pass of a published model, for comparison with another implementation.
//
// Depends on: base, formats, models.
#pragma once

#include "trireme/serve/commands.h"

namespace trireme::serve {

ProbeResult probe(const ProbeRequest& request);

}  // namespace trireme::serve
