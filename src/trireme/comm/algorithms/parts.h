// comm/algorithms/parts.h -- the pieces that algorithms are put together from.
//
// Each part is one classical exchange among the ranks of a subgroup, written in the file named after its algorithm. A
// ring all-reduce is a ring reduce-scatter and a ring all-gather; Rabenseifner's is recursive halving and recursive
// doubling; the hierarchical ones run parts inside nodes and across them. `source` is where a rank's own contribution
// lies at the start and is only read; `into` is where partial results go. They may be the same memory, and no part
// copies a whole vector only to start from it.
// Depends on: comm/algorithms/builder.
#pragma once

#include <vector>

#include "trireme/comm/algorithms/builder.h"

namespace trireme::comm {

// ---- ring.cpp
/// Afterwards member i holds the combination of everyone's block i in into[i].
void ring_reduce_scatter(RoutineBuilder& to, const Subgroup& group, const std::vector<Bundle>& source,
                         const std::vector<Bundle>& into);
/// Member i starts with block i in `own`; afterwards everyone has the others' blocks in into[...].
void ring_all_gather(RoutineBuilder& to, const Subgroup& group, const Bundle& own, const std::vector<Bundle>& into);

// ---- recursive_doubling.cpp
/// A power of two of members; member i starts with block i in place.
void recursive_doubling_all_gather(RoutineBuilder& to, const Subgroup& group, const BlockBounds& blocks,
                                   const View& view);

// ---- halving_doubling.cpp
/// A power of two of members; afterwards member i holds the combination of block i in `last`.
void recursive_halving(RoutineBuilder& to, const Subgroup& group, const BlockBounds& blocks, View source,
                       const View& into, const View& last);
/// Everyone ends with the finished combination of `whole` in `into`. Any number of members.
void halving_doubling_all_reduce(RoutineBuilder& to, const Subgroup& group, ElementRange whole, const View& source,
                                 const View& into);

// ---- binomial.cpp
/// A binomial tree whose subtrees are runs of consecutive indices, whatever the root: what a subtree holds is then
/// consecutive too, so gather and scatter need no rotation of the blocks.
struct Tree {
  struct Child {
    int index, first, last;  // its subtree: indices first .. last-1
  };
  int parent = -1;
  int first = 0, last = 0;           // this subtree
  std::vector<Child> children = {};  // smallest subtree first
};
Tree binomial_tree(int size, int root, int me);
void binomial_broadcast(RoutineBuilder& to, const Subgroup& group, const Tree& tree, Slice buffer);
/// `into` is touched only by members with children.
void binomial_reduce(RoutineBuilder& to, const Subgroup& group, const Tree& tree, Slice source, Slice into);
/// Each member's own block is in `view` already; `view` holds at least this member's subtree.
void binomial_gather(RoutineBuilder& to, const Subgroup& group, const Tree& tree, const BlockBounds& blocks,
                     const View& view);
void binomial_scatter(RoutineBuilder& to, const Subgroup& group, const Tree& tree, const BlockBounds& blocks,
                      const View& view);

// ---- bruck.cpp
/// Nobody passes before everyone has arrived.
void dissemination(RoutineBuilder& to, const Subgroup& group);

// ---- pairwise.cpp
/// Afterwards `into` holds the combination of everyone's source[me].
void pairwise_reduce_scatter(RoutineBuilder& to, const Subgroup& group, const std::vector<Slice>& source, Slice into);

}  // namespace trireme::comm
