#include "trireme/comm/network_interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

struct Address {
  int family = AF_INET;
  unsigned char bytes[16] = {};
  int bits() const { return family == AF_INET ? 32 : 128; }
};

std::optional<Address> parse_address(const std::string& text) {
  Address address;
  for (const int family : {AF_INET, AF_INET6}) {
    address.family = family;
    // A link-local address may carry its interface, "fe80::1%eth0".
    if (inet_pton(family, text.substr(0, text.find('%')).c_str(), address.bytes) == 1) return address;
  }
  return std::nullopt;
}

struct Network {
  Address address;
  int prefix = 0;

  bool contains(const Address& other) const {
    if (other.family != address.family) return false;
    for (int bit = 0; bit < prefix; ++bit) {
      const int mask = 0x80 >> (bit % 8);
      if ((address.bytes[bit / 8] & mask) != (other.bytes[bit / 8] & mask)) return false;
    }
    return true;
  }
};

Network parse_network(const std::string& text) {
  const std::size_t slash = text.find('/');
  Network network;
  const auto address = parse_address(text.substr(0, slash));
  const char *begin = text.data() + slash + 1, *end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, network.prefix);
  if (!address || error != std::errc{} || stop != end || network.prefix < 0 || network.prefix > address->bits()) {
    throw ConfigError(fmt::format("comm.interface = \"{}\" is no network in CIDR form", text),
                      "write one like \"10.1.0.0/16\" or \"fd00:7::/64\", or the name of an interface");
  }
  network.address = *address;
  return network;
}

std::string table_of(const std::vector<NetworkInterface>& present) {
  std::string text;
  for (const NetworkInterface& interface : present) {
    text += fmt::format("{}{}", text.empty() ? "" : "; ", interface.name);
    if (!interface.addresses.empty()) text += fmt::format(" ({})", listed(interface.addresses));
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  std::vector<NetworkInterface> present;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw IoError(fmt::format("network interfaces cannot be listed: {}", std::strerror(errno)));
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    auto found = std::ranges::find(present, std::string(entry->ifa_name), &NetworkInterface::name);
    if (found == present.end())
      found = present.insert(present.end(), NetworkInterface{.name = entry->ifa_name, .addresses = {}});
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      found->addresses.emplace_back(text);
  }
  freeifaddrs(list);
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", none))
    present.push_back({.name = device.path().filename().string(), .addresses = {}});
  return present;
}

ChosenInterfaces choose_interfaces(const std::string& wanted, const std::vector<NetworkInterface>& present) {
  ChosenInterfaces chosen;
  for (const std::string& part : split(wanted, ',')) {
    const std::string word(trimmed(part));
    const std::size_t before = chosen.names.size();
    if (word.find('/') != std::string::npos) {
      const Network network = parse_network(word);
      chosen.ipv6 |= network.address.family == AF_INET6;
      for (const NetworkInterface& interface : present) {
        const bool inside = std::ranges::any_of(interface.addresses, [&](const std::string& text) {
          const auto address = parse_address(text);
          return address && network.contains(*address);
        });
        if (inside) chosen.names.push_back(interface.name);
      }
    } else {
      // An RDMA device may be named with its port, "mlx5_0:1".
      const std::string device = word.substr(0, word.find(':'));
      const bool there = std::ranges::any_of(present, [&](const NetworkInterface& interface) {
        return interface.name == word || (interface.addresses.empty() && interface.name == device);
      });
      if (there) chosen.names.push_back(word);
    }
    if (chosen.names.size() == before) {
      throw ConfigError(
          fmt::format("comm.interface = \"{}\": no network interface of this machine is meant by \"{}\"", wanted, word),
          fmt::format("choose among those that are up: {}", table_of(present)));
    }
  }
  std::vector<std::string> unique;
  for (const std::string& name : chosen.names) {
    if (std::ranges::find(unique, name) == unique.end()) unique.push_back(name);
  }
  chosen.names = std::move(unique);
  return chosen;
}

ChosenInterfaces choose_interfaces(const std::string& wanted) {
  return wanted.empty() ? ChosenInterfaces{} : choose_interfaces(wanted, network_interfaces());
}

}  // namespace trireme::comm
