#include "trireme/cli/recipe_options.h"

#include <fmt/format.h>

#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/comm/launch.h"
#include "trireme/cost/collectives.h"
#include "trireme/spec/derived.h"

namespace trireme::cli {

void RecipeOptions::add_to(Command& command, File file) {
  command.add_option("FILE", file_, "The recipe, a TOML file").required(file == File::kRequired);
  command
      .add_option(
          "--set", sets_,
          "Change a key, e.g. --set comm.ranks=4; texts need no quotes, lists are 1,2,3, nothing after '=' unsets or "
          "empties. "
          "May be given many times")
      .one_at_a_time()  // else it would take the file for another of its values
      .type_name("SECTION.KEY=VALUE");
}

config::Input RecipeOptions::input() const {
  config::Input input{.environment = spec::recipe_environment(), .sets = sets_};
  if (!file_.empty()) input.file = file_;
  return input;
}

spec::LoadedRecipe RecipeOptions::read(std::vector<config::Problem>& problems, std::vector<std::string>* said) const {
  spec::LoadedRecipe loaded;
  const config::Input from = input();
  loaded.origins = config::read_into(spec::recipe_schema(), &loaded.value, from, problems);
  int ranks = 0;
  if (loaded.value.train.gradient_accumulation_steps) {  // the only one that asks who was started
    const comm::Launch launch = comm::detect_launch();
    if (launch.kind != comm::Launch::Kind::kSingle) ranks = launch.ranks;
  }
  std::vector<std::string> derived;
  auto found = spec::derive(loaded, from, ranks, derived);
  if (said != nullptr) *said = std::move(derived);
  for (config::Problem& problem : find_all_problems(loaded.value)) found.push_back(std::move(problem));
  config::add_cross_problems(std::move(found), loaded.origins, from, problems);
  return loaded;
}

spec::LoadedRecipe RecipeOptions::load(const Context& context, std::vector<std::string>* said) const {
  std::vector<config::Problem> problems;
  spec::LoadedRecipe loaded = read(problems, said);
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
