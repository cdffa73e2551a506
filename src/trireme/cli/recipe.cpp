// trireme recipe: look at recipes without running them.
#include <fmt/format.h>

#include <memory>
#include <string_view>

#include "trireme/base/print.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/data/vocab_size.h"
#include "trireme/plan/combinations.h"

namespace trireme::cli {
namespace {

constexpr const char* kMarkdownHead = R"(<!-- Made by `make docs` from the program; do not edit. -->
# Recipe keys

A recipe is a TOML file. Every key is listed with its default, what it means and what it takes. `--set section.key=value`
on the command line beats the file; a key that is `(unset)` has no value until it is given. The same text on a terminal:
`trireme recipe docs`. Terms: [glossary](glossary.md).

)";

/// Sizes that follow from others are no defaults.
void name_derived_sizes(spec::LoadedRecipe& loaded) {
  const spec::ModelConfig& model = loaded.value.model;
  if (!model.family || !(model.hidden_size || model.num_heads)) return;
  for (const char* key : {"model.num_heads", "model.num_kv_heads", "model.head_dim", "model.ffn_size"}) {
    if (std::string_view(key) != "model.ffn_size" || model.hidden_size) loaded.origins.try_emplace(key, "derived");
  }
}

/// Its parameters, with the vocabulary of the data where that can be opened.
std::string parameters_text(spec::Recipe recipe) {
  std::string vocabulary;
  try {
    vocabulary = data::settle_vocab_size(recipe);
  } catch (const Error& error) {  // `trireme check` opens what a run opens, and says what is wrong there
    if (!recipe.model.vocab_size) vocabulary = fmt::format("with the family's vocabulary: {}", error.message());
  }
  const auto shape = spec::shape_of(recipe.model);
  if (!shape) return {};
  return fmt::format("the model has {} parameters{}\n", spec::count_parameters(*shape).total(),
                     vocabulary.empty() ? "" : fmt::format(" ({})", vocabulary));
}

void add_show(Command& recipe, Context& context) {
  Command& show = recipe.add_subcommand(
      "show",
      "Print the whole effective recipe as TOML, each value with where it came from: default, file:line, --set");
  const auto options = std::make_shared<RecipeOptions>();  // shared with the callback, which outlives this function
  options->add_to(show, RecipeOptions::File::kOptional);
  show.callback([&context, options] {
    context.run = [&context, options] {
      auto loaded = options->load(context);
      name_derived_sizes(loaded);
      const std::string parameters = parameters_text(loaded.value);
      loaded.value.model = spec::resolved(loaded.value.model);
      context.out << config::show(loaded);
      if (!parameters.empty()) fmt::print(context.out, "\n# {}", parameters);
      return kExitFine;
    };
  });
}

void add_rules(Command& recipe, Context& context) {
  Command& rules = recipe.add_subcommand(
      "rules", "Print what works together: the pairs of features that are refused, and every rule with its reason");
  const auto markdown = std::make_shared<bool>(false);  // shared as above
  rules.add_flag("--markdown", *markdown, "As a Markdown page: docs/combinations.md");
  rules.callback([&context, markdown] {
    context.run = [&context, markdown] {
      constexpr std::size_t kRuleColumns = 118;
      context.out << (*markdown ? plan::combinations_markdown() : plan::rules_text(kRuleColumns));
      return kExitFine;
    };
  });
}

void add_docs(Command& recipe, Context& context) {
  Command& docs = recipe.add_subcommand("docs", "Print every key a recipe can have, with type, default and meaning");
  const auto markdown = std::make_shared<bool>(false);  // shared as above
  docs.add_flag("--markdown", *markdown, "As a Markdown page: docs/recipe.md");
  docs.callback([&context, markdown] {
    context.run = [&context, markdown] {
      context.out << (*markdown ? kMarkdownHead + config::docs_markdown(spec::recipe_schema())
                                : config::docs_text(spec::recipe_schema(), 100));
      return kExitFine;
    };
  });
}

}  // namespace

void add_recipe_command(Command& app, Context& context) {
  Command& recipe = app.add_subcommand(
      "recipe", "Write, show and document recipes, the TOML files that describe a run; `trireme check` checks one");
  recipe.require_subcommand(1);
  add_recipe_new(recipe, context);
  add_recipe_import(recipe, context);
  add_show(recipe, context);
  add_docs(recipe, context);
  add_rules(recipe, context);
  add_recipe_hyperparameters(recipe, context);
}

}  // namespace trireme::cli
