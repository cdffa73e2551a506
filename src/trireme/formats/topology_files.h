// formats/topology_files.h -- what programs say of how a cluster is wired.
//
//   GpuMatrix       what `nvidia-smi topo -m` prints
//   NcclTopology    the XML that NCCL writes (NCCL_TOPO_DUMP_FILE) and reads (NCCL_TOPO_FILE)
//   SlurmTopology   Slurm's topology.conf (topology/tree)
//
// Texts come from other machines: any bytes are read or refused with a FormatError that names the file and the line or
// byte.
// Depends on: format_error, host_expression.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::formats {

struct GpuMatrix {
  int gpus = 0;
  std::vector<std::string> nics;                ///< by the legend where there is one: "mlx5_0", else "NIC0"
  std::vector<std::vector<std::string>> links;  ///< [gpu][gpu and then nic]: "NV4", "SYS", "PIX", ...; "X" of itself
  bool operator==(const GpuMatrix&) const = default;

  /// NVLinks between two devices; 0: none.
  int nvlinks(int a, int b) const;
};
GpuMatrix read_gpu_matrix(std::string_view text, const std::string& name);
/// As nvidia-smi prints it; read_gpu_matrix() gives the same back.
std::string to_text(const GpuMatrix& matrix);

struct NcclTopology {
  struct NvLink {
    std::string target;  ///< bus id
    int count = 0;
    bool to_switch = false;
    bool operator==(const NvLink&) const = default;
  };
  struct Gpu {
    int dev = 0, sm = 0;  ///< sm: 90 for an H100
    std::string bus_id;
    double pci_gb_per_s = 0;  ///< 0: not said
    std::vector<NvLink> nvlinks;
    bool operator==(const Gpu&) const = default;
  };
  struct Net {
    std::string name;
    double gbit_per_s = 0;
    bool operator==(const Net&) const = default;
  };
  std::vector<Gpu> gpus;  ///< by dev
  std::vector<Net> nets;
  bool operator==(const NcclTopology&) const = default;
};
NcclTopology read_nccl_topology(std::string_view text, const std::string& name);

struct SlurmSwitch {
  std::string name;
  std::vector<std::string> nodes;     ///< of a leaf
  std::vector<std::string> switches;  ///< of one above leaves
  bool operator==(const SlurmSwitch&) const = default;
};
struct SlurmTopology {
  std::vector<SlurmSwitch> switches;  ///< in the order of the file
  bool operator==(const SlurmTopology&) const = default;

  std::vector<std::string> nodes() const;
  /// Of every switch right below the top, or, where there is one level only, of every leaf.
  std::vector<std::size_t> pod_nodes() const;
  std::vector<std::size_t> leaf_nodes() const;
  /// Nodes below a switch, by its name.
  std::size_t nodes_below(const std::string& name) const;
};
SlurmTopology read_slurm_topology(std::string_view text, const std::string& name);
/// read_slurm_topology() gives the same back.
std::string to_text(const SlurmTopology& topology);

}  // namespace trireme::formats
