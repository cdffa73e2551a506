#include <gtest/gtest.h>

#include <string_view>

#include "tests/base/config_sample.h"
#include "trireme/base/random.h"

namespace trireme::sample {
namespace {

/// Random damage to a text: bytes changed, dropped, doubled; pieces moved, and pieces of TOML put in.
class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed, "mutations") {}

  std::string mutate(std::string text) {
    for (std::uint64_t i = 1 + below(6); i > 0; --i) mutate_once(text);
    return text;
  }
  std::uint64_t below(std::uint64_t n) { return random_.below(n, draw_++); }

 private:
  void mutate_once(std::string& text) {
    static constexpr std::string_view kPieces[] = {
        "[",      "]",     "[[",    "\"",         "'''",
        "\"\"\"", "=",     "\n",    ".",          "\\u",
        "{",      "}",     ",",     "1979-05-27", "nan",
        "-inf",   "0x",    "1e999", "#",          "\\",
        "true",   "blend", "ranks", "[basics]",   "99999999999999999999",
        "-1",     "\xff",  "\xc3",  "\xf0\x9f",   "\"9P\"",
    };
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 1:
        if (at < text.size()) text.erase(at, 1 + below(20));
        break;
      case 2:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        break;
      case 4:
        text.resize(at);
        break;
      default:
        text.insert(at, std::string(below(300), "[{(\"'a9"[below(7)]));
    }
  }

  Random random_;
  std::uint64_t draw_ = 0;
};

/// Whatever is read must be writable and readable again; whatever is not must say where it is wrong.
void expect_read_or_refused(const config::Input& input, int& accepted) {
  try {
    const auto loaded = config::load<All>(input);
    ++accepted;
    ASSERT_EQ(config::load<All>({.text = config::show(loaded)}).value, loaded.value) << config::show(loaded);
  } catch (const config::ProblemsError& error) {
    ASSERT_FALSE(error.problems().empty());
    for (const auto& problem : error.problems()) {
      ASSERT_FALSE(problem.where.empty()) << error.what();
      ASSERT_FALSE(problem.reason.empty()) << error.what();
    }
  }
}

TEST(ConfigFuzz, DamagedFilesAreReadOrRefused) {
  Mutator mutator(1);
  int accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string text = mutator.mutate(kText);
    SCOPED_TRACE(text);
    expect_read_or_refused({.file = "fuzz.toml", .text = text}, accepted);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 50) << "damage that always shows tests only the first check";
  EXPECT_LT(accepted, 4000);
}

TEST(ConfigFuzz, DamagedOverridesAreReadOrRefused) {
  const std::vector<std::string> sets = {"basics.on=true",       "basics.ranks=4",     "basics.buffer=64 MiB",
                                         "basics.deadline=1h5m", "basics.sizes=[1,2]", "basics.inner.limit=3",
                                         "basics.rate=0.5",      "blend.0.path=abc",   "basics.shapes=round,square"};
  Mutator mutator(2);
  int accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string set = mutator.mutate(sets[mutator.below(sets.size())]);
    SCOPED_TRACE(set);
    expect_read_or_refused({.file = "fuzz.toml", .text = kText, .sets = {set}}, accepted);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, 50);
  EXPECT_LT(accepted, 4000);
}

}  // namespace
}  // namespace trireme::sample
