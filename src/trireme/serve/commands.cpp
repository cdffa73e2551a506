#include "trireme/serve/commands.h"

#include "trireme/device/host_memory.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/probe.h"

namespace trireme::serve {
namespace {

constexpr Commands kCommands{.version = kVersion, .probe = &probe, .generate = &generate};

}  // namespace

extern "C" const Commands* trireme_serve() {
  device::keep_host_memory();
  return &kCommands;
}

}  // namespace trireme::serve
