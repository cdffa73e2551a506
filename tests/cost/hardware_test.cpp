#include "trireme/cost/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "trireme/base/data_files.h"
#include "trireme/cost/group_time.h"
#include "trireme/cost/roofline.h"

namespace trireme::cost {
namespace {

using ::testing::HasSubstr;

TEST(Clusters, AllThatAreThereLoad) {
  for (const std::string& name : data_names("clusters")) {
    const Hardware hardware = load_hardware(name);
    EXPECT_EQ(hardware.cluster.name, name);
    EXPECT_GT(hardware.memory_bytes(), 0) << name;
  }
  EXPECT_GE(data_names("clusters").size(), 8u);
}

TEST(Clusters, DevicesOfOneArchitectureShareTheirConstants) {
  EXPECT_EQ(load_device("a100-40").efficiency, load_device("a100-80").efficiency);
  EXPECT_EQ(load_device("h200").efficiency, load_device("h100").efficiency);
  EXPECT_EQ(load_device("h800").efficiency, load_device("h100").efficiency);
}

TEST(Devices, AreFoundByWhatDriversCallThem) {
  ASSERT_TRUE(find_device_of_driver("NVIDIA H200"));
  EXPECT_EQ(find_device_of_driver("NVIDIA H200")->name, "h200");
  EXPECT_EQ(peak(*find_device_of_driver("NVIDIA H200"), Arithmetic::kBf16), 989e12);
  EXPECT_EQ(find_device_of_driver("NVIDIA H100 PCIe")->name, "h100-pcie");
  EXPECT_EQ(find_device_of_driver("NVIDIA H200 NVL"), std::nullopt) << "another card";
  EXPECT_EQ(find_device_of_driver(""), std::nullopt);
}

TEST(Devices, HaveDriverNamesOfTheirOwn) {
  std::vector<std::string> all;
  for (const std::string& name : data_names("devices")) {
    for (const std::string& driver : load_device(name).driver_names) all.push_back(driver);
  }
  const std::set<std::string> different(all.begin(), all.end());
  EXPECT_EQ(different.size(), all.size());
  EXPECT_GE(all.size(), 8u);
}

TEST(Clusters, AnUnknownNameIsAnsweredWithTheNearest) {
  try {
    load_hardware("seleen");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("there is no cluster \"seleen\"; did you mean \"selene\"?"));
    EXPECT_THAT(error.hint(), HasSubstr("dgx-h100"));
  }
}

TEST(Clusters, NodesNeedLinksAndManyNodesANetwork) {
  Cluster cluster{.name = "x", .device = "h100", .gpus = 16, .gpus_per_node = 8};
  EXPECT_EQ(find_problems(cluster).size(), 2u);
  cluster.link.gb_per_s = 100;
  ASSERT_EQ(find_problems(cluster).size(), 1u);
  EXPECT_EQ(find_problems(cluster).front().hint, "set network.gb_per_s, or gpus = 8");
  cluster.gpus = 8;
  EXPECT_TRUE(find_problems(cluster).empty());
}

/// Dense 16-bit peak over memory bandwidth, FLOP a byte: where the roofline bends.
TEST(Devices, RidgePointsAreThoseOfTheDataSheets) {
  const auto ridge = [](const char* name) {
    const Device device = load_device(name);
    return std::round(device.fp16_tflops * 1e3 / device.memory_gb_per_s);
  };
  EXPECT_EQ(ridge("v100"), 139);
  EXPECT_EQ(ridge("a100-40"), 201);
  EXPECT_EQ(ridge("a100-80"), 153);
  EXPECT_EQ(ridge("h100"), 295);
  EXPECT_EQ(ridge("h200"), 206);
  EXPECT_EQ(ridge("b200"), 281);
}

Hardware ideal() {
  Hardware hardware = load_hardware("selene");
  hardware.device.efficiency = {1, 1, 1, 1, 1, 1, 1, 0};
  return hardware;
}

TEST(Roofline, LargeGemmsComputeAndThinOnesMoveMemory) {
  const Hardware hardware = ideal();
  const GemmShape large{1e5, 1e5, 1e5}, thin{1, 8192, 8192};
  EXPECT_NEAR(matmul_seconds(hardware, Arithmetic::kBf16, large), large.flops() / 312e12,
              0.001 * large.flops() / 312e12);
  EXPECT_NEAR(matmul_seconds(hardware, Arithmetic::kBf16, thin), 2 * thin.elements() / 2039e9,
              0.01 * 2 * thin.elements() / 2039e9);
}

TEST(Roofline, IsNeverFasterThanEitherLine) {
  const Hardware hardware = load_hardware("dgx-h100");
  for (const double rows : {1., 100., 4096.}) {
    for (const double columns : {128., 1024., 30000.}) {
      const GemmShape gemm{rows, columns, 4096};
      const double seconds = matmul_seconds(hardware, Arithmetic::kBf16, gemm);
      EXPECT_GE(seconds, gemm.flops() / hardware.peak(Arithmetic::kBf16));
      EXPECT_GE(seconds, 2 * gemm.elements() / hardware.memory_bandwidth());
    }
  }
}

TEST(GroupTime, InsideANodeIsTheRingOfItsLinks) {
  const Hardware hardware = ideal();
  const double bytes = 1e9;
  EXPECT_NEAR(group_seconds(hardware, Collective::kAllReduce, {.ranks = 8, .per_node = 8}, bytes),
              2 * 7.0 / 8 * bytes / 300e9, 1e-4);
}

TEST(GroupTime, AcrossNodesEveryDeviceDrivesItsOwnAdapter) {
  const Hardware hardware = ideal();
  const double bytes = 4e9;
  // One rank a node: a ring over 25 GB/s. Eight ranks a node: an eighth of the data on each rail, so NVLink counts.
  const double one = group_seconds(hardware, Collective::kAllReduce, {.ranks = 16, .per_node = 1}, bytes);
  const double eight = group_seconds(hardware, Collective::kAllReduce, {.ranks = 128, .per_node = 8}, bytes);
  EXPECT_NEAR(one, 2 * 15.0 / 16 * bytes / 25e9, 0.01 * one);
  EXPECT_NEAR(eight, 2 * 15.0 / 16 * bytes / 8 / 25e9, 0.01 * eight);
}

TEST(GroupTime, ScarceLinksAbovePodsCountWhenManyGroupsCross) {
  const Hardware hardware = load_hardware("llama3-h100-16k");
  const GroupShape few{.ranks = 128, .per_node = 1, .groups = 128, .extent = 16384};
  GroupShape many = few;
  many.groups = 4096;
  EXPECT_LT(group_seconds(hardware, Collective::kAllGather, few, 1e9),
            group_seconds(hardware, Collective::kAllGather, many, 1e9));
  many.extent = 3072;
  EXPECT_EQ(group_seconds(hardware, Collective::kAllGather, few, 1e9),
            group_seconds(hardware, Collective::kAllGather, many, 1e9));
}

TEST(GroupTime, MoreBandwidthIsNeverSlower) {
  Hardware hardware = load_hardware("selene");
  for (const Collective op :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll}) {
    for (const int ranks : {2, 3, 8, 24, 100}) {
      const GroupShape group{.ranks = ranks, .per_node = 4};
      const double before = group_seconds(hardware, op, group, 1e8);
      Hardware better = hardware;
      better.cluster.network.gb_per_s *= 2, better.cluster.link.gb_per_s *= 2;
      EXPECT_LE(group_seconds(better, op, group, 1e8), before);
      EXPECT_TRUE(std::isfinite(before)) << ranks;
    }
  }
}

}  // namespace
}  // namespace trireme::cost
