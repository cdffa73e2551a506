// base/version.h -- which Trireme this is.
//
// Depends on: std.
#pragma once

#include <string_view>

namespace trireme {

/// Major, minor, patch; the same as project(VERSION) in CMakeLists.txt, which a test compares.
inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace trireme
