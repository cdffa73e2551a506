#include "trireme/parallel/mesh_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::parallel {

MeshGroups::MeshGroups(comm::Group& world, layout::Mesh mesh) : world_(world), mesh_(std::move(mesh)) {
  if (mesh_.ranks() != world.size()) {
    throw ConfigError(fmt::format("the layout {} has {} ranks, but there are {}", layout::to_text(mesh_), mesh_.ranks(),
                                  world.size()));
  }
}

comm::Group* MeshGroups::along(const layout::AxisNames& axes, int lane) {
  layout::AxisNames names = axes;
  std::ranges::sort(names);
  if (mesh_.group_size(names) == 1) return nullptr;
  const auto [entry, is_new] = groups_.try_emplace({names, lane});
  if (is_new) {
    const std::vector<int> members = mesh_.group(rank(), names);
    std::string name = fmt::format("{} {}", fmt::join(names, "."), members.front());
    if (lane > 0) name += fmt::format(" lane {}", lane);
    if (lane == kUpdateLane) name += " of updates";
    entry->second = world_.split(members.front(), rank(), name);
  }
  return entry->second.get();
}

void MeshGroups::agree_on(const std::vector<layout::AxisNames>& wanted, int lanes, int first) {
  if (world_.size() == 1) return;
  std::string mine;
  for (layout::AxisNames axes : wanted) {
    std::ranges::sort(axes);
    mine += fmt::format("{};", fmt::join(axes, " "));
  }
  auto longest = static_cast<std::int64_t>(mine.size());
  world_.all_reduce(comm::Buffer{&longest, 1, comm::DType::kI64}, comm::Reduce::kMax).wait();
  if (longest == 0) return;
  mine.resize(static_cast<std::size_t>(longest), ';');
  std::string everybodys(mine.size() * static_cast<std::size_t>(world_.size()), ';');
  world_
      .all_gather(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kU8},
                  comm::Buffer{everybodys.data(), everybodys.size(), comm::DType::kU8})
      .wait();
  std::set<std::string> sets;
  for (std::string& text : split(everybodys, ';')) sets.insert(std::move(text));
  sets.erase("");  // what fills up shorter lists
  for (const std::string& axes : sets) {
    for (int lane = first; lane < first + lanes; ++lane) along(split(axes, ' '), lane);
  }
}

std::vector<comm::Group*> MeshGroups::all() const {
  std::vector<comm::Group*> groups;
  for (const auto& [axes, group] : groups_) groups.push_back(group.get());
  return groups;
}

}  // namespace trireme::parallel
