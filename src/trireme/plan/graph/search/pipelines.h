// plan/graph/search/pipelines.h -- searches whose result has pipeline stages, on the graphs and costs of all the
// others.
//
// What a stage takes comes from the same tables: Alpa's from the best intra-operator plan on each submesh, the others'
// from operators on one device and the cost of collectives. A step has micro-batches; sends between stages are priced.
// Depends on: chain, inter_op, rannc, galvatron, search.
#pragma once

#include <optional>

#include "trireme/plan/graph/search/search.h"

namespace trireme::plan::graph {

Found search_alpa_stages(const Graph& both, const Pricing& pricing, const SearchLimits& limits);
Found search_pipedream(const Graph& both, const Pricing& pricing, const SearchLimits& limits);
Found search_rannc(const Graph& both, const Pricing& pricing, const SearchLimits& limits);
/// torchgpipe's (Kim 2020, 2004.09910): a stage on each device, balanced by time; every stage recomputes its
/// activations.
Found search_torchgpipe(const Graph& both, const Pricing& pricing, const SearchLimits& limits);
/// Nothing where the number of devices is no power of two.
std::optional<Found> search_galvatron(const Graph& both, const Pricing& pricing, const SearchLimits& limits);

}  // namespace trireme::plan::graph
