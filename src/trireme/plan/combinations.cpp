#include "trireme/plan/combinations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "trireme/base/text.h"
#include "trireme/plan/run_setup.h"

namespace trireme::plan {
namespace {

constexpr const char* kCombinationsHead = R"(<!-- Made by `make docs` from the program; do not edit. -->
# What works together

Every feature below was combined with every other in one tiny recipe, {} pairs, and asked for the rules that `trireme
check` and `trireme train` go by (`src/trireme/spec/rules.h`). {} pairs are refused; all others run. A test trains them on
threads as ranks. The same text on a terminal: `trireme recipe rules`.

## Refused pairs

What is not named here works with the feature of its row.

)";

constexpr const char* kCombinationRulesHead = R"(
## Rules

Each refusal names the keys with their values and a change that works. *By definition*: the two have no meaning together,
or sizes do not divide. *Not built*: it could be.

)";

/// The rules by which a pair is refused that neither of its features is refused by alone.
struct FeaturePairs {
  int met = 0, refused = 0;
  std::map<const Feature*, std::vector<const Feature*>> not_with;
};

FeaturePairs all_feature_pairs() {
  FeaturePairs pairs;
  const auto all = features();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      if (!can_meet(all[i], all[j])) continue;
      ++pairs.met;
      if (combine({&all[i], &all[j]}).accepted()) continue;
      ++pairs.refused;
      pairs.not_with[&all[i]].push_back(&all[j]);
      pairs.not_with[&all[j]].push_back(&all[i]);
    }
  }
  return pairs;
}

TextTable rules_table() {
  TextTable table({{"rule"}, {"refuses"}, {"why"}, {"because"}});
  for (const spec::Rule& rule : spec::rules()) {
    table.add({std::string(rule.name), std::string(rule.refuses), std::string(rule.why),
               rule.because == spec::Because::kDefinition ? "by definition" : "not built"});
  }
  return table;
}

TextTable refused_pairs_table(const FeaturePairs& pairs) {
  TextTable table({{"feature"}, {"is refused with"}});
  for (const Feature& feature : features()) {
    const auto found = pairs.not_with.find(&feature);
    if (found == pairs.not_with.end()) continue;
    std::vector<std::string> names;
    for (const Feature* other : found->second) names.push_back(other->name);
    table.add({feature.name, fmt::format("{}", fmt::join(names, ", "))});
  }
  return table;
}

std::string never_refused_features(const FeaturePairs& pairs) {
  std::vector<std::string> names;
  for (const Feature& feature : features()) {
    if (!pairs.not_with.contains(&feature)) names.push_back(feature.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

bool can_meet(const Feature& a, const Feature& b) { return &a != &b && (a.group.empty() || a.group != b.group); }

Combination combine(std::vector<const Feature*> features) {
  std::ranges::sort(features);  // pointers into one list
  Combination made{.features = features, .recipe = feature_base(), .problems = {}, .refused = {}};
  for (const Feature* feature : features) feature->choose(made.recipe);
  made.problems = spec::find_problems(made.recipe);
  const auto shape = spec::shape_of(made.recipe.model);
  const auto refusals = spec::find_refusals(run_setup(made.recipe, *shape, {.ranks = ranks_of(made.recipe)}));
  for (const spec::Refusal& refusal : refusals) {
    if (refusal.rule->needs != spec::RuleNeeds::kRecipe) made.problems.push_back(refusal.problem);
    if (std::ranges::find(made.refused, refusal.rule) == made.refused.end()) made.refused.push_back(refusal.rule);
  }
  return made;
}

std::string combinations_markdown() {
  const FeaturePairs pairs = all_feature_pairs();
  std::string page = fmt::format(kCombinationsHead, pairs.met, pairs.refused);
  page += refused_pairs_table(pairs).markdown();
  page += fmt::format("\n{}\n",
                      fmt::join(wrapped("Refused with nothing: " + never_refused_features(pairs) + ".", 120), "\n"));
  return page + kCombinationRulesHead + rules_table().markdown();
}

std::string rules_text(std::size_t columns) {
  return fmt::format("{}\n{}", refused_pairs_table(all_feature_pairs()).text("", columns),
                     rules_table().text("", columns));
}

}  // namespace trireme::plan
