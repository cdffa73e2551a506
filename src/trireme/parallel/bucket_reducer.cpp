#include "trireme/parallel/bucket_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {
namespace {

constexpr std::array kKinds = {
    ReducerKind{"dense", make_dense_reducer},
    ReducerKind{"onebit-sgd", make_onebit_sgd},
    ReducerKind{"qsgd", make_qsgd},
    ReducerKind{"powersgd", make_powersgd},
    ReducerKind{"dgc", make_dgc},
    ReducerKind{"csc", make_csc},
    ReducerKind{"onebit-adam", make_onebit_adam},
    ReducerKind{"zero-one-adam", make_zero_one_adam},
    ReducerKind{"local-sgd", make_local_sgd},
    ReducerKind{"elastic-averaging", make_elastic_averaging},
    ReducerKind{"diloco", make_diloco},
};

}  // namespace

std::span<const ReducerKind> reducer_kinds() { return kKinds; }

MakeReducer* reducer_named(std::string_view name) {
  const auto found = std::ranges::find(kKinds, name, &ReducerKind::name);
  if (found != kKinds.end()) return found->make;
  std::vector<std::string> names;
  for (const ReducerKind& kind : kKinds) names.emplace_back(kind.name);
  throw ConfigError(fmt::format("there is no reduction of gradients called {}{}", name, did_you_mean(name, names)),
                    fmt::format("choose {}", listed(names)));
}

}  // namespace trireme::parallel
