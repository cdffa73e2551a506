// dashboard/assets.h -- the files of page/, compiled in (cmake/embed_files.cmake makes their table).
//
// Depends on: std.
#pragma once

#include <span>
#include <string_view>

namespace trireme::dashboard {

struct Asset {
  std::string_view name;  // "app.js"
  std::string_view bytes;
};

std::span<const Asset> assets();

}  // namespace trireme::dashboard
