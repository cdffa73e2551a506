// base/env.h -- every environment variable Trireme reads, with its meaning. The only file that calls getenv.
//
// To read another variable: add a row to the table in env.cpp. `trireme --help` lists the table, so a variable that is
// read is a variable that is documented.
// Depends on: error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

enum class EnvGroup : std::uint8_t {
  kTrireme,   ///< ours: changes what Trireme does
  kLauncher,  ///< set by mpirun, srun, torchrun: who this rank is
  kSystem,    ///< conventions of the machine and the terminal
};

struct EnvVariable {
  EnvGroup group;
  std::string_view name;
  std::string_view meaning;
};

/// Every variable, ordered by group.
std::span<const EnvVariable> env_table();

/// The variable's value; nothing when it is unset or empty (`NAME= trireme ...` is how people switch one off).
/// `name` must be in the table.
std::optional<std::string> env(std::string_view name);

/// Any variable, for a user who names it on the command line; nothing when it is unset.
std::optional<std::string> env_by_name(const std::string& name);
/// Variables whose names begin with one of these, sorted: what launchers forward.
std::vector<std::pair<std::string, std::string>> env_with_prefixes(std::span<const std::string_view> prefixes);

/// Whoever knows its value may join the job: it is not printed, nor part of a command that others can see.
bool env_is_secret(std::string_view name);
/// Its value for people to read: secrets are only said to be set.
std::optional<std::string> shown_env(std::string_view name);

/// For libraries that are told this way only, before they are loaded. `name` must be in the table.
void set_env(std::string_view name, const std::string& value);

/// env() as a whole number; a ConfigError naming the variable and its text when it is none or negative.
std::optional<int> env_int(std::string_view name);

/// Where measurements are kept between runs: $XDG_CACHE_HOME/trireme, else $HOME/.cache/trireme. It need not exist yet.
std::filesystem::path cache_folder();

/// The table as the text that ends `trireme --help`.
std::string env_help();

}  // namespace trireme
