// base/own_folders.h -- where Trireme itself lies: its library and its program. What it brings along is found from
// there.
//
// Depends on: std.
#pragma once

#include <filesystem>

namespace trireme {

/// The folder of libtrireme.so, wherever it was installed; empty when it cannot be told.
std::filesystem::path library_folder();
/// The folder of the running program.
std::filesystem::path program_folder();

}  // namespace trireme
