// plan/graph/search/search.h -- every way of finding a strategy, on one cost model, with what each found.
//
// Methods: data-parallel, model-parallel, one-weird-trick and megatron are written down (baselines.h); optcnn
// eliminates nodes over degrees of sample, channel, height and width (elimination.h); tofu goes axis by axis,
// and back (tofu.cpp); alpa-intra also takes sums and, on meshes of two axes, every order of them, under the device's
// memory (limited.h, highs.h);
// flexflow simulates (flexflow.h). What they find is a strategy: text that can be read, edited, lowered and run, priced
// in the same way for all. alpa, pipedream, rannc, galvatron and torchgpipe find pipeline stages (pipelines.h): a plan
// (staged.h), which is text and runs as well.
// Depends on: baselines, elimination, limited, flexflow.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/graph/search/baselines.h"
#include "trireme/plan/graph/search/cost_table.h"
#include "trireme/plan/graph/search/elimination.h"
#include "trireme/plan/graph/search/limited.h"
#include "trireme/plan/graph/staged.h"

namespace trireme::plan::graph {

struct TofuStep {
  Strategy strategy;         ///< after this axis
  double added_seconds = 0;  ///< of communication
  double bytes = 0;          ///< that a rank sends, all axes so far
};
/// `heavy_are_split`: every cut divides every GEMM, convolution and attention, as in the paper, where only bytes count.
std::vector<TofuStep> tofu_steps(const Graph& both, const Pricing& pricing, bool heavy_are_split = false);
/// The recursion, and then its cuts again: each on top of all the others, and two or all of them at a time where the
/// graph is so small that it is quick, until none can be better. Of small graphs that is the best strategy at all.
Strategy tofu_revisited(const Graph& both, const Pricing& pricing, bool heavy_are_split = false);

struct Found {
  std::string method;
  Strategy strategy;
  StrategyCost cost;
  double search_seconds = 0;
  bool fits = true;             ///< into a device's memory
  std::optional<double> bound;  ///< nothing in the method's space costs less; equal to the cost: proven
  std::string note = {};        ///< "width 2, 41,230 entries"
  /// Of a method whose result has pipeline stages: what can run, and a line for each; `strategy` then says nothing.
  /// Empty: none.
  std::optional<StagedPlan> plan = {};
  std::string pipeline = {};
};

/// The speed-up that a method's paper states, over what and where: not what is compared with here.
struct Published {
  std::string_view speedup, over;
};
std::optional<Published> published_of(std::string_view method);

struct SearchLimits {
  double memory_bytes = 0;  ///< of a device
  double seconds = 30;      ///< for one method
};

std::vector<std::string> search_methods();
/// Nothing where the method is not made for such graphs. ConfigError for a name that is none.
std::optional<Found> search(const std::string& method, const Graph& both, const Pricing& pricing,
                            const SearchLimits& limits);

/// Why `other` is slower than `best`: the operators where it loses most, with what each strategy does there.
struct Difference {
  int op = -1;
  double seconds = 0;       ///< that it costs more there, gradients and what is inserted included
  std::string best, other;  ///< splits
};
std::vector<Difference> differences(const Graph& both, const Pricing& pricing, const Strategy& best,
                                    const Strategy& other, std::size_t most = 5);
/// Why an operator is split as it is: its node's best other choice while all others stay, and what it would cost more.
struct Reason {
  int op = -1;
  std::string split, other;
  double seconds = 0;  ///< of the node
  double more = 0;     ///< negative: the strategy could be bettered here
};
std::vector<Reason> explain(const Graph& both, const Pricing& pricing, const Strategy& strategy);

/// [forward operator] seconds with its gradients and what is inserted for it.
std::vector<double> seconds_by_op(const Graph& both, const Pricing& pricing, const Strategy& strategy);

}  // namespace trireme::plan::graph
