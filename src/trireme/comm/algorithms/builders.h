// comm/algorithms/builders.h -- every algorithm made of sends and receives; table.cpp lists them.
//
// Each takes the shape and the rank and gives that rank's routine; called with two ranks or more. Algorithms that
// cannot serve every shape have a `..._refuses`, which says why.
// Depends on: comm/routine.
#pragma once

#include <string>

#include "trireme/comm/routine.h"

namespace trireme::comm {

Routine ring_all_reduce(const Shape& shape, int rank);
Routine ring_reduce_scatter(const Shape& shape, int rank);
Routine ring_all_gather(const Shape& shape, int rank);

Routine recursive_doubling_all_reduce(const Shape& shape, int rank);
Routine recursive_doubling_all_gather(const Shape& shape, int rank);
std::string recursive_doubling_all_gather_refuses(const Shape& shape);

Routine halving_doubling_all_reduce(const Shape& shape, int rank);
Routine halving_doubling_reduce(const Shape& shape, int rank);
Routine halving_doubling_reduce_scatter(const Shape& shape, int rank);

Routine binomial_all_reduce(const Shape& shape, int rank);
Routine binomial_broadcast(const Shape& shape, int rank);
Routine binomial_reduce(const Shape& shape, int rank);
Routine binomial_gather(const Shape& shape, int rank);
Routine binomial_scatter(const Shape& shape, int rank);

Routine scatter_all_gather_broadcast(const Shape& shape, int rank);

Routine bruck_all_gather(const Shape& shape, int rank);
Routine bruck_all_to_all(const Shape& shape, int rank);
Routine bruck_barrier(const Shape& shape, int rank);
std::string bruck_refuses(const Shape& shape);

Routine pairwise_all_to_all(const Shape& shape, int rank);
Routine pairwise_reduce_scatter(const Shape& shape, int rank);

Routine linear_broadcast(const Shape& shape, int rank);
Routine linear_reduce(const Shape& shape, int rank);
Routine linear_gather(const Shape& shape, int rank);
Routine linear_scatter(const Shape& shape, int rank);
Routine linear_all_gather(const Shape& shape, int rank);
Routine linear_all_to_all(const Shape& shape, int rank);

Routine hierarchical_all_reduce(const Shape& shape, int rank);
Routine hierarchical_reduce_scatter(const Shape& shape, int rank);
Routine hierarchical_all_gather(const Shape& shape, int rank);
Routine hierarchical_broadcast(const Shape& shape, int rank);
Routine hierarchical_reduce(const Shape& shape, int rank);
Routine hierarchical_barrier(const Shape& shape, int rank);
std::string hierarchical_refuses(const Shape& shape);

}  // namespace trireme::comm
