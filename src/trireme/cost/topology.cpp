#include "trireme/cost/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cost {
namespace {

std::optional<int> small_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// NVLinks of the device that has most: those that link.gb_per_s is the sum of.
int most_mesh_links(const ClusterTopology& topology) {
  std::map<int, int> links;
  for (const std::string& text : topology.mesh) {
    const MeshEdge edge = parse_mesh_edge(text).value_or(MeshEdge{});
    links[edge.a] += edge.links;
    links[edge.b] += edge.links;
  }
  int most = 0;
  for (const auto& [device, count] : links) most = std::max(most, count);
  return most;
}

/// What one device can send through its adapter, or its share of all.
double adapter_gb_per_s(const Cluster& cluster) {
  const ClusterTopology& topology = cluster.topology;
  const double adapter = topology.nic_gbit_per_s / 8;
  return topology.nics > 0 && adapter > 0 ? adapter : cluster.network.gb_per_s;
}

/// Which adapter a device sends by: they are shared out evenly.
int rail_of(const Cluster& cluster, int local) {
  const int nics = cluster.topology.nics;
  if (nics <= 0) return local;
  return static_cast<int>(static_cast<std::int64_t>(local) * nics / cluster.gpus_per_node);
}

bool differ(double a, double b) { return std::abs(a - b) > 0.02 * std::max(a, b); }

}  // namespace

std::optional<MeshEdge> parse_mesh_edge(std::string_view text) {
  const auto dash = text.find('-'), colon = text.find(':');
  if (dash == text.npos || colon == text.npos || colon < dash) return std::nullopt;
  const auto a = small_number(text.substr(0, dash)), b = small_number(text.substr(dash + 1, colon - dash - 1)),
             links = small_number(text.substr(colon + 1));
  if (!a || !b || !links || *a == *b || *links < 1) return std::nullopt;
  return MeshEdge{*a, *b, *links};
}

std::string to_text(const MeshEdge& edge) { return fmt::format("{}-{}:{}", edge.a, edge.b, edge.links); }

int mesh_links(const ClusterTopology& topology, int a, int b) {
  for (const std::string& text : topology.mesh) {
    const MeshEdge edge = parse_mesh_edge(text).value_or(MeshEdge{});
    if ((edge.a == a && edge.b == b) || (edge.a == b && edge.b == a)) return edge.links;
  }
  return 0;
}

PairPath path_between(const Cluster& cluster, int a, int b) {
  using Kind = PairPath::Kind;
  TRIREME_CHECK(a >= 0 && b >= 0, "devices are numbered from 0: {} and {}", a, b);
  PairPath path;
  if (a == b) return path;
  const ClusterTopology& topology = cluster.topology;
  const int each = cluster.gpus_per_node;
  const int node_a = a / each, node_b = b / each;
  if (node_a == node_b) {
    if (topology.mesh.empty()) {
      path.kind = Kind::kNvlink;
      path.gb_per_s = cluster.link.gb_per_s;
      return path;
    }
    path.nvlinks = mesh_links(topology, a % each, b % each);
    path.kind = path.nvlinks > 0 ? Kind::kNvlink : Kind::kHost;
    path.gb_per_s = path.nvlinks > 0 ? cluster.link.gb_per_s * path.nvlinks / most_mesh_links(topology)
                                     : cluster.host.link_gb_per_s;
    return path;
  }
  path.same_node = false;
  path.gb_per_s = std::min(adapter_gb_per_s(cluster), cluster.link.gb_per_s > 0 ? cluster.link.gb_per_s : 1e9);
  const int unit = topology.unit_nodes;
  path.same_unit = unit <= 0 || node_a / unit == node_b / unit;
  const int pod = cluster.network.pod_gpus;
  path.same_pod = pod <= 0 || a / pod == b / pod;
  if (!path.same_pod) {
    path.kind = Kind::kAbovePod;
    path.switches = 5;
    path.gb_per_s /= cluster.network.oversubscription;
  } else if (path.same_unit && topology.rails && rail_of(cluster, a % each) == rail_of(cluster, b % each)) {
    path.kind = Kind::kRail;
    path.switches = 1;
  } else {
    path.kind = Kind::kSpine;
    path.switches = 3;
  }
  return path;
}

