// plan/search.h -- the best configuration for a job on a number of devices, and why the others lost.
//
// Goes over the whole product of what is left open: tensor, pipeline, context, expert and data parallelism, schedules,
// virtual stages, uneven stages, micro-batch, sequence parallelism, recomputation, ZeRO stage and groups, offload. What
// does not fit is put aside by its memory alone; the rest is timed by the closed form; what is told of is timed again
// by replaying its schedule, and that decides. So a configuration has one time wherever it appears.
// Depends on: estimate.
#pragma once

#include <cstddef>
#include <functional>
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
  std::optional<int> zero_group;  ///< 0: all replicas
  std::optional<bool> sequence_parallel;
  std::optional<spec::RecomputeKind> recompute;
  std::optional<spec::OffloadKind> offload;
  std::optional<std::string> schedule, split;
  std::optional<spec::ContextKind> cp_kind;  ///< all-gather unless given
  /// Schedules to choose from where none is given; empty: kSearchedSchedules.
  std::vector<std::string> schedules = {};
  ParallelConfig base = {};  ///< whose other keys stay
};

/// Those that are emptied at the end of a step and for some shape better than the others. GPipe and breadth-first are
/// as slow as 1F1B and interleaved and save more activations; zb-h2 needs steps that overlap.
inline constexpr const char* kSearchedSchedules[] = {"1f1b",       "interleaved", "zb-h1",  "zb-v",
                                                     "dualpipe-v", "dualpipe",    "chimera"};

struct SearchOptions {
  Choices given = {};
  std::size_t top = 10;
  bool replay = true;
  bool front = true;                   ///< also the front of time and memory
  bool decisions = false;              ///< also what each decision made otherwise would cost
  ScheduleCache* schedules = nullptr;  ///< of the same job, from search to search; null: one of its own
};

/// Configurations that lost for the same reason: how many, and the fastest of them.
struct LeftOut {
  std::size_t count = 0;
  std::optional<Estimate> best;
};

/// One value of one decision.
struct Alternative {
  std::string value;
  std::size_t layouts = 0, fitting = 0;
  Estimate best;  ///< the fastest that fits; where none does, the one with the least memory
  bool fits = false;
};

struct DegreeChoice {
  std::string name;  ///< "tp"
  std::string best;  ///< the value that the best configuration has
  std::vector<Alternative> alternatives;
};

struct SearchResult {
  std::vector<Estimate> best;    ///< fastest first; empty when nothing fits
  std::vector<Estimate> pareto;  ///< from the best on, each with less memory than those before; among what fits
  std::size_t tried = 0, fitting = 0;
  std::optional<Estimate> smallest;         ///< the one with the least memory, whether it fits or not
  std::map<std::string, LeftOut> left_out;  ///< "does not fit in memory", "is slower"
  std::vector<DegreeChoice> decisions;      ///< those with more than one value, where asked for
};

/// Every configuration of `gpus` devices that agrees with what is given. Those that differ only in ZeRO and offload
/// come one after the other, `fresh` at the first of them. Throws config::ProblemsError when there is none at all, with
/// the problems of the nearest one.
void for_each_config(const cost::Hardware& hardware, const Job& job, int gpus, const Choices& given,
                     const std::function<void(const ParallelConfig& config, bool fresh)>& visit);

SearchResult search(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options);

}  // namespace trireme::plan
