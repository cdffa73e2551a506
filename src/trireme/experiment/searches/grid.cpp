// Grid search: every combination of the parameters' values. The last parameter varies fastest.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/experiment/searches/full_training.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

std::vector<Setting> grid_settings(const Space& space) {
  constexpr std::size_t kMost = 100'000;
  std::vector<Setting> all{{}};
  for (const Parameter& parameter : space.parameters) {
    const std::vector<std::string> values = grid_values(parameter);
    if (all.size() * values.size() > kMost) {
      throw ConfigError(fmt::format("the grid has more than {} combinations", kMost),
                        "leave parameters or values out, or search with --search random --trials N");
    }
    std::vector<Setting> more;
    for (const Setting& setting : all) {
      for (const std::string& value : values) {
        more.push_back(setting);
        more.back().push_back({.key = parameter.key, .value = value});
      }
    }
    all = std::move(more);
  }
  // Parameters that do not apply make combinations equal: each is trained once.
  std::vector<Setting> distinct;
  for (const Setting& setting : all) {
    Setting kept = applicable(space, setting);
    if (std::ranges::find(distinct, kept) == distinct.end()) distinct.push_back(std::move(kept));
  }
  return distinct;
}

}  // namespace

std::unique_ptr<Search> make_grid(const SearchOptions& options) {
  std::vector<Setting> settings = grid_settings(options.space);
  const auto trials = static_cast<int>(settings.size());
  return std::make_unique<FullTraining>(
      trials, options.max_steps, [settings = std::move(settings)](int trial, int draw) -> std::optional<Setting> {
        if (draw > 0) return std::nullopt;  // an invalid combination has no other to stand for it
        return settings[static_cast<std::size_t>(trial)];
      });
}

}  // namespace trireme::experiment
