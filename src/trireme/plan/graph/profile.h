// plan/graph/profile.h -- what operators and conversions took on a device, measured one by one: the papers' profiles.
//
//   OperatorProfile profile = parse_profile(text, "vgg16.profile");
//   Pricing pricing(hardware, mesh, arithmetic, &profile);     // measured where it was measured, else the roofline
//
// OptCNN, FlexFlow, RaNNC and Galvatron measure each operator once for each way in which it may be split, and add up or
// simulate what they measured. The key is what decides a kernel's time: kind, function, windows and the sizes of a
// device's part. Operators of different layers that compute the same have one entry.
// Depends on: sharding.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/graph/sharding.h"

namespace trireme::plan::graph {

struct OperatorProfile {
  std::map<std::string, double, std::less<>> seconds;  ///< [key]
  std::optional<double> of(std::string_view key) const;
  bool operator==(const OperatorProfile&) const = default;
};

/// What passes between two operators beside their own time: an executor finds operands, frees what is read no more.
inline constexpr std::string_view kBetweenOperators = "between-operators";

/// Of one device's part, where dimension i of the iteration space is split into degrees[i] parts; empty: the whole.
std::string profile_key(const Graph& graph, const Op& op, const IterationSpace& space,
                        std::span<const int> degrees = {});
/// Of one step of a conversion, on a block of these sizes along `ranks` ranks.
std::string profile_key(const Step& step, int ranks, const std::vector<Index>& sizes, DType dtype);
/// The sizes of the block after that step.
std::vector<Index> sizes_after(const Step& step, int ranks, std::vector<Index> sizes);

/// "operator-profile", then a line each: microseconds and key.
std::string to_text(const OperatorProfile& profile);
OperatorProfile parse_profile(std::string_view text, const std::string& source);

}  // namespace trireme::plan::graph
