#include "trireme/base/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "trireme/base/data_files.h"
#include "trireme/base/env.h"
#include "trireme/base/error.h"

namespace trireme {
namespace fs = std::filesystem;

std::vector<std::string> plugin_folders() {
  std::vector<std::string> folders;
  const auto add = [&folders](const fs::path& folder) {
    const std::string text = folder.lexically_normal().string();
    if (!text.empty() && std::ranges::find(folders, text) == folders.end()) folders.push_back(text);
  };
  std::istringstream listed(env("TRIREME_PLUGIN_PATH").value_or(""));
  for (std::string folder; std::getline(listed, folder, ':');) add(folder);
  add(library_folder());
  if (const fs::path program = program_folder(); !program.empty()) {
    add(program);
    add(program / "lib");
    add(program.parent_path() / "lib");
  }
  return folders;
}

Plugin Plugin::load(std::string_view name) {
  const std::string file = fmt::format("libtrireme_{}.so", name);
  const std::vector<std::string> folders = plugin_folders();
  for (const std::string& folder : folders) {
    const std::string path = (fs::path(folder) / file).string();
    if (!fs::exists(path)) continue;
    // All symbols now: a library that lacks one should fail here, with its name, and not in the middle of a run. Local:
    // LibTorch brings its own copies of common libraries, which must not stand in for the program's.
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return {path, handle};
    throw ConfigError(fmt::format("{} is there but does not load: {}", path, dlerror()),
                      "a library it needs is missing or of another version; `ldd` on it shows which");
  }
  throw ConfigError(
      fmt::format("{} is needed and was not found in {}", file, fmt::join(folders, ", ")),
      "build it (`make build`), or name the folder that holds it in the environment variable TRIREME_PLUGIN_PATH");
}

void* Plugin::find(const char* symbol) const {
  if (void* address = dlsym(handle_, symbol)) return address;
  throw ConfigError(fmt::format("{} has no function {}", path_, symbol),
                    "it is of another version than the program; build or install both together");
}

}  // namespace trireme
