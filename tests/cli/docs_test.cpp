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
