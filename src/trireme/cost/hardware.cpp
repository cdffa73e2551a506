#include "trireme/cost/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/data_files.h"
#include "trireme/base/error.h"
#include "trireme/cost/topology.h"

namespace trireme::cost {
namespace {

constexpr Named<Arithmetic> kArithmetics[] = {
    {"fp32", Arithmetic::kFp32}, {"fp16", Arithmetic::kFp16}, {"bf16", Arithmetic::kBf16}, {"fp8", Arithmetic::kFp8}};

Device read_device(const std::string& name) {
  return config::load<Device>({.file = find_data_file("devices", name).string()}).value;
}

}  // namespace

std::span<const Named<Arithmetic>> enum_names(std::type_identity<Arithmetic>) { return kArithmetics; }

void describe(config::Section<Efficiency>& section) {
  section.meaning("fractions of the data sheet's peaks that training reaches; fitted to published runs");
  section.field("matmul", &Efficiency::matmul, "of peak FLOP/s, in large GEMMs").above(0).at_most(1);
  section.field("memory", &Efficiency::memory, "of peak memory bandwidth").above(0).at_most(1);
  section.field("attention", &Efficiency::attention, "of peak FLOP/s, in fused attention").above(0).at_most(1);
  section.field("link", &Efficiency::link, "of intra-node link bandwidth, in collectives").above(0).at_most(1);
  section.field("network", &Efficiency::network, "of network bandwidth, in collectives").above(0).at_most(1);
  section
      .field("overlap", &Efficiency::overlap, "of the communication that may overlap with compute, the part that does")
      .range(0, 1);
  section.field("gather", &Efficiency::gather, "of network bandwidth, in ZeRO-3 all-gathers").above(0).at_most(1);
  section.field("kernel_seconds", &Efficiency::kernel_seconds, "launch overhead between two kernels, in seconds")
      .range(0, 1);
}

void describe(config::Section<Device>& section) {
  section.meaning("an accelerator, by its data sheet");
  section.field("name", &Device::name, "name of the device").required();
  section.field("fp32_tflops", &Device::fp32_tflops, "peak dense TFLOP/s in fp32; 0: not supported").at_least(0);
  section.field("fp16_tflops", &Device::fp16_tflops, "peak dense TFLOP/s in fp16; 0: not supported").at_least(0);
  section.field("bf16_tflops", &Device::bf16_tflops, "peak dense TFLOP/s in bf16; 0: not supported").at_least(0);
  section.field("fp8_tflops", &Device::fp8_tflops, "peak dense TFLOP/s in FP8; 0: not supported").at_least(0);
  section.field("memory_gib", &Device::memory_gib, "device memory in GiB").required().above(0);
  section.field("memory_gb_per_s", &Device::memory_gb_per_s, "memory bandwidth in GB/s").required().above(0);
  section.field("nvlinks", &Device::nvlinks, "NVLinks of the device").at_least(0);
  section.field("nvlink_gb_per_s", &Device::nvlink_gb_per_s, "bandwidth of one NVLink in one direction, in GB/s")
      .at_least(0);
  section
      .field("software_gb", &Device::software_gb, "memory in GB that the CUDA context, kernels and communicators take")
      .at_least(0);
  section.field("driver_names", &Device::driver_names, "full names that drivers report for it");
  section.field("efficiency_of", &Device::efficiency_of, "another device whose [efficiency] this one uses");
  section.section("efficiency", &Device::efficiency);
}

void describe(config::Section<NodeLink>& section) {
  section.meaning("intra-node interconnect (NVLink, PCIe)");
  section.field("kind", &NodeLink::kind, "name of the interconnect");
  section.field("gb_per_s", &NodeLink::gb_per_s, "bandwidth of one device in one direction, in GB/s").at_least(0);
  section.field("latency_us", &NodeLink::latency_us, "latency of a small message, in microseconds").at_least(0);
}

void describe(config::Section<Network>& section) {
  section.meaning("network between nodes (InfiniBand, RoCE)");
  section.field("kind", &Network::kind, "name of the network");
  section.field("gb_per_s", &Network::gb_per_s, "bandwidth for each device in one direction, in GB/s").at_least(0);
  section.field("latency_us", &Network::latency_us, "latency of a small message, in microseconds").at_least(0);
  section.field("pod_gpus", &Network::pod_gpus, "devices of a pod, within which bandwidth is full; 0: no pods")
      .at_least(0);
  section.field("oversubscription", &Network::oversubscription, "oversubscription of the network above a pod")
      .at_least(1);
}

void describe(config::Section<Host>& section) {
  section.meaning("host of the devices: each device's share of it");
  section.field("memory_gib", &Host::memory_gib, "host memory in GiB; 0: unknown").at_least(0);
  section.field("link_gb_per_s", &Host::link_gb_per_s, "bandwidth between device and host in one direction, in GB/s")
      .at_least(0);
  section.field("memory_gb_per_s", &Host::memory_gb_per_s, "host memory bandwidth in GB/s").at_least(0);
}

void describe(config::Section<Reliability>& section) {
  section.meaning("failure rate, restarts and checkpoint storage");
  section
      .field("device_mtbf_hours", &Reliability::device_mtbf_hours,
             "mean time between failures in hours, of one device with its share of host and network")
      .above(0);
  section.field("restart_seconds", &Reliability::restart_seconds, "seconds from a failure until training resumes")
      .at_least(0);
  section
      .field("storage_gb_per_s", &Reliability::storage_gb_per_s, "checkpoint write bandwidth for each device, in GB/s")
      .above(0);
}

void describe(config::Section<ClusterTopology>& section) {
  section.meaning("what is connected to what");
  section
      .field("gpus_per_host", &ClusterTopology::gpus_per_host,
             "devices of one host (operating system); 0: those of a node")
      .at_least(0);
  section.field("nvswitches", &ClusterTopology::nvswitches, "NVSwitches of a node").at_least(0);
  section.field("mesh", &ClusterTopology::mesh,
                "NVLinks between devices of a node without switches, \"0-3:2\" for two between 0 and 3");
  section.field("nics", &ClusterTopology::nics, "network adapters of a node, for compute; 0: unknown").at_least(0);
  section.field("nic_gbit_per_s", &ClusterTopology::nic_gbit_per_s, "rate of an adapter in one direction, in Gbit/s")
      .at_least(0);
  section.field("rails", &ClusterTopology::rails,
                "adapter i of every node of a unit is on leaf switch i (rail-optimised)");
  section.field("unit_nodes", &ClusterTopology::unit_nodes, "nodes of a unit, below the same leaf switches; 0: all")
      .at_least(0);
}

void describe(config::Section<Cluster>& section) {
  section.meaning("a cluster of equal nodes");
  section.field("name", &Cluster::name, "name of the cluster").required();
  section.field("device", &Cluster::device, "name of a device in recipes/devices, or the path of a file").required();
  section.field("gpus", &Cluster::gpus, "number of devices; --gpus beats it").range(1, 10'000'000);
  section.field("gpus_per_node", &Cluster::gpus_per_node, "devices of a node").range(1, 65536);
  section
      .field("price_per_gpu_hour", &Cluster::price_per_gpu_hour,
             "price of a device for an hour, in any currency; 0: unknown")
      .at_least(0);
  section.section("link", &Cluster::link);
  section.section("network", &Cluster::network);
  section.section("host", &Cluster::host);
  section.section("reliability", &Cluster::reliability);
  section.section("topology", &Cluster::topology);
}

std::vector<config::Problem> find_problems(const Device& device) {
  std::vector<config::Problem> problems;
  if (device.fp32_tflops <= 0 && device.fp16_tflops <= 0 && device.bf16_tflops <= 0 && device.fp8_tflops <= 0)
    problems.push_back({.key = "bf16_tflops", .reason = "no rate is given", .hint = "give at least one of the rates"});
  return problems;
}

std::vector<config::Problem> find_problems(const Cluster& cluster) {
  std::vector<config::Problem> problems;
  const Host& host = cluster.host;
  if (host.memory_gib > 0 && (host.link_gb_per_s <= 0 || host.memory_gb_per_s <= 0))
    problems.push_back({.key = "host.memory_gib",
                        .reason = "the host's memory is of use with its bandwidths only",
                        .hint = "set host.link_gb_per_s and host.memory_gb_per_s, or leave out [host]"});
  if (cluster.gpus_per_node > 1 && cluster.link.gb_per_s <= 0)
    problems.push_back({.key = "link.gb_per_s",
                        .reason = fmt::format("{} devices share a node, so they need a link", cluster.gpus_per_node),
                        .hint = "set link.gb_per_s, or gpus_per_node = 1"});
  if (cluster.gpus > cluster.gpus_per_node && cluster.network.gb_per_s <= 0)
    problems.push_back(
        {.key = "network.gb_per_s",
         .reason = fmt::format("{} devices take more than one node, so they need a network", cluster.gpus),
         .hint = fmt::format("set network.gb_per_s, or gpus = {}", cluster.gpus_per_node)});
  add_topology_problems(cluster, problems);
  return problems;
}

double peak(const Device& device, Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFp32:
      return device.fp32_tflops * 1e12;
    case Arithmetic::kFp16:
      return device.fp16_tflops * 1e12;
    case Arithmetic::kBf16:
      return device.bf16_tflops * 1e12;
    case Arithmetic::kFp8:
      return device.fp8_tflops * 1e12;
  }
  return 0;
}

