// bench/ranks.h -- a benchmark's body on ranks that are processes.
#pragma once

#include <cstdio>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/process.h"

namespace trireme::bench {

/// On those that a launcher has started, else on `ranks` that the recipe's transport starts. The exit status.
inline int run_on_ranks(spec::Recipe recipe, int ranks, const std::function<void(comm::Rank&)>& body) {
  if (comm::detect_launch().kind == comm::Launch::Kind::kSingle) recipe.comm.ranks = ranks;
  try {
    cli::start_ranks(recipe, body);
  } catch (const Error& error) {
    std::fputs(error.block().c_str(), stderr);
    return 1;
  }
  return 0;
}

}  // namespace trireme::bench
