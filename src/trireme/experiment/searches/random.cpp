// Random search: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization" (JMLR 2012).
#include "trireme/experiment/searches/full_training.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {

std::unique_ptr<Search> make_random(const SearchOptions& options) {
  return std::make_unique<FullTraining>(options.trials, options.max_steps, [options](int trial, int draw) {
    return std::optional(random_setting(options.space, options.seed, trial, draw));
  });
}

}  // namespace trireme::experiment
