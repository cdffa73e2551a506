#include "trireme/serve/commands.h"

#include "trireme/serve/generate.h"
#include "trireme/serve/probe.h"

namespace trireme::serve {
namespace {

constexpr Commands kCommands{.version = kVersion, .probe = &probe, .generate = &generate};

}  // namespace

extern "C" const Commands* trireme_serve() { return &kCommands; }

}  // namespace trireme::serve
