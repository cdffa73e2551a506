// tests/plan/graph/p100_nodes.h -- a cluster of the time of the published searches: nodes of four P100.
#pragma once

#include "trireme/cost/hardware.h"

namespace trireme::plan::graph {

/// Links of 15 GB/s inside a node and 12 between nodes.
inline cost::Hardware p100_nodes() {
  cost::Hardware hardware;
  hardware.device.name = "P100";
  hardware.device.fp32_tflops = 9.3;
  hardware.device.memory_gib = 16;
  hardware.device.memory_gb_per_s = 732;
  hardware.cluster.gpus_per_node = 4;
  hardware.cluster.link = {.kind = "nvlink", .gb_per_s = 15};
  hardware.cluster.network = {.kind = "infiniband", .gb_per_s = 12};
  return hardware;
}

}  // namespace trireme::plan::graph
