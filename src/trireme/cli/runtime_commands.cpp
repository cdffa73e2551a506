#include "trireme/cli/runtime_commands.h"

#include <fmt/format.h>

#include <cstdlib>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/plugin.h"
#include "trireme/comm/launch.h"

namespace trireme::cli {
namespace {

/// Rounds that a thread of OpenMP looks for the others before it sleeps: some tenths of a millisecond, longer than
/// threads of a step wait that have a core each. libgomp's own 300,000 are milliseconds at every barrier, in which a
/// thread that spins keeps the core from the one it waits for. libgomp reads the variable when it is loaded, with the
/// runtime.
constexpr const char* kSpins = "10000";

void spin_briefly() {
  const auto spins = env("GOMP_SPINCOUNT");
  if (!env("OMP_WAIT_POLICY")) {
    ::setenv("GOMP_SPINCOUNT", kSpins, 0);
  } else if (spins == kSpins) {  // inherited from a command that set it; the policy holds
    ::unsetenv("GOMP_SPINCOUNT");
  }
}

template <typename Commands>
const Commands& load_commands(const char* entry, std::uint32_t version) {
  spin_briefly();
  const Plugin library = Plugin::load("runtime");
  const Commands* commands = library.function<const Commands*()>(entry)();
  if (commands->version != version) {
    throw ConfigError(fmt::format("{} offers version {} of its commands, this program needs {}", library.path(),
                                  commands->version, version),
                      "build and install program and libraries together");
  }
  return *commands;
}

}  // namespace

const serve::Commands& load_serve() { return load_commands<serve::Commands>(serve::kEntry, serve::kVersion); }
const train::Commands& load_train() { return load_commands<train::Commands>(train::kEntry, train::kVersion); }

const spmd::Commands& load_spmd() { return load_commands<spmd::Commands>(spmd::kEntry, spmd::kVersion); }

int local_ranks(const spec::Recipe& recipe) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::Launch::Kind::kSingle) return recipe.comm.ranks.value_or(1);
  return launch.local_ranks > 0 ? launch.local_ranks : 1;
}

}  // namespace trireme::cli
