// cost/hardware.h -- what a cluster is made of: devices, the links of a node, the network, and how often things fail.
//
//   const Hardware hardware = load_hardware("selene");
//   hardware.peak(Arithmetic::kBf16)      // FLOP/s by the data sheet
//
// A device's file says what its maker publishes and, in [efficiency], which share of it real training reaches. Those
// constants were fitted once for each architecture to published runs (docs/planner.md), never for one run.
// Depends on: base (config, data_files).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::cost {

/// The numbers that GEMMs take. Sums are wider; where they are fp8, attention and the rest stay bf16.
enum class Arithmetic : std::uint8_t { kFp32, kFp16, kBf16, kFp8 };
std::span<const Named<Arithmetic>> enum_names(std::type_identity<Arithmetic>);

/// Shares of what the data sheets promise, as seen in long runs. The only constants that are fitted.
struct Efficiency {
  double matmul = 0.7;           ///< of the peak, for GEMMs large in every direction
  double memory = 0.8;           ///< of the memory's bandwidth, for operators that only stream
  double attention = 0.5;        ///< of the peak, for fused attention, over the tiles it computes
  double link = 0.7;             ///< of a node's links, for collectives
  double network = 0.7;          ///< of the network, for collectives and messages
  double overlap = 0.5;          ///< of communication that can run beside computing, what does
  double gather = 0.7;           ///< of the network's share above, for the many gathers of ZeRO-3
  double kernel_seconds = 4e-6;  ///< from one operator's end to the start of the next
  bool operator==(const Efficiency&) const = default;
};

struct Device {
  std::string name;
  double fp32_tflops = 0, fp16_tflops = 0, bf16_tflops = 0, fp8_tflops = 0;  ///< dense; 0: it has none
  double memory_gib = 0;
  double memory_gb_per_s = 0;
  double nvlink_gb_per_s = 0;  ///< of one NVLink, in one direction; 0: it has none
  int nvlinks = 0;
  double software_gb = 0.8;               ///< that context, kernels and communicators take; measured on an H200
  std::vector<std::string> driver_names;  ///< "NVIDIA H200": what drivers call it
  std::string efficiency_of;  ///< the device of the same architecture whose constants it shares; empty: its own
  Efficiency efficiency;
  bool operator==(const Device&) const = default;
};

struct NodeLink {
  std::string kind = "none";
  double gb_per_s = 0;  ///< of one device, in one direction
  double latency_us = 3;
  bool operator==(const NodeLink&) const = default;
};

struct Network {
  std::string kind = "none";
  double gb_per_s = 0;  ///< for each device, in one direction
  double latency_us = 5;
  int pod_gpus = 0;             ///< devices below the level where links get scarce; 0: nowhere
  double oversubscription = 1;  ///< of the links above a pod
  bool operator==(const Network&) const = default;
};

/// What each device has of the machine around it.
struct Host {
  double memory_gib = 0;       ///< 0: unknown, so nothing can be kept there
  double link_gb_per_s = 0;    ///< between device and host, in one direction
  double memory_gb_per_s = 0;  ///< of the host's memory
  bool operator==(const Host&) const = default;
};

struct Reliability {
  double device_mtbf_hours = 50000;  ///< of one device with its share of host and network
  double restart_seconds = 600;      ///< from a failure until training goes on
  double storage_gb_per_s = 0.1;     ///< what each device can write of a checkpoint
  bool operator==(const Reliability&) const = default;
};

/// What is connected to what, beyond the rates above; cost/topology.h makes paths between devices of it.
struct ClusterTopology {
  int gpus_per_host = 0;          ///< devices that one operating system sees; 0: those of a node
  int nvswitches = 0;             ///< of a node
  std::vector<std::string> mesh;  ///< "0-3:2": two NVLinks between devices 0 and 3; empty: any two by switches, or none
  int nics = 0;                   ///< adapters of a node for compute; 0: unknown
  double nic_gbit_per_s = 0;      ///< of one, in one direction
  bool rails = false;             ///< adapter i of every node of a unit is on leaf switch i
  int unit_nodes = 0;             ///< nodes below the same leaf switches; 0: all
  bool operator==(const ClusterTopology&) const = default;
};

struct Cluster {
  std::string name;
  std::string device;
  int gpus = 8;  ///< unless --gpus says otherwise
  int gpus_per_node = 8;
  double price_per_gpu_hour = 0;  ///< 0: unknown
  NodeLink link;
  Network network;
  Host host;
  Reliability reliability;
  ClusterTopology topology = {};
  bool operator==(const Cluster&) const = default;
};

void describe(config::Section<Efficiency>& section);
void describe(config::Section<Device>& section);
void describe(config::Section<NodeLink>& section);
void describe(config::Section<Network>& section);
void describe(config::Section<Host>& section);
void describe(config::Section<Reliability>& section);
void describe(config::Section<ClusterTopology>& section);
void describe(config::Section<Cluster>& section);
std::vector<config::Problem> find_problems(const Device& device);
std::vector<config::Problem> find_problems(const Cluster& cluster);

/// FLOP/s; 0 where the device has no such units.
double peak(const Device& device, Arithmetic arithmetic);

/// A cluster with its device: what everything is priced with.
struct Hardware {
  Cluster cluster;
  Device device;

  double peak(Arithmetic arithmetic) const { return cost::peak(device, arithmetic); }
  double memory_bytes() const { return device.memory_gib * 1073741824.0; }
  double memory_bandwidth() const { return device.memory_gb_per_s * 1e9; }
  double link_bandwidth() const { return cluster.link.gb_per_s * 1e9; }
  double network_bandwidth() const { return cluster.network.gb_per_s * 1e9; }
  bool operator==(const Hardware&) const = default;
};

/// A name in recipes/devices or the path of a file; its efficiency is that of `efficiency_of` where it names one.
Device load_device(const std::string& name);
/// The one in recipes/devices that drivers call so; nothing where none is.
std::optional<Device> find_device_of_driver(std::string_view driver_name);
/// A name in recipes/clusters or the path of a file. Where a file names its device by a path, that is seen from its own
/// folder.
Hardware load_hardware(const std::string& name);
/// The device whose [efficiency] this one takes: itself, or the one it names.
std::string efficiency_name(const Device& device);

}  // namespace trireme::cost
