// plan/layout_matrix.h -- the layouts that so many ranks can have, and a sample of them in which every two features
// meet.
//
// Depends on: base, schedule, spec.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/spec/layout_check.h"
#include "trireme/spec/parallel_config.h"

namespace trireme::plan {

struct LayoutCase : spec::ParallelConfig {
  std::vector<std::string> features;  ///< "tp", "sequence parallel", "ring", "zero 2", "zb-v", ...
  std::string text() const;           ///< "dp=2 tp=2 sp pp=2 zb-v zero=3"
};
struct RefusedLayout {
  std::string text, reason;
};
struct LayoutMatrix {
  std::vector<LayoutCase> cases;
  std::vector<RefusedLayout> refused;
};

/// Every layout of task.ranks ranks: all ways to share them among the axes, with every kind of context parallelism,
/// every schedule and every stage of ZeRO. Refused are those whose axes do not divide what they split; what else of a
/// recipe a layout does not go with, the rules of spec/rules.h say.
LayoutMatrix all_layouts(const spec::LayoutTask& task);

/// Features in the order in which tables show them, those of some case only.
std::vector<std::string> features_of(const std::vector<LayoutCase>& cases);

/// At least `least` of the cases that count (all, where nothing is given; as many as there are), so that any two
/// features which some case has together are together in one of these. The same sample for the same seed.
std::vector<LayoutCase> cover_pairs(const std::vector<LayoutCase>& cases, std::size_t least, std::uint64_t seed,
                                    const std::function<bool(const LayoutCase&)>& counts = {});

/// "tp=2 pp=2 schedule=zb-v zero=1 sp": keys of [layout], and "schedule", "virtual_stages" and "sp". ConfigError for
/// any other.
LayoutCase parse_layout(const std::string& text);

}  // namespace trireme::plan
