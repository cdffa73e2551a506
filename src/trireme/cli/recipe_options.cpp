#include "trireme/cli/recipe_options.h"

#include <fmt/format.h>

#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/cost/collectives.h"

namespace trireme::cli {

void RecipeOptions::add_to(Command& command, File file) {
  command.add_option("FILE", file_, "The recipe, a TOML file").required(file == File::kRequired);
  command
      .add_option(
          "--set", sets_,
          "Change a key, e.g. --set comm.ranks=4; texts need no quotes, lists are 1,2,3, nothing after '=' unsets. "
          "May be given many times")
      .one_at_a_time()  // else it would take the file for another of its values
      .type_name("SECTION.KEY=VALUE");
}

config::Input RecipeOptions::input() const {
  config::Input input{.environment = spec::recipe_environment(), .sets = sets_};
  if (!file_.empty()) input.file = file_;
  return input;
}

spec::LoadedRecipe RecipeOptions::read(std::vector<config::Problem>& problems) const {
  spec::LoadedRecipe loaded;
  loaded.origins = config::read_into(spec::recipe_schema(), &loaded.value, input(), problems);
  config::add_cross_problems(find_all_problems(loaded.value), loaded.origins, input(), problems);
  return loaded;
}

spec::LoadedRecipe RecipeOptions::load(const Context& context) const {
  std::vector<config::Problem> problems;
  spec::LoadedRecipe loaded = read(problems);
  if (!problems.empty()) throw config::ProblemsError(config::title(input()), std::move(problems));
  if (!context.level_is_set) set_log_level(loaded.value.log.level);
  return loaded;
}

std::vector<config::Problem> find_all_problems(const spec::Recipe& recipe) {
  std::vector<config::Problem> problems = spec::find_problems(recipe);
  const std::string& algorithm = recipe.comm.algorithm;
  if (!algorithm.empty() && !cost::parse_algorithm(algorithm)) {
    std::vector<std::string> names;
    for (const cost::Algorithm known : cost::all_algorithms()) names.emplace_back(cost::name(known));
    problems.push_back({.key = "comm.algorithm",
                        .reason = fmt::format("\"{}\" is unknown{}", algorithm, did_you_mean(algorithm, names)),
                        .hint = fmt::format("one of {}", fmt::join(names, ", "))});
  }
  return problems;
}

}  // namespace trireme::cli
