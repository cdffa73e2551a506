// cost/topology.h -- the path between two devices of a cluster, from its file alone.
//
//   const PairPath path = path_between(load_hardware("dgx-h100").cluster, 0, 17);
//   path.text()                     "one rail: 1 switch, 50 GB/s"
//
// Devices are numbered node by node. A cost is that of the slowest link on the path.
// Depends on: hardware.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cost/hardware.h"

namespace trireme::cost {

struct PairPath {
  enum class Kind : std::uint8_t {
    kSame,      ///< one device
    kNvlink,    ///< NVLinks between the two, or NVSwitches
    kHost,      ///< through the host's PCIe: NVLinks of a mesh do not join these two
    kRail,      ///< adapters on one leaf switch
    kSpine,     ///< leaf, spine, leaf
    kAbovePod,  ///< through the level above pods, where links are scarce
  };
  Kind kind = Kind::kSame;
  int nvlinks = 0;      ///< between the two, in a mesh
  int switches = 0;     ///< of the network, on the way
  double gb_per_s = 0;  ///< of the slowest link, in one direction; 0: unknown
  bool same_node = true, same_unit = true, same_pod = true;
  bool operator==(const PairPath&) const = default;
  std::string text() const;
};

PairPath path_between(const Cluster& cluster, int a, int b);

/// NVLinks of the mesh between two devices of a node; 0: none.
int mesh_links(const ClusterTopology& topology, int a, int b);

/// "0-3:2".
struct MeshEdge {
  int a = 0, b = 0, links = 0;
  bool operator==(const MeshEdge&) const = default;
};
/// Nothing for a text that is no edge.
std::optional<MeshEdge> parse_mesh_edge(std::string_view text);
std::string to_text(const MeshEdge& edge);

/// Figures of [topology] that contradict those of the other sections.
void add_topology_problems(const Cluster& cluster, std::vector<config::Problem>& problems);

/// A table: every device of the first node with every other, and one pair of each kind beyond.
std::string topology_table(const Hardware& hardware);

}  // namespace trireme::cost
