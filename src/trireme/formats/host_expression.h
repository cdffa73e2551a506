// formats/host_expression.h -- many hosts in few letters, as Slurm writes them: "gpu[007-012,020],login1".
//
// Depends on: format_error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::formats {

/// The most hosts that a text may stand for.
inline constexpr std::size_t kMostHosts = 1 << 17;

/// At commas that are in no brackets.
std::vector<std::string> split_outside_brackets(std::string_view text);

/// Every host, in the order of the text; numbers keep their zeros, several brackets multiply. Throws FormatError, which
/// names `name` and the byte.
std::vector<std::string> expand_hosts(std::string_view text, std::string_view name);

/// The other way: hosts that differ in their last number only are joined, in their order. expand_hosts() gives the same
/// hosts back.
std::string compress_hosts(const std::vector<std::string>& hosts);

}  // namespace trireme::formats
