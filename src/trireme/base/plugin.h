// base/plugin.h -- Trireme's own libraries that are loaded only when something needs them.
//
// libtrireme_runtime (LibTorch) and libtrireme_mpi (MPI) stay out of the program, so that nobody needs them installed,
// or waits for them to load, for what does not use them. Each offers C functions; the room that owns the library
// declares them in a header free of the library's own types.
// Depends on: env, error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A loaded library. Loaded until the process ends: LibTorch and MPI do not survive being unloaded.
class Plugin {
 public:
  /// `name` "runtime" loads libtrireme_runtime.so; loading it twice gives the same library. Throws ConfigError with
  /// every place that was tried, or with what the loader said.
  static Plugin load(std::string_view name);

  const std::string& path() const { return path_; }

  /// The function `symbol`; the caller knows its type. Throws ConfigError when the library has none of that name, as a
  /// library of another version would.
  template <typename Function>
  Function* function(const char* symbol) const {
    return reinterpret_cast<Function*>(find(symbol));
  }

 private:
  Plugin(std::string path, void* handle) : path_(std::move(path)), handle_(handle) {}
  void* find(const char* symbol) const;

  std::string path_;
  void* handle_;
};

/// Where plugins are looked for, in this order: the folders of TRIREME_PLUGIN_PATH, beside libtrireme.so, beside the
/// program, and in the program's lib and ../lib.
std::vector<std::string> plugin_folders();

}  // namespace trireme
