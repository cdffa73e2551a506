#include "trireme/cost/import_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "trireme/base/error.h"
#include "trireme/cost/topology.h"

namespace trireme::cost {
namespace {

using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  std::ifstream file(std::string(TRIREME_FIXTURES) + "/topology/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string((std::istreambuf_iterator<char>(file)), {});
}
formats::GpuMatrix matrix(const std::string& name) { return formats::read_gpu_matrix(fixture(name), name); }
formats::NcclTopology nccl(const std::string& name) { return formats::read_nccl_topology(fixture(name), name); }

/// What is written is a cluster file, and loads as what was written.
void expect_round_trip(const Cluster& cluster) {
  EXPECT_EQ(config::load<Cluster>({.text = config::to_toml(cluster)}).value, cluster) << config::to_toml(cluster);
}

TEST(ImportCluster, NvidiaSmisTableOfADgxH100IsItsNode) {
  const Cluster cluster =
      import_cluster({.name = "x", .device = "h100", .matrix = matrix("h100-8.txt"), .nic_gbit_per_s = 400, .nodes = 4})
          .cluster;
  const Cluster known = load_hardware("dgx-h100").cluster;
  EXPECT_EQ(cluster.gpus_per_node, known.gpus_per_node);
  EXPECT_EQ(cluster.gpus, 32);
  EXPECT_EQ(cluster.link.gb_per_s, known.link.gb_per_s);
  EXPECT_EQ(cluster.network.gb_per_s, known.network.gb_per_s);
  EXPECT_TRUE(cluster.topology.mesh.empty()) << "eighteen links to each of seven others can only be switches";
  expect_round_trip(cluster);
}

TEST(ImportCluster, TheHybridCubeMeshIsThatOfTheFile) {
  const Cluster known = load_hardware("dgx-1v").cluster;
  const Cluster by_table = import_cluster({.name = "x", .device = "v100", .matrix = matrix("dgx-1v.txt")}).cluster;
  EXPECT_EQ(by_table.topology.mesh, known.topology.mesh);
  EXPECT_EQ(by_table.link.gb_per_s, known.link.gb_per_s);
  const Cluster by_nccl = import_cluster({.name = "x", .nccl = nccl("dgx-1v.xml")}).cluster;
  EXPECT_EQ(by_nccl.topology.mesh, known.topology.mesh);
  EXPECT_EQ(by_nccl.device, "v100") << "by its architecture";
  EXPECT_NEAR(by_nccl.host.link_gb_per_s, 15.75, 0.01) << "PCIe 3 x16";
  expect_round_trip(by_table);
  expect_round_trip(by_nccl);
}

TEST(ImportCluster, NcclsFileHasSwitchesAndAdapters) {
  const ImportedCluster imported = import_cluster({.name = "x", .nccl = nccl("h100-8.xml"), .nodes = 2});
  EXPECT_EQ(imported.cluster.topology.nvswitches, 4);
  EXPECT_EQ(imported.cluster.topology.nics, 8);
  EXPECT_EQ(imported.cluster.network.gb_per_s, 50);
  EXPECT_EQ(imported.cluster.link.gb_per_s, 450);
  EXPECT_THAT(imported.notes, ::testing::Contains(HasSubstr("sm 90")));
  expect_round_trip(imported.cluster);
  const Cluster both =
      import_cluster({.name = "x", .device = "h200", .matrix = matrix("h100-8.txt"), .nccl = nccl("h100-8.xml")})
          .cluster;
  EXPECT_EQ(both.topology.nvswitches, 4);
  EXPECT_THROW(
      import_cluster({.name = "x", .device = "v100", .matrix = matrix("dgx-1v.txt"), .nccl = nccl("h100-8.xml")}),
      ConfigError)
      << "two different nodes";
}

TEST(ImportCluster, SlurmsTreeHasNodesUnitsAndPods) {
  const auto slurm = formats::read_slurm_topology(fixture("topology.conf"), "topology.conf");
  const Cluster cluster =
      import_cluster({.name = "x", .nccl = nccl("h100-8.xml"), .slurm = slurm, .oversubscription = 4}).cluster;
  EXPECT_EQ(cluster.gpus, 64 * 8);
  EXPECT_EQ(cluster.topology.unit_nodes, 16);
  EXPECT_EQ(cluster.network.pod_gpus, 32 * 8);
  EXPECT_EQ(cluster.network.oversubscription, 4);
  EXPECT_EQ(path_between(cluster, 0, 256).kind, PairPath::Kind::kAbovePod);
  expect_round_trip(cluster);
}

TEST(ImportCluster, WhatIsMissingIsAskedFor) {
  const auto hint = [](const ClusterSources& sources) {
    try {
      import_cluster(sources);
    } catch (const ConfigError& error) {
      return error.hint();
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(hint({.name = "x"}), HasSubstr("--nvidia-smi FILE"));
  EXPECT_THAT(hint({.name = "x", .matrix = matrix("h100-8.txt")}), HasSubstr("--device"));
  EXPECT_THAT(hint({.name = "x", .device = "h100", .matrix = matrix("h100-8.txt"), .nodes = 2}),
              HasSubstr("--network ndr"));
  EXPECT_THAT(hint({.name = "x", .device = "h100", .matrix = matrix("pcie-2.txt")}), HasSubstr("--nccl FILE"));
  EXPECT_THAT(hint({.name = "x", .device = "cpu-core", .matrix = matrix("h100-8.txt")}), HasSubstr("--device"));
}

}  // namespace
}  // namespace trireme::cost
