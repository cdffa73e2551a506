// serve/run_server.h -- a model from its folder, served until somebody says stop.
//
// Depends on: base, comm, commands.h, server.h.
#pragma once

#include "trireme/comm/group.h"
#include "trireme/serve/commands.h"
#include "trireme/serve/server.h"

namespace trireme::serve {

/// What the batch-invariant path costs: times of a short prefill and of decode with it, over those without.
struct InvariantPrice {
  double prefill = 1, decode = 1;
};
InvariantPrice measure_invariant_price(models::Model& model);

/// Until SIGINT or SIGTERM; then what runs may finish, for drain_seconds; the signal again ends the process.
bool run_server(const ServeRequest& request, comm::Group& world);

}  // namespace trireme::serve
