// cli/recipe_options.h -- the options of every command that takes a recipe: the file and --set.
//
// Depends on: command.h, spec, cost.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/cli/commands.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

class RecipeOptions {
 public:
  enum class File { kRequired, kOptional };  // without a file, a recipe is all defaults and --set

  /// Adds them to `command`; must outlive the parsing.
  void add_to(Command& command, File file);
  /// Everything that is wrong is one error. Takes over the recipe's log level, unless the command line has one.
  /// `said`: gets a sentence for each value that was derived (spec/derived.h).
  spec::LoadedRecipe load(const Context& context, std::vector<std::string>* said = nullptr) const;
  /// The same without throwing: adds to `problems`; keys that have one keep their default.
  spec::LoadedRecipe read(std::vector<config::Problem>& problems, std::vector<std::string>* said = nullptr) const;
  /// What load() and read() read from: to say where values came from.
  config::Input input() const;
  const std::string& file() const { return file_; }
  const std::vector<std::string>& sets() const { return sets_; }
  /// As if `--set ASSIGNMENT` came last: for flags that are short for a key.
  void set(std::string assignment) { sets_.push_back(std::move(assignment)); }

 private:
  std::string file_;
  std::vector<std::string> sets_;
};

/// spec::find_problems and what only rooms that a recipe does not know can judge, such as names of algorithms.
std::vector<config::Problem> find_all_problems(const spec::Recipe& recipe);

}  // namespace trireme::cli
