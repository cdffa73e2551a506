#include "trireme/cli/runtime_commands.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"
#include "trireme/comm/launch.h"

namespace trireme::cli {
namespace {

template <typename Commands>
const Commands& load_commands(const char* entry, std::uint32_t version) {
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
