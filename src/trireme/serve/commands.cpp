#include "trireme/serve/commands.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "trireme/base/cores.h"
#include "trireme/device/host_memory.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/probe.h"

namespace trireme::serve {
namespace {

TokenLists generate_on(const GenerateRequest& request, comm::Rank& rank) {
  at::set_num_threads(std::max(1, usable_cores() / std::max(1, request.local_ranks)));
  return generate(request, rank.world());
}

constexpr Commands kCommands{.version = kVersion, .probe = &probe, .generate = &generate_on};

}  // namespace

extern "C" const Commands* trireme_serve() {
  device::keep_host_memory();
  return &kCommands;
}

}  // namespace trireme::serve
