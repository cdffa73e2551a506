#include "trireme/formats/topology_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "trireme/formats/format_error.h"
#include "trireme/formats/xml_reader.h"

namespace trireme::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  std::ifstream file(std::string(TRIREME_FIXTURES) + "/topology/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

template <typename Read>
std::string topology_refusal(Read&& read) {
  try {
    read();
  } catch (const FormatError& error) {
    return error.message();
  }
  return "nothing was refused";
}

TEST(GpuMatrix, OfSwitchedNodesHasAllLinksBetweenAnyTwo) {
  const GpuMatrix matrix = read_gpu_matrix(fixture("h100-8.txt"), "h100-8.txt");
  EXPECT_EQ(matrix.gpus, 8);
  EXPECT_EQ(matrix.nvlinks(0, 7), 18);
  EXPECT_EQ(matrix.nics.size(), 8u);
  EXPECT_EQ(matrix.nics[3], "mlx5_3") << "by the legend";
  EXPECT_EQ(matrix.links[2][8 + 2], "PXB");
}

TEST(GpuMatrix, ReadsBackAsItWasWritten) {
  for (const char* name : {"h100-8.txt", "dgx-1v.txt", "pcie-2.txt"}) {
    const GpuMatrix matrix = read_gpu_matrix(fixture(name), name);
    EXPECT_EQ(read_gpu_matrix(to_text(matrix), "again"), matrix) << name;
  }
  const GpuMatrix mesh = read_gpu_matrix(fixture("dgx-1v.txt"), "x");
  EXPECT_EQ(mesh.nvlinks(0, 3), 2);
  EXPECT_EQ(mesh.nvlinks(0, 5), 0);
}

TEST(GpuMatrix, WhatIsNoneIsRefusedWithItsLine) {
  EXPECT_THAT(topology_refusal([] { read_gpu_matrix("hello\n", "t"); }), HasSubstr("there is no table of devices"));
  EXPECT_THAT(topology_refusal([] { read_gpu_matrix("\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "t"); }),
              HasSubstr("rows end after GPU0"));
  EXPECT_THAT(topology_refusal([] { read_gpu_matrix("\tGPU0\tGPU1\nGPU0\tX\tNV1\nGPU1\tNV2\tX\n", "t"); }),
              HasSubstr("GPU0 and GPU1 do not agree"));
  EXPECT_THAT(topology_refusal([] { read_gpu_matrix("\tGPU0\tGPU1\nGPU0\tNV1\tX\n", "t"); }), HasSubstr("(line 2)"));
}

TEST(NcclTopology, HasDevicesLinksAndAdapters) {
  const NcclTopology nccl = read_nccl_topology(fixture("h100-8.xml"), "h100-8.xml");
  ASSERT_EQ(nccl.gpus.size(), 8u);
  EXPECT_EQ(nccl.gpus[5].sm, 90);
  ASSERT_EQ(nccl.gpus[5].nvlinks.size(), 4u);
  EXPECT_TRUE(nccl.gpus[5].nvlinks[0].to_switch);
  EXPECT_NEAR(nccl.gpus[5].pci_gb_per_s, 63.0, 0.1) << "32 GT/s of 16 lanes, 128b/130b";
  ASSERT_EQ(nccl.nets.size(), 8u);
  EXPECT_EQ(nccl.nets[0].gbit_per_s, 400);
  EXPECT_FALSE(read_nccl_topology(fixture("dgx-1v.xml"), "x").gpus[0].nvlinks[0].to_switch);
}

TEST(NcclTopology, WhatIsNoneIsRefused) {
  EXPECT_THAT(topology_refusal([] { read_nccl_topology("<graph/>", "t"); }), HasSubstr("not <system>"));
  EXPECT_THAT(topology_refusal([] { read_nccl_topology("<system><cpu></system>", "t"); }), HasSubstr("(byte "));
  EXPECT_THAT(topology_refusal([] { read_nccl_topology("<system/>", "t"); }), HasSubstr("no GPU"));
  EXPECT_THAT(topology_refusal([] { read_nccl_topology("<system><gpu dev=\"x\" sm=\"90\"/></system>", "t"); }),
              HasSubstr("dev"));
}

TEST(Xml, HasEntitiesCommentsAndALimitOfDepth) {
  const XmlElement root = read_xml("<?xml?><!-- <no/> --><a b='1 &lt; &#50;'>text<c/></a>", "t");
  EXPECT_EQ(root.attribute("b"), "1 < 2");
  EXPECT_EQ(root.attribute("none"), "");
  ASSERT_EQ(root.children.size(), 1u);
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<a>";
  EXPECT_THAT(topology_refusal([&] { read_xml(deep, "t"); }), HasSubstr("too deep"));
  EXPECT_THAT(topology_refusal([] { read_xml("<a/><b/>", "t"); }), HasSubstr("more than one root"));
  EXPECT_THAT(topology_refusal([] { read_xml("<a b=\"&nbsp;\"/>", "t"); }), HasSubstr("no entity"));
}

TEST(SlurmTopology, IsATreeOfSwitches) {
  const SlurmTopology topology = read_slurm_topology(fixture("topology.conf"), "topology.conf");
  EXPECT_EQ(topology.nodes().size(), 64u);
  EXPECT_THAT(topology.leaf_nodes(), ElementsAre(16u, 16u, 16u, 16u));
  EXPECT_THAT(topology.pod_nodes(), ElementsAre(32u, 32u));
  EXPECT_EQ(topology.nodes_below("core"), 64u);
  EXPECT_EQ(topology.nodes().back(), "spare1");
  EXPECT_EQ(read_slurm_topology(to_text(topology), "again"), topology);
}

TEST(SlurmTopology, WhatIsNoTreeIsRefused) {
  const auto why = [](const char* text) { return topology_refusal([&] { read_slurm_topology(text, "t"); }); };
  EXPECT_THAT(why(""), HasSubstr("no switch"));
  EXPECT_THAT(why("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n"), HasSubstr("below two switches"));
  EXPECT_THAT(why("SwitchName=a Switches=b\n"), HasSubstr("nowhere described"));
  EXPECT_THAT(why("SwitchName=a Switches=b\nSwitchName=b Switches=a\n"), HasSubstr("below itself"));
  EXPECT_THAT(why("SwitchName=a Switches=a\n"), HasSubstr("below itself"));
  EXPECT_THAT(why("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n"), HasSubstr("twice"));
  EXPECT_THAT(why("SwitchName=a Knobs=n1\n"), HasSubstr("(line 1)"));
  EXPECT_THAT(why("SwitchName=a Nodes=n[\n"), HasSubstr("(line 1)"));
}

}  // namespace
}  // namespace trireme::formats
