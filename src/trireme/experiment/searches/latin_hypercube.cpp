// Latin hypercube sampling: McKay, Beckman and Conover (Technometrics 1979). Each parameter's range has as many strata
// as there are trials; every stratum of every parameter is drawn from once.
#include <fmt/format.h>

#include "trireme/base/permutation.h"
#include "trireme/experiment/searches/full_training.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {

std::unique_ptr<Search> make_latin_hypercube(const SearchOptions& options) {
  return std::make_unique<FullTraining>(options.trials, options.max_steps, [options](int trial, int draw) {
    const auto strata = static_cast<std::uint64_t>(options.trials);
    std::vector<double> units;
    for (const Parameter& parameter : options.space.parameters) {
      const Random random(options.seed, fmt::format("sweep/strata/{}", parameter.key));
      const Permutation order(random, strata);
      // An invalid setting is drawn again within its strata.
      const Random within(options.seed, fmt::format("sweep/{}/trial {}/draw {}", parameter.key, trial, draw));
      const auto stratum = static_cast<double>(order.at(static_cast<std::uint64_t>(trial)));
      units.push_back((stratum + within.uniform(0)) / static_cast<double>(strata));
    }
    return std::optional(setting_at(options.space, units));
  });
}

}  // namespace trireme::experiment
