// Topology files: any text is a table of nvidia-smi, an XML file of NCCL, a topology.conf or a list of hosts, or is
// refused; what is read is written and read again as the same.
#include "tests/fuzz/fuzz.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/host_expression.h"
#include "trireme/formats/topology_files.h"

namespace {

using namespace trireme::formats;

template <typename Read>
void read_or_refuse(Read&& read) {
  try {
    read();
  } catch (const FormatError& error) {
    fuzz::require(error.message().starts_with("t: "), "an error names its file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_or_refuse([&] {
    const GpuMatrix matrix = read_gpu_matrix(text, "t");
    const GpuMatrix again = read_gpu_matrix(to_text(matrix), "again");
    fuzz::require(again.gpus == matrix.gpus && again.links == matrix.links, "what is written is read back");
  });
  read_or_refuse([&] {
    const NcclTopology topology = read_nccl_topology(text, "t");
    fuzz::require(!topology.gpus.empty(), "a topology has devices");
    for (const auto& gpu : topology.gpus) fuzz::require(gpu.pci_gb_per_s >= 0 && gpu.dev >= 0, "figures are sound");
    for (const auto& net : topology.nets) fuzz::require(net.gbit_per_s > 0, "rates are sound");
  });
  read_or_refuse([&] {
    const SlurmTopology topology = read_slurm_topology(text, "t");
    fuzz::require(read_slurm_topology(to_text(topology), "again") == topology, "what is written is read back");
    fuzz::require(!topology.pod_nodes().empty(), "a tree has pods");
  });
  read_or_refuse([&] {
    const auto hosts = expand_hosts(text, "t");
    fuzz::require(hosts.size() <= kMostHosts, "hosts are bounded");
    fuzz::require(expand_hosts(compress_hosts(hosts), "again") == hosts, "compressed hosts are the same hosts");
  });
  return 0;
}
