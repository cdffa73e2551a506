// launch/host_list.h -- hosts as people write them: a:4,user@node[01-08],[fd00::7]:2.
//
// Depends on: formats (Slurm's host lists), base.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

struct Host {
  std::string user;          ///< empty: ssh's own choice
  std::string address;       ///< a name or an address, without brackets
  std::optional<int> slots;  ///< ranks it takes
  bool operator==(const Host&) const = default;

  /// "user@address", as ssh wants it: an address of IPv6 without brackets.
  std::string login() const { return user.empty() ? address : user + "@" + address; }
};

/// Numbers in brackets stand for several hosts, as in Slurm; an address of IPv6 has brackets when ranks follow it.
/// Throws ConfigError for what is none, and for a host that is named twice.
std::vector<Host> parse_hosts(std::string_view text);

/// What reaches a host, where nothing else is said.
inline constexpr std::string_view kSsh = "ssh -o BatchMode=yes -o ConnectTimeout=10";
/// The command that runs a script of sh on a host: through `ssh` (a command with its options), on localhost without.
std::vector<std::string> words_on(const Host& host, const std::string& script, const std::string& ssh);

}  // namespace trireme::launch
