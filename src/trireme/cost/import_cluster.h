// cost/import_cluster.h -- a cluster file from what programs say of a machine (formats/topology_files.h).
//
//   const ImportedCluster imported = import_cluster({.name = "mine", .device = "h100", .matrix =
//   read_gpu_matrix(...)}); config::to_toml(imported.cluster) imported.notes                    what no file says and
//   is to be looked at
//
// Depends on: hardware, topology, infiniband, formats.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/cost/hardware.h"
#include "trireme/formats/topology_files.h"

namespace trireme::cost {

struct ClusterSources {
  std::string name;
  std::string device;                           ///< a name in recipes/devices; empty: by the NCCL file's sm
  std::optional<formats::GpuMatrix> matrix;     ///< of one node
  std::optional<formats::NcclTopology> nccl;    ///< of one node
  std::optional<formats::SlurmTopology> slurm;  ///< of all
  double nic_gbit_per_s = 0;                    ///< where no file says; 0: unknown
  int nodes = 0;                                ///< where no file says; 0: one
  double oversubscription = 1;                  ///< above pods: topology.conf does not say
};

struct ImportedCluster {
  Cluster cluster;
  std::vector<std::string> notes;
};

/// Throws ConfigError when the sources contradict each other or lack what a cluster needs.
ImportedCluster import_cluster(const ClusterSources& sources);

}  // namespace trireme::cost
