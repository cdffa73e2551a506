#include "trireme/serve/commands.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "trireme/base/cores.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/serve/batch.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/probe.h"
#include "trireme/serve/run_server.h"

namespace trireme::serve {
namespace {

void use_cores(int local_ranks) { at::set_num_threads(std::max(1, usable_cores() / std::max(1, local_ranks))); }

TokenLists generate_on(const GenerateRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return generate(request, rank.world());
}

BatchResult generate_batch_on(const BatchRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return generate_batch(request, rank.world());
}

bool serve_on(const ServeRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return run_server(request, rank.world());
}

ProbeResult probe_on(const ProbeRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return probe(request, rank.world());
}

constexpr Commands kCommands{.version = kVersion,
                             .probe = &probe_on,
                             .generate = &generate_on,
                             .generate_batch = &generate_batch_on,
                             .serve = &serve_on};

}  // namespace

extern "C" const Commands* trireme_serve() {
  device::keep_host_memory();
  return &kCommands;
}

}  // namespace trireme::serve
