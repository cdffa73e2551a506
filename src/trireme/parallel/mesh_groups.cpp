#include "trireme/parallel/mesh_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::parallel {

MeshGroups::MeshGroups(comm::Group& world, layout::Mesh mesh) : world_(world), mesh_(std::move(mesh)) {
  if (mesh_.ranks() != world.size()) {
    throw ConfigError(fmt::format("the layout {} has {} ranks, but there are {}", layout::to_text(mesh_), mesh_.ranks(),
                                  world.size()));
  }
}

comm::Group* MeshGroups::along(const layout::AxisNames& axes) {
  layout::AxisNames names = axes;
  std::ranges::sort(names);
  if (mesh_.group_size(names) == 1) return nullptr;
  const auto [entry, is_new] = groups_.try_emplace(names);
  if (is_new) {
    const std::vector<int> members = mesh_.group(rank(), names);
    entry->second = world_.split(members.front(), rank(), fmt::format("{} {}", fmt::join(names, "."), members.front()));
  }
  return entry->second.get();
}

std::vector<comm::Group*> MeshGroups::all() const {
  std::vector<comm::Group*> groups;
  for (const auto& [axes, group] : groups_) groups.push_back(group.get());
  return groups;
}

}  // namespace trireme::parallel
