// experiment/rungs.h -- the arithmetic of early stopping: rungs, brackets and how many trials each gets.
//
// Successive halving: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification" (AISTATS 2016). Hyperband: Li et
// al. (JMLR 2018), algorithm 1. ASHA: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020).
// All in whole numbers: a logarithm that comes out as 4.999 would lose a bracket.
// Depends on: std.
#pragma once

#include <cstdint>
#include <vector>

namespace trireme::experiment {

/// A rung of synchronous halving: so many trials are trained until this step.
struct Rung {
  int trials = 0;
  std::int64_t steps = 0;
  bool operator==(const Rung&) const = default;
};
using Bracket = std::vector<Rung>;

/// `trials` at the first rung of successive halving, a `divisor`-th of them at the next, which trains `divisor` times
/// as long; the last rung trains `max_steps`. At most `rungs`, fewer where steps or trials do not suffice.
Bracket halving_bracket(int trials, std::int64_t max_steps, int divisor, int rungs);

/// Hyperband's brackets for at most `max_steps`, counted in units of `min_steps`; the most aggressive first.
std::vector<Bracket> hyperband_brackets(std::int64_t max_steps, std::int64_t min_steps, int divisor);

/// ASHA's rungs in steps: max_steps / divisor^k, the smallest first; those below `min_steps` are left out.
std::vector<std::int64_t> asha_rungs(std::int64_t max_steps, std::int64_t min_steps, int divisor, int rungs);

/// ASHA, stopping: whether a trial goes on whose rank (0: best) is `rank` among `count` seen at a rung, itself
/// included.
bool goes_on(int rank, int count, int divisor);

/// How careful adaptive ASHA is: which of its brackets, each with another number of rungs, it has.
enum class Mode : std::uint8_t {
  kAggressive,    ///< all rungs only
  kStandard,      ///< half of them to all
  kConservative,  ///< one, which stops nothing, to all
};
/// Rungs of each bracket, most first.
std::vector<int> bracket_rungs(Mode mode, int rungs);
/// Trials of each bracket: in proportion to divisor^(rungs - 1) / rungs, so that brackets cost about the same; what
/// rounding leaves goes to the first.
std::vector<int> bracket_trials(int trials, int divisor, const std::vector<int>& rungs);
/// Trials of each bracket at once: even, what is left to the first ones; each at least one.
std::vector<int> bracket_concurrency(int concurrent, int brackets);

}  // namespace trireme::experiment
