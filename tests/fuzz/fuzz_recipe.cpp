// Recipes: any text is either a recipe that is written and read back the same, or an error.
#include <string_view>

#include "tests/fuzz/fuzz.h"
#include "trireme/base/error.h"
#include "trireme/spec/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const spec::Recipe recipe = spec::load_recipe({.file = "fuzzed.toml", .text = text}).value;
    const std::string written = config::to_toml(recipe);
    fuzz::require(spec::load_recipe({.file = "written.toml", .text = written}).value == recipe,
                  "what is written is read again as the same");
  } catch (const Error&) {
  }
  return 0;
}
