// comm/network_interfaces.h -- which of a machine's network interfaces comm.interface means.
//
// A name ("eth0", or an RDMA device such as "mlx5_0:1"), several separated by commas, or a network in CIDR form
// ("10.1.0.0/16", "fd00:7::/64"): hosts that name their interfaces differently share a recipe by the latter.
// Depends on: base.
#pragma once

#include <string>
#include <vector>

namespace trireme::comm {

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;  // IPv4 and IPv6, as text
  bool operator==(const NetworkInterface&) const = default;
};
/// Those of this machine that are up, in the system's order; RDMA devices have no addresses.
std::vector<NetworkInterface> network_interfaces();

struct ChosenInterfaces {
  std::vector<std::string> names;
  bool ipv6 = false;  // a network of IPv6 addresses was asked for
  bool operator==(const ChosenInterfaces&) const = default;
};
/// Throws ConfigError, with what there is, when `wanted` names none of `present`.
ChosenInterfaces choose_interfaces(const std::string& wanted, const std::vector<NetworkInterface>& present);
/// Among this machine's. Nothing wanted, nothing chosen: whoever communicates takes all that it finds.
ChosenInterfaces choose_interfaces(const std::string& wanted);

}  // namespace trireme::comm
