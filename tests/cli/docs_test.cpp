// The pages that are made from the program say what the program says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/cli/run.h"

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

}  // namespace
}  // namespace trireme::cli
