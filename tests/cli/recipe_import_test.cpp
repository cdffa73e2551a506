// Configurations in the style of those that people use, and the recipes that they become: tests/cli/imports/.
// A new one: put it there, run `trireme recipe import` with its options, look at every line, keep it as NAME.recipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/run.h"
#include "tests/files.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kImports = TRIREME_IMPORTS;

/// The configurations that are imported, and those that are refused: NAME.refused stands beside them.
std::vector<fs::path> configurations(bool refused) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(kImports)) {
    const fs::path& path = entry.path();
    const bool is_one = path.extension() == ".json" || path.extension() == ".args" || path.extension() == ".toml";
    if (is_one && fs::exists(fs::path(path).replace_extension(".refused")) == refused) found.push_back(path);
  }
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> import_of(const fs::path& path) {
  std::vector<std::string> words = {"recipe", "import"};
  words.push_back(path.extension() == ".json"   ? "--deepspeed"
                  : path.extension() == ".args" ? "--megatron"
                                                : "--torchtitan");
  words.push_back(path.string());
  if (const fs::path options = fs::path(path).replace_extension(".options"); fs::exists(options)) {
    for (const std::string& line : split(read_all(options), '\n')) {
      for (const std::string& word : split(line, ' ')) {
        if (!word.empty()) words.push_back(word);
      }
    }
  }
  return words;
}

TEST(RecipeImport, MakesTheRecipesThatAreExpected) {
  const auto paths = configurations(/*refused=*/false);
  EXPECT_EQ(paths.size(), 20U);
  for (const fs::path& path : paths) {
    const Outcome outcome = run(import_of(path));
    ASSERT_EQ(outcome.code, kExitFine) << path << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, read_all(fs::path(path).replace_extension(".recipe"))) << path;
  }
}

TEST(RecipeImport, RefusesWithEveryKeyNamed) {
  const auto paths = configurations(/*refused=*/true);
  EXPECT_GE(paths.size(), 2U);
  for (const fs::path& path : paths) {
    const Outcome outcome = run(import_of(path));
    EXPECT_EQ(outcome.code, kExitUsage) << path;
    for (const std::string& line : split(read_all(fs::path(path).replace_extension(".refused")), '\n')) {
      if (line.empty()) continue;
      EXPECT_THAT(outcome.err, HasSubstr(line)) << path;
    }
  }
}

class RecipeImportFiles : public OwnFolder {};

TEST_F(RecipeImportFiles, CheckReadsWhatIsWritten) {
  const std::string out = folder_ / "imported.toml";
  const Outcome outcome =
      run({"recipe", "import", "--megatron", (kImports / "mg-gpt-distributed.args").string(), "-o", out});
  ASSERT_EQ(outcome.code, kExitFine) << outcome.err;
  const Outcome check = run({"check", out, "--ranks", "8", "--no-files", "--cluster", "dgx-h100"});
  EXPECT_EQ(check.code, kExitFine) << check.out << check.err;
  EXPECT_THAT(run({"recipe", "import", "--megatron", "--bf16", "-o", out}).err, HasSubstr("already there"));
}

TEST_F(RecipeImportFiles, SaysWhatIsNoConfiguration) {
  write_all(folder_ / "list.json", "[1]");
  write_all(folder_ / "bad.toml", "a = = 1");
  EXPECT_THAT(run({"recipe", "import"}).err, HasSubstr("--deepspeed"));
  EXPECT_THAT(run({"recipe", "import", "--deepspeed", folder_ / "list.json"}).err, HasSubstr("no JSON object"));
  EXPECT_THAT(run({"recipe", "import", "--torchtitan", folder_ / "bad.toml"}).err, HasSubstr("bad.toml:1"));
  EXPECT_THAT(run({"recipe", "import", "--megatron", "no such file"}).err, HasSubstr("before any argument"));
}

}  // namespace
}  // namespace trireme::cli
