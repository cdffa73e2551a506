// cli/runtime_commands.h -- loads libtrireme_runtime and what its rooms offer to commands.
//
// Depends on: base, serve/commands.h, spmd/commands.h, train/commands.h.
#pragma once

#include "trireme/serve/commands.h"
#include "trireme/spmd/commands.h"
#include "trireme/train/commands.h"

namespace trireme::cli {

/// A ConfigError when the library is missing or of another version.
const serve::Commands& load_serve();
const train::Commands& load_train();
const spmd::Commands& load_spmd();

/// Ranks on this machine: all of them when they are threads, what the launcher says for processes.
int local_ranks(const spec::Recipe& recipe);

}  // namespace trireme::cli
