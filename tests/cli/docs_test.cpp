// The pages that are made from the program say what the program says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "tests/cli/run.h"
#include "trireme/base/text.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

using testing::HasSubstr;

std::string page(const std::string& name) {
  std::ifstream file(std::string(TRIREME_DOCS) + "/" + name);
  EXPECT_TRUE(file) << "docs/" << name << " is not there; `make docs` makes it";
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Docs, TheRecipePageIsUpToDate) {
  EXPECT_EQ(page("recipe.md"), run({"recipe", "docs", "--markdown"}).out) << "docs/recipe.md is stale; run `make docs`";
}

TEST(Docs, ThePageOfWhatWorksTogetherIsUpToDate) {
  EXPECT_EQ(page("combinations.md"), run({"recipe", "rules", "--markdown"}).out)
      << "docs/combinations.md is stale; run `make docs`";
}

TEST(Docs, TheCommandsPageIsUpToDate) {
  EXPECT_EQ(page("commands.md"), run({"docs"}).out) << "docs/commands.md is stale; run `make docs`";
}

TEST(Docs, EveryCommandAndOptionHasAHelpTextAndStandsOnTheCommandsPage) {
  const std::string text = page("commands.md");
  const std::vector<CommandDoc> commands = program_docs();
  EXPECT_GT(commands.size(), 30U);
  for (const CommandDoc& command : commands) {
    EXPECT_FALSE(command.about.empty()) << command.name;
    EXPECT_THAT(text, HasSubstr("\n## `" + command.name + "`\n"));
    for (const OptionDoc& option : command.options) {
      EXPECT_FALSE(option.meaning.empty()) << command.name << " " << option.names;
      EXPECT_THAT(text, HasSubstr("- `" + option.names)) << command.name;
    }
  }
}

/// What the recipe page says of a section; empty: nothing.
std::string section_of(const std::string& text, const std::string& name) {
  for (const std::string& heading : {"## `[" + name + "]`\n", "## `[[" + name + "]]`\n"}) {
    const std::size_t begin = text.find(heading);
    if (begin != std::string::npos) return text.substr(begin, text.find("\n## ", begin) - begin);
  }
  return "";
}

/// Keys of the section `name` and of those below it that have no meaning, or do not stand on the recipe page.
std::vector<std::string> untold_keys(const config::Schema& schema, const std::string& name, const std::string& text) {
  std::vector<std::string> untold;
  const std::string section = section_of(text, name), prefix = name.empty() ? "" : name + ".";
  for (const config::Field& field : schema.fields) {
    if (trimmed(field.meaning).empty() || section.find("\n- `" + field.name + " = ") == std::string::npos)
      untold.push_back(prefix + field.name);
  }
  for (const config::Part& part : schema.parts) {
    const auto below = untold_keys(*part.schema, prefix + part.name, text);
    untold.insert(untold.end(), below.begin(), below.end());
  }
  return untold;
}

TEST(Docs, EveryRecipeKeyHasAMeaningAndStandsOnTheRecipePage) {
  EXPECT_THAT(untold_keys(spec::recipe_schema(), "", page("recipe.md")), testing::IsEmpty());
  const config::Schema keys{.fields = {{.name = "told", .meaning = "what it is"},
                                       {.name = "silent", .meaning = " "},
                                       {.name = "missing", .meaning = "what it is"}}};
  EXPECT_THAT(
      untold_keys(keys, "run", "## `[run]`\n\n- `told = 1`: what it is\n- `silent = 1`: \n## `[x]`\n- `missing = 1`"),
      testing::ElementsAre("run.silent", "run.missing"));
}

/// "optim.groups.pattern" leads to a key or a section.
bool is_key(const std::string& path) {
  const config::Schema* schema = &spec::recipe_schema();
  const std::vector<std::string> names = split(path, '.');
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (const config::Part* part = schema->find_part(names[i])) {
      schema = part->schema.get();
    } else {
      return i + 1 == names.size() && schema->find_field(names[i]) != nullptr;
    }
  }
  return true;
}

TEST(Docs, EveryRecipeKeyThatAPageNamesExists) {
  const std::regex code("`([a-z_]+(?:\\.[a-z_0-9]+)+)(?: = [^`]*)?`");
  const std::set<std::string> endings = {"h", "cpp", "md", "toml", "json", "jsonl", "txt", "safetensors", "shard"};
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRIREME_DOCS)) {
    if (entry.path().extension() != ".md") continue;
    const std::string text = page(entry.path().filename().string());
    for (std::sregex_iterator at(text.begin(), text.end(), code), end; at != end; ++at) {
      const std::string path = (*at)[1];
      const std::vector<std::string> names = split(path, '.');
      if (spec::recipe_schema().find_part(names.front()) == nullptr || endings.contains(names.back())) continue;
      EXPECT_TRUE(is_key(path)) << entry.path().filename() << " names " << path;
      ++found;
    }
  }
  EXPECT_GT(found, 200U);
}

}  // namespace
}  // namespace trireme::cli
