#include "trireme/cli/serve_commands.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"

namespace trireme::cli {

const serve::Commands& load_serve() {
  const Plugin library = Plugin::load("runtime");
  const serve::Commands* commands = library.function<serve::Entry>(serve::kEntry)();
  if (commands->version != serve::kVersion) {
    throw ConfigError(fmt::format("{} offers version {} of its commands, this program needs {}", library.path(),
                                  commands->version, serve::kVersion),
                      "build and install program and libraries together");
  }
  return *commands;
}

}  // namespace trireme::cli
