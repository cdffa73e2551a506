#include "trireme/cost/import_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/cost/topology.h"

namespace trireme::cost {
namespace {

/// NVLinks of one node: how many between two devices, or that switches join them.
struct NodeWiring {
  int gpus = 0, links = 0, switches = 0;  // links: of one device
  std::vector<MeshEdge> mesh;
};

/// More NVLinks than this no device has; "NV18" of eight devices with each other can only be by switches.
constexpr int kMostNvlinks = 18;

NodeWiring wiring_of(const formats::GpuMatrix& matrix) {
  NodeWiring wiring{.gpus = matrix.gpus, .mesh = {}};
  std::vector<int> sums(static_cast<std::size_t>(matrix.gpus), 0);
  for (int a = 0; a < matrix.gpus; ++a) {
    for (int b = a + 1; b < matrix.gpus; ++b) {
      const int links = matrix.nvlinks(a, b);
      if (links == 0) continue;
      wiring.mesh.push_back({a, b, links});
      sums[static_cast<std::size_t>(a)] += links;
      sums[static_cast<std::size_t>(b)] += links;
      wiring.links = std::max(wiring.links, links);
    }
  }
  const int most = sums.empty() ? 0 : *std::ranges::max_element(sums);
  if (most > kMostNvlinks) {  // each device has `links` to the switches, and so to any other
    wiring.switches = 1;
    wiring.mesh.clear();
  } else {
    wiring.links = most;
  }
  return wiring;
}

NodeWiring wiring_of(const formats::NcclTopology& nccl) {
  NodeWiring wiring{.gpus = static_cast<int>(nccl.gpus.size()), .mesh = {}};
  std::map<std::string, int> device_at;
  for (int i = 0; i < wiring.gpus; ++i) device_at[nccl.gpus[static_cast<std::size_t>(i)].bus_id] = i;
  std::map<std::string, int> switches;
  for (int i = 0; i < wiring.gpus; ++i) {
    int links = 0;
    for (const auto& link : nccl.gpus[static_cast<std::size_t>(i)].nvlinks) {
      links += link.count;
      if (link.to_switch) {
        switches[link.target] = 1;
      } else if (const auto other = device_at.find(link.target); other != device_at.end() && other->second > i) {
        wiring.mesh.push_back({i, other->second, link.count});
      }
    }
    wiring.links = std::max(wiring.links, links);
  }
  wiring.switches = static_cast<int>(switches.size());
  if (wiring.switches > 0) wiring.mesh.clear();
  return wiring;
}

/// The device of an architecture that the most nodes have.
std::string device_of_sm(int sm) {
  const std::map<int, std::string> devices = {{70, "v100"}, {80, "a100-80"}, {90, "h100"}, {100, "b200"}};
  const auto found = devices.find(sm);
  return found == devices.end() ? "" : found->second;
}

void set_link(ImportedCluster& imported, const NodeWiring& wiring, const Device& device) {
  Cluster& cluster = imported.cluster;
  cluster.gpus_per_node = wiring.gpus;
  cluster.topology.nvswitches = wiring.switches;
  for (const MeshEdge& edge : wiring.mesh) cluster.topology.mesh.push_back(to_text(edge));
  if (wiring.links > 0) {
    if (device.nvlink_gb_per_s <= 0)
      throw ConfigError(fmt::format("the files tell of NVLinks, but device \"{}\" has none", device.name),
                        "name the device that these nodes have: --device");
    cluster.link = {.kind = fmt::format("NVLink, {} links a device{}", wiring.links,
                                        wiring.switches > 0 ? " through switches" : ""),
                    .gb_per_s = wiring.links * device.nvlink_gb_per_s};
    if (device.nvlinks > 0 && wiring.links > device.nvlinks)
      imported.notes.push_back(fmt::format("link.gb_per_s: the files tell of {} NVLinks a device, but {} has {}",
                                           wiring.links, device.name, device.nvlinks));
  } else if (wiring.gpus > 1) {
    cluster.link = {.kind = "PCIe", .gb_per_s = cluster.host.link_gb_per_s};
    if (cluster.link.gb_per_s <= 0)
      throw ConfigError("devices of the node have no NVLinks, and no file says how fast its PCIe is",
                        "give a topology file of NCCL, which does: --nccl FILE");
  }
}

void set_network(ImportedCluster& imported, const ClusterSources& sources) {
  Cluster& cluster = imported.cluster;
  ClusterTopology& topology = cluster.topology;
  topology.nic_gbit_per_s = sources.nic_gbit_per_s;
  if (sources.nccl && !sources.nccl->nets.empty()) {
    topology.nics = static_cast<int>(sources.nccl->nets.size());
    const auto slowest = std::ranges::min_element(sources.nccl->nets, {}, &formats::NcclTopology::Net::gbit_per_s);
    if (topology.nic_gbit_per_s <= 0) topology.nic_gbit_per_s = slowest->gbit_per_s;
  } else if (sources.matrix) {
    topology.nics = static_cast<int>(sources.matrix->nics.size());
  }
  if (topology.nics > 0 && topology.nic_gbit_per_s <= 0) {
    imported.notes.push_back(
        fmt::format("network.gb_per_s: {} adapters are there, but no file says how fast they are", topology.nics));
    topology.nics = 0;
  }
  if (topology.nics > 0) {
    cluster.network.kind = fmt::format("{} adapters of {:g} Gbit/s a node", topology.nics, topology.nic_gbit_per_s);
    cluster.network.gb_per_s = topology.nics * topology.nic_gbit_per_s / 8 / cluster.gpus_per_node;
    imported.notes.push_back("topology.nics: adapters for storage are counted as well; take them out by hand");
  }
  int nodes = std::max(sources.nodes, 1);
  if (sources.slurm) {
    const auto hosts = sources.slurm->nodes();
    nodes = static_cast<int>(hosts.size());
    const auto leaves = sources.slurm->leaf_nodes(), pods = sources.slurm->pod_nodes();
    topology.unit_nodes = static_cast<int>(*std::ranges::min_element(leaves));
    if (pods.size() > 1) {
      cluster.network.pod_gpus = static_cast<int>(*std::ranges::min_element(pods)) * cluster.gpus_per_node;
      cluster.network.oversubscription = sources.oversubscription;
      if (sources.oversubscription == 1)
        imported.notes.push_back(
            "network.oversubscription: topology.conf does not say how scarce links above pods are; 1 is taken");
    }
  }
  cluster.gpus = nodes * cluster.gpus_per_node;
  if (nodes > 1 && cluster.network.gb_per_s <= 0)
    throw ConfigError(fmt::format("{} nodes need a network, and no file says how fast it is", nodes),
                      "say it: --network ndr, --network 400 (Gbit/s of an adapter), or give --nccl FILE");
}

}  // namespace

ImportedCluster import_cluster(const ClusterSources& sources) {
  if (!sources.matrix && !sources.nccl)
    throw ConfigError("nothing says what a node is made of",
                      "give what `nvidia-smi topo -m` prints (--nvidia-smi FILE) or a topology of NCCL (--nccl FILE)");
  ImportedCluster imported;
  imported.cluster.name = sources.name;
  imported.cluster.device = sources.device;
  if (sources.device.empty() && sources.nccl) {
    imported.cluster.device = device_of_sm(sources.nccl->gpus.front().sm);
    imported.notes.push_back(
        fmt::format("device: {} by its architecture, sm {}", imported.cluster.device, sources.nccl->gpus.front().sm));
  }
  if (imported.cluster.device.empty())
    throw ConfigError("no file says which devices these are", "name them: --device h100");
  const Device device = load_device(imported.cluster.device);
  NodeWiring wiring = sources.matrix ? wiring_of(*sources.matrix) : wiring_of(*sources.nccl);
  if (sources.matrix && sources.nccl) {
    const NodeWiring other = wiring_of(*sources.nccl);
    if (other.gpus != wiring.gpus || other.links != wiring.links || other.mesh != wiring.mesh)
      throw ConfigError(
          fmt::format("the two files are of different nodes: {} devices with {} NVLinks each, and {} with {}",
                      wiring.gpus, wiring.links, other.gpus, other.links),
          "take both on the same node");
    wiring = other;  // it also counts switches
  }
  if (sources.nccl) {
    const double pci = sources.nccl->gpus.front().pci_gb_per_s;
    if (pci > 0) imported.cluster.host.link_gb_per_s = pci;
  }
  set_link(imported, wiring, device);
  set_network(imported, sources);
  if (auto problems = find_problems(imported.cluster); !problems.empty())
    throw config::ProblemsError(fmt::format("the cluster \"{}\" that the files describe", sources.name),
                                std::move(problems));
  return imported;
}

}  // namespace trireme::cost
