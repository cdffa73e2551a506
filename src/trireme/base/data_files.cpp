#include "trireme/base/data_files.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// Enough for build/PRESET/src/trireme/libtrireme.so and for lib/ARCHITECTURE/libtrireme.so; not up to a user's home.
constexpr int kFoldersUp = 5;

/// Those that the word is a part of, all of them; otherwise the nearest.
std::string meant_by(const std::string& word, const std::vector<std::string>& names) {
  std::vector<std::string> alike;
  for (const std::string& name : names) {
    if (!word.empty() && name.find(word) != std::string::npos) alike.push_back(fmt::format("\"{}\"", name));
  }
  return alike.empty() ? did_you_mean(word, names) : fmt::format("; did you mean {}?", listed(alike));
}

}  // namespace

fs::path library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&library_folder), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::weakly_canonical(info.dli_fname, ignored).parent_path();
}

fs::path program_folder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

std::vector<fs::path> data_folders() {
  std::vector<fs::path> folders;
  const auto add = [&folders](const fs::path& folder) {
    std::error_code ignored;
    if (fs::is_directory(folder, ignored) && std::ranges::find(folders, folder) == folders.end())
      folders.push_back(folder);
  };
  if (const auto listed = env("TRIREME_DATA_PATH")) {
    for (const std::string& folder : split(*listed, ':')) add(folder);
  }
  for (fs::path start : {library_folder(), program_folder()}) {
    for (int up = 0; up < kFoldersUp && start.has_relative_path(); ++up, start = start.parent_path()) {
      // Other projects have folders of this name too: ours hold descriptions of clusters.
      for (const fs::path& folder : {start / "recipes", start / "share" / "trireme" / "recipes"}) {
        std::error_code ignored;
        if (fs::is_directory(folder / "clusters", ignored)) add(folder);
      }
    }
  }
  return folders;
}

std::vector<std::string> data_names(std::string_view kind) {
  std::set<std::string> names;
  for (const fs::path& folder : data_folders()) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder / kind, ignored)) {
      if (entry.path().extension() == ".toml") names.insert(entry.path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

fs::path find_data_file(std::string_view kind, const std::string& name) {
  std::error_code ignored;
  if (name.find('/') != std::string::npos || name.ends_with(".toml")) {
    if (fs::is_regular_file(name, ignored)) return name;
    throw ConfigError(fmt::format("there is no file \"{}\"", name),
                      fmt::format("give a path that exists, or one of the names {}", listed(data_names(kind))));
  }
  const std::vector<fs::path> folders = data_folders();
  for (const fs::path& folder : folders) {
    const fs::path path = folder / kind / (name + ".toml");
    if (!name.empty() && fs::is_regular_file(path, ignored)) return path;
  }
  const std::string one = std::string(kind.substr(0, kind.size() - 1));  // "clusters": one cluster
  const std::vector<std::string> names = data_names(kind);
  if (names.empty())
    throw ConfigError(fmt::format("no {} are installed, so \"{}\" is unknown", kind, name),
                      fmt::format("give the path of a .toml file, or name the folder that holds {}/ in the "
                                  "environment variable TRIREME_DATA_PATH",
                                  kind));
  throw ConfigError(fmt::format("there is no {} \"{}\"{}", one, name, meant_by(name, names)),
                    fmt::format("known are {}; or give the path of a .toml file", listed(names)));
}

}  // namespace trireme
