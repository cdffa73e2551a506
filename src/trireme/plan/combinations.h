// plan/combinations.h -- which two features run together: docs/combinations.md, made from the rules that runs go by.
//
// Depends on: features, run_setup, spec.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/features.h"
#include "trireme/spec/rules.h"

namespace trireme::plan {

/// A recipe with these features, and what is refused of it: of its own values, and by rules.
struct Combination {
  std::vector<const Feature*> features;
  spec::Recipe recipe;
  std::vector<config::Problem> problems;   ///< all that `trireme check` would say
  std::vector<const spec::Rule*> refused;  ///< the rules among them, each once
  bool accepted() const { return problems.empty(); }
};
/// Chosen in the order of features(), whatever the order here.
Combination combine(std::vector<const Feature*> features);

/// Whether the two can be in one recipe: they are no alternatives.
bool can_meet(const Feature& a, const Feature& b);

/// The page, and the same tables for a terminal.
std::string combinations_markdown();
std::string rules_text(std::size_t columns);

}  // namespace trireme::plan