std::string PairPath::text() const {
  const std::string rate = gb_per_s > 0 ? fmt::format("{:.4g} GB/s", gb_per_s) : "rate unknown";
  switch (kind) {
    case Kind::kSame:
      return "the same device";
    case Kind::kNvlink:
      return nvlinks > 0 ? fmt::format("{}, {}", counted(static_cast<std::size_t>(nvlinks), "NVLink"), rate)
                         : fmt::format("link of the node, {}", rate);
    case Kind::kHost:
      return fmt::format("through the host, {}", rate);
    case Kind::kRail:
      return fmt::format("one rail: 1 switch, {}", rate);
    case Kind::kSpine:
      return fmt::format("leaf, spine, leaf: {} switches, {}{}", switches, rate, same_unit ? "" : ", another unit");
    case Kind::kAbovePod:
      return fmt::format("above pods: {} switches, {} when all send", switches, rate);
  }
  return {};
}

void add_topology_problems(const Cluster& cluster, std::vector<config::Problem>& problems) {
  const ClusterTopology& topology = cluster.topology;
  for (const std::string& text : topology.mesh) {
    const auto edge = parse_mesh_edge(text);
    if (edge && edge->a < cluster.gpus_per_node && edge->b < cluster.gpus_per_node) continue;
    problems.push_back(
        {.key = "topology.mesh",
         .reason = fmt::format("\"{}\" is no NVLink between two of a node's {} devices", text, cluster.gpus_per_node),
         .hint = "write \"0-3:2\" for two links between devices 0 and 3"});
  }
  if (!topology.mesh.empty() && topology.nvswitches > 0)
    problems.push_back({.key = "topology.nvswitches",
                        .reason = "devices that switches join have no mesh",
                        .hint = "leave out topology.mesh or topology.nvswitches"});
  if (topology.gpus_per_host > 0 && cluster.gpus_per_node % topology.gpus_per_host != 0)
    problems.push_back(
        {.key = "topology.gpus_per_host",
         .reason = fmt::format("{} does not divide gpus_per_node = {}", topology.gpus_per_host, cluster.gpus_per_node),
         .hint = "a node is one or more whole hosts"});
  const double shared = topology.nics * topology.nic_gbit_per_s / 8 / cluster.gpus_per_node;
  if (shared > 0 && cluster.network.gb_per_s > 0 && differ(shared, cluster.network.gb_per_s))
    problems.push_back({.key = "network.gb_per_s",
                        .reason = fmt::format(
                            "{} adapters of {} Gbit/s for {} devices are {:.4g} GB/s each, not {:.4g}", topology.nics,
                            topology.nic_gbit_per_s, cluster.gpus_per_node, shared, cluster.network.gb_per_s),
                        .hint = fmt::format("set network.gb_per_s = {:.4g}", shared)});
}

std::string topology_table(const Hardware& hardware) {
  const Cluster& cluster = hardware.cluster;
  const int each = cluster.gpus_per_node;
  constexpr int kMostColumns = 16;
  std::vector<TextTable::Column> columns = {{"GPU", TextTable::Align::kRight}};
  const int shown = std::min(each, kMostColumns);
  for (int i = 0; i < shown; ++i) columns.push_back({std::to_string(i), TextTable::Align::kRight});
  TextTable table(std::move(columns));
  for (int i = 0; i < shown; ++i) {
    std::vector<std::string> cells = {std::to_string(i)};
    for (int j = 0; j < shown; ++j) {
      const PairPath path = path_between(cluster, i, j);
      cells.push_back(i == j ? "-" : fmt::format("{:.4g}", path.gb_per_s));
    }
    table.add(std::move(cells));
  }
  std::string out =
      fmt::format("GB/s between devices of a node, one way{}\n{}",
                  each > shown ? fmt::format(" (the first {} of {})", shown, each) : "", table.text("  "));
  const int unit = cluster.topology.unit_nodes * each;
  std::vector<std::pair<int, int>> pairs;
  if (cluster.network.gb_per_s > 0) {
    pairs = {{0, each}};
    if (each > 1) pairs.emplace_back(0, 2 * each - 1);
    if (unit > 0) pairs.emplace_back(0, unit);
    if (cluster.network.pod_gpus > 0) pairs.emplace_back(0, cluster.network.pod_gpus);
  }
  if (!pairs.empty()) out += "\nbetween nodes\n";
  for (const auto& [a, b] : pairs)
    out += fmt::format("  GPU {} and {}: {}\n", a, b, path_between(cluster, a, b).text());
  return out;
}

}  // namespace trireme::cost
