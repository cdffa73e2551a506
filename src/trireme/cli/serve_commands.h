// cli/serve_commands.h -- loads what probe and generate need of libtrireme_runtime.
//
// Depends on: base, serve/commands.h.
#pragma once

#include "trireme/serve/commands.h"

namespace trireme::cli {

/// A ConfigError when the library is missing or of another version.
const serve::Commands& load_serve();

}  // namespace trireme::cli