std::string efficiency_name(const Device& device) {
  return device.efficiency_of.empty() ? device.name : device.efficiency_of;
}

Device load_device(const std::string& name) {
  Device device = read_device(name);
  if (!device.efficiency_of.empty()) {
    device.efficiency = with_context(fmt::format("while reading efficiency_of of device \"{}\"", name),
                                     [&] { return read_device(device.efficiency_of).efficiency; });
  }
  return device;
}

std::optional<Device> find_device_of_driver(std::string_view driver_name) {
  for (const std::string& name : data_names("devices")) {
    Device device = load_device(name);
    if (std::ranges::find(device.driver_names, driver_name) != device.driver_names.end()) return device;
  }
  return std::nullopt;
}

Hardware load_hardware(const std::string& name) {
  Hardware hardware;
  const std::filesystem::path file = find_data_file("clusters", name);
  hardware.cluster = config::load<Cluster>({.file = file.string()}).value;
  std::string device = hardware.cluster.device;
  if (device.ends_with(".toml") && std::filesystem::path(device).is_relative())
    device = (std::filesystem::absolute(file).parent_path() / device).string();
  hardware.device = with_context(fmt::format("while reading the device of cluster \"{}\"", name),
                                 [&] { return load_device(device); });
  return hardware;
}

}  // namespace trireme::cost
