// observe/report/page.h -- the frame of a report page: style, script, and where the parts stand.
//
// Depends on: std.
#pragma once

#include <string>
#include <string_view>

namespace trireme::observe {

/// How many colours charts can tell apart; series with larger numbers begin again.
inline constexpr int kColors = 8;

/// One HTML document that needs nothing else: no network, and no script for what it shows. `body` is HTML.
std::string page(std::string_view title, std::string_view body);

}  // namespace trireme::observe
