// comm/routine_check.h -- proves the routines of all ranks right, and times them, without running anything.
//
// Whoever adds an algorithm asks check_algorithm(): it executes the routines on symbols instead of numbers, so that the
// answer holds for all data, for memory that input and output share or not, and for every order in which messages may
// arrive. replay() walks the same routines with the alpha-beta-gamma model; the closed formulas of the cost room are
// tested against it.
// Depends on: comm/routine, cost.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/routine.h"

namespace trireme::comm {

/// Everything wrong with routines[rank] taken together, each sentence naming rank, step and peer; empty when they do
/// what the operation asks for. `shapes` has one entry for each rank. Checked are:
/// - form: slices inside their memory, input never written, every post waited for once, after it was posted;
/// - messages: as many sends as receives between any two ranks, pairwise of one length;
/// - progress: no deadlock, even if a send only ends when its receive was posted (rendezvous);
/// - memory: nothing touched while a posted step uses it, nothing read before it was written;
/// - results: every element combined from each rank exactly once and finished exactly once, and for all_reduce in the
///   same order on all ranks (up to swapping operands), so that the bits agree;
/// - all of it again in place, for the operations that can be called so.
std::vector<std::string> check_routines(std::span<const Shape> shapes, std::span<const Routine> routines);
/// The routines of `entry` for these shapes; empty, too, when the algorithm refuses them on all ranks.
std::vector<std::string> check_algorithm(const AlgorithmEntry& entry, std::span<const Shape> shapes);

using LinkBetween = std::function<cost::LinkCost(int from, int to)>;
/// Seconds until the last rank is done. A message takes alpha + bytes*beta, starts when both sides have posted it, and
/// occupies its sender's way out and its receiver's way in; both ways of a rank work at the same time. Combining takes
/// gamma a byte (of the link it came over), one thing at a time on each rank; copies are free.
double replay(std::span<const Routine> routines, std::size_t element_bytes, const LinkBetween& link);
double replay(std::span<const Routine> routines, std::size_t element_bytes, const cost::LinkCost& link);

}  // namespace trireme::comm
