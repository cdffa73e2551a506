// tests/comm/collective_checks.h -- bodies of tests that every rank of any transport can run: each says in words what
// it first found wrong, or nothing.
//
// All ranks make the same calls; a rank that finds something returns at once, so its caller must throw (check_on does),
// which wakes the others. No test framework here: a plain program under mpirun runs the same bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/comm/reference.h"
#include "trireme/comm/group.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

/// Runs the body on every one of so many ranks: threads, processes, with or without an emulated network.
using Runner = std::function<void(int ranks, const std::function<void(Rank&)>& body)>;
using Check = std::function<std::string(Rank&)>;

class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the check found wrong on some rank, or the error that ended it.
std::string check_on(const Runner& run, int ranks, const Check& check);

/// Which part of (operation x algorithm x even or uneven blocks x type x reduction x size) is tried. Root, in place or
/// not, and alignment are drawn for each call from its hash.
struct Sweep {
  std::uint64_t seed = 1;
  std::vector<std::size_t> counts = {0, 1, 7, 1300, 20011};  // elements; of blocks: of all ranks' together
  /// One in so many of the calls with at least 1,000 elements, and of the smaller ones.
  std::uint64_t large_one_in = 1, small_one_in = 1;
  Place place = {};  // on a GPU: only the algorithm that the group chooses
};
/// Every collective with every algorithm that the group offers, and with the one it chooses.
std::string check_collectives(Group& group, const Sweep& sweep);

/// Sends and receives among all pairs, itself included: several tags, received in another order than sent.
std::string check_messages(Group& group, std::uint64_t seed, const Place& place = {});

/// Random floats: the same call twice, in place and not, gives the same bits; all_reduce the same bits on all ranks;
/// and all are as near to the exact result as the roundings on the way allow.
std::string check_float_bits(Group& group, std::uint64_t seed);
/// NaN is passed on by minimum and maximum, and -0 is less than +0.
std::string check_extremes(Group& group, std::uint64_t seed);

/// A program drawn from the seed: splits, then collectives and messages on all groups, all under way at once, waited
/// for in an order of each rank's own; the groups' calls are interleaved differently on each rank. With a GPU some
/// calls are on its memory, some on the host's.
std::string check_program(Rank& self, std::uint64_t seed, const Place& place = {});
/// A receive posted first is satisfied last, after collectives on other groups that were waited for.
std::string check_early_receive(Rank& self, std::uint64_t seed, const Place& place = {});

}  // namespace trireme::comm
