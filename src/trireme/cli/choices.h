// cli/choices.h -- an option that takes one of a few words.
//
// Depends on: CLI11.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace trireme::cli {

/// Help lists the words, "fp32|bf16", in their order by name; another word is an error that lists them too. `value` is
/// a T or an optional one.
template <typename T, typename Value>
CLI::Option* add_choice(CLI::App& command, const std::string& option, Value& value,
                        const std::map<std::string, T>& words, const std::string& meaning) {
  std::string names;
  for (const auto& [name, meant] : words) names += fmt::format("{}{}", names.empty() ? "" : "|", name);
  CLI::CheckedTransformer transformer(words);
  transformer.description("");  // its own prints the enumerators' bytes
  return command.add_option(option, value, meaning)->transform(transformer)->type_name(names);
}

}  // namespace trireme::cli
