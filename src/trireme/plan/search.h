// plan/search.h -- the best layout for a job on a number of devices, and why the others lost.
//
// Goes over the whole product of what is left open: tensor, pipeline, context and data parallelism, virtual stages,
// micro-batch, ZeRO stage, recomputation. What does not fit is put aside by its memory alone; the rest is timed by the
// closed form; the best few are timed again by replaying their schedules, and that decides.
// Depends on: estimate.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/plan/estimate.h"

namespace trireme::plan {

/// What is given; the rest is chosen.
struct Choices {
  std::optional<int> tp, pp, dp, cp, ep, virtual_stages;
  std::optional<std::int64_t> micro_batch_size;
  std::optional<int> zero;
  std::optional<bool> sequence_parallel;
  std::optional<Recompute> recompute;
  std::optional<Offload> offload;  ///< none unless given
  std::optional<std::string> schedule;
};

struct SearchOptions {
  Choices given;
  std::size_t top = 10;
  bool replay = true;
};

/// Layouts that lost for the same reason: how many, and the fastest of them.
struct Loss {
  std::size_t count = 0;
  std::optional<Estimate> best;
};

struct SearchResult {
  std::vector<Estimate> best;    ///< fastest first; empty when nothing fits
  std::vector<Estimate> pareto;  ///< fastest first, each with less memory than those before; among what fits
  std::size_t tried = 0, fitting = 0;
  std::optional<Estimate> smallest;    ///< the one with the least memory, whether it fits or not
  std::map<std::string, Loss> losses;  ///< "does not fit in memory", "is slower"
};

/// All layouts of `gpus` devices that agree with what is given. Throws ConfigError when there is none at all, with
/// the problems of the nearest one.
std::vector<Layout> all_layouts(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given);

SearchResult search(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options);

}  // namespace trireme::plan
