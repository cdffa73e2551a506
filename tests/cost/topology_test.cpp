#include "trireme/cost/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "trireme/base/data_files.h"

namespace trireme::cost {
namespace {

using Kind = PairPath::Kind;
using ::testing::HasSubstr;

TEST(Topology, NodesOfTheDataSheetsAreThere) {
  for (const char* name : {"dgx-1v", "dgx2-v100", "dgx-a100-40", "selene", "dgx-h100", "h200", "dgx-b200",
                           "gb200-nvl72", "superpod-h100"}) {
    const Hardware hardware = load_hardware(name);
    const ClusterTopology& topology = hardware.cluster.topology;
    EXPECT_EQ(topology.mesh.empty(), topology.nvswitches > 0) << name;
    EXPECT_GT(topology.nics, 0) << name;
    // The links that a device has are what the cluster's file gives it.
    EXPECT_DOUBLE_EQ(hardware.device.nvlinks * hardware.device.nvlink_gb_per_s, hardware.cluster.link.gb_per_s) << name;
    EXPECT_NEAR(topology.nics * topology.nic_gbit_per_s / 8,
                hardware.cluster.network.gb_per_s * hardware.cluster.gpus_per_node, 1e-9)
        << name;
  }
  EXPECT_EQ(load_hardware("gb200-nvl72").cluster.gpus_per_node, 72);
  EXPECT_EQ(load_hardware("gb200-nvl72").cluster.topology.gpus_per_host, 4);
}

TEST(Topology, TheHybridCubeMeshHasSixLinksADevice) {
  const Cluster cluster = load_hardware("dgx-1v").cluster;
  std::map<int, int> links;
  for (const std::string& text : cluster.topology.mesh) {
    const MeshEdge edge = *parse_mesh_edge(text);
    links[edge.a] += edge.links, links[edge.b] += edge.links;
  }
  EXPECT_EQ(links.size(), 8u);
  for (const auto& [device, count] : links) EXPECT_EQ(count, 6) << device;
  EXPECT_EQ(path_between(cluster, 0, 3).gb_per_s, 50) << "two of six links";
  EXPECT_EQ(path_between(cluster, 0, 1).gb_per_s, 25);
  EXPECT_EQ(path_between(cluster, 0, 5).kind, Kind::kHost) << "no link between them";
  EXPECT_EQ(path_between(cluster, 0, 5).gb_per_s, 8);
}

TEST(Topology, APathIsAsFastAsItsSlowestLink) {
  const Cluster pod = load_hardware("superpod-h100").cluster;
  EXPECT_EQ(path_between(pod, 3, 3).kind, Kind::kSame);
  EXPECT_EQ(path_between(pod, 0, 7).kind, Kind::kNvlink);
  EXPECT_EQ(path_between(pod, 0, 7).gb_per_s, 450);
  const PairPath rail = path_between(pod, 1, 8 * 31 + 1);
  EXPECT_EQ(rail.kind, Kind::kRail);
  EXPECT_EQ(rail.switches, 1);
  EXPECT_EQ(rail.gb_per_s, 50);
  EXPECT_EQ(path_between(pod, 0, 9).kind, Kind::kSpine) << "another adapter: another leaf";
  EXPECT_FALSE(path_between(pod, 0, 8 * 32).same_unit);
  EXPECT_EQ(path_between(pod, 0, 8 * 32).kind, Kind::kSpine) << "the same rail of another unit is on another leaf";
  const Cluster llama = load_hardware("llama3-h100-16k").cluster;
  EXPECT_EQ(path_between(llama, 0, 3072).kind, Kind::kAbovePod);
  EXPECT_NEAR(path_between(llama, 0, 3072).gb_per_s, 50.0 / 7, 1e-9);
  EXPECT_TRUE(path_between(llama, 0, 3071).same_pod);
}

TEST(Topology, IsTheSameBothWays) {
  for (const std::string& name : data_names("clusters")) {
    const Cluster cluster = load_hardware(name).cluster;
    for (int a = 0; a < 20; ++a) {
      for (int b = 0; b < 40; ++b) EXPECT_EQ(path_between(cluster, a, b), path_between(cluster, b, a)) << name;
    }
  }
}

TEST(Topology, ContradictionsAreTold) {
  Cluster cluster = load_hardware("dgx-h100").cluster;
  EXPECT_TRUE(find_problems(cluster).empty());
  cluster.topology.nic_gbit_per_s = 200;
  ASSERT_EQ(find_problems(cluster).size(), 1u);
  EXPECT_EQ(find_problems(cluster)[0].hint, "set network.gb_per_s = 25");
  cluster.network.gb_per_s = 25;
  EXPECT_TRUE(find_problems(cluster).empty()) << "the hint works";
  cluster.topology.mesh = {"0-1:2", "0-8:1", "x"};
  EXPECT_EQ(find_problems(cluster).size(), 3u) << "two that are none, and a mesh beside switches";
}

TEST(Topology, EdgesAreRead) {
  EXPECT_EQ(parse_mesh_edge("0-3:2"), (MeshEdge{0, 3, 2}));
  EXPECT_EQ(to_text(MeshEdge{0, 3, 2}), "0-3:2");
  for (const char* bad : {"", "0-3", "0:3-2", "0-0:1", "a-b:1", "0-1:0", "0-1:", "-1:2"})
    EXPECT_FALSE(parse_mesh_edge(bad)) << bad;
}

TEST(Topology, TheTableShowsANodeAndOnePairOfEachKind) {
  const std::string text = topology_table(load_hardware("superpod-h100"));
  EXPECT_THAT(text, HasSubstr("450"));
  EXPECT_THAT(text, HasSubstr("GPU 0 and 8: one rail: 1 switch, 50 GB/s"));
  EXPECT_THAT(text, HasSubstr("GPU 0 and 15: leaf, spine, leaf: 3 switches, 50 GB/s"));
}

}  // namespace
}  // namespace trireme::cost
