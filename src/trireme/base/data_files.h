// base/data_files.h -- Trireme's own data (clusters, devices, models, published runs), found by name from any
// directory.
//
//   find_data_file("clusters", "selene")        .../recipes/clusters/selene.toml, wherever Trireme is installed
//   find_data_file("clusters", "./mine.toml")   the file itself
//
// Depends on: env, error, text.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

// Where Trireme itself lies: its library and its program. What it brings along is found from there.

/// The folder of libtrireme.so, wherever it was installed; empty when it cannot be told.
std::filesystem::path library_folder();
/// The folder of the running program.
std::filesystem::path program_folder();

/// Folders that may hold data, in the order in which they are asked: those of TRIREME_DATA_PATH, then `recipes` and
/// `share/trireme/recipes` in the folders above libtrireme.so and above the program (a build, an installation).
std::vector<std::filesystem::path> data_folders();

/// The path of `kind`/`name`.toml. A name with a slash or ending in .toml is a path. Throws ConfigError with the
/// nearest names when there is none.
std::filesystem::path find_data_file(std::string_view kind, const std::string& name);

/// All names of a kind, sorted.
std::vector<std::string> data_names(std::string_view kind);

}  // namespace trireme
