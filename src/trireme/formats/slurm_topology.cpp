#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/host_expression.h"
#include "trireme/formats/topology_files.h"

namespace trireme::formats {
namespace {

[[noreturn]] void fail_slurm(const std::string& name, std::size_t line, const std::string& what) {
  throw FormatError(fmt::format("{}: {} (line {})", name, what, line),
                    "lines look like SwitchName=leaf1 Nodes=n[1-32] and SwitchName=top Switches=leaf[1-4]");
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& letter : out) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return out;
}

std::vector<std::string> hosts_of(std::string_view value, const std::string& name, std::size_t line) {
  try {
    return expand_hosts(value, name);
  } catch (const FormatError& error) {
    fail_slurm(name, line, error.message());
  }
}

/// Depth first; a switch that is met on the way down to itself is a circle.
void check_circle(const std::map<std::string, const SlurmSwitch*>& by_name, const std::string& at,
                  std::map<std::string, int>& colour, const std::string& name) {
  std::vector<std::pair<std::string, std::size_t>> path = {{at, 0}};  // no recursion: a chain may be long
  colour[at] = 1;
  while (!path.empty()) {
    auto& [here, next] = path.back();
    const auto& below = by_name.at(here)->switches;
    if (next == below.size()) {
      colour[here] = 2;
      path.pop_back();
      continue;
    }
    const std::string child = below[next++];
    if (colour[child] == 1) fail_slurm(name, 0, fmt::format("switch {} lies below itself", shown(child)));
    if (colour[child] == 0) {
      colour[child] = 1;
      path.emplace_back(child, 0);
    }
  }
}

void check_tree(const SlurmTopology& topology, const std::string& name) {
  std::map<std::string, const SlurmSwitch*> by_name;
  for (const SlurmSwitch& one : topology.switches) {
    if (!by_name.emplace(one.name, &one).second)
      fail_slurm(name, 0, fmt::format("switch {} is there twice", shown(one.name)));
  }
  std::set<std::string> nodes, below;
  for (const SlurmSwitch& one : topology.switches) {
    for (const std::string& node : one.nodes) {
      if (!nodes.insert(node).second) fail_slurm(name, 0, fmt::format("node {} is below two switches", shown(node)));
    }
    for (const std::string& child : one.switches) {
      if (!by_name.contains(child)) fail_slurm(name, 0, fmt::format("switch {} is nowhere described", shown(child)));
      if (!below.insert(child).second) fail_slurm(name, 0, fmt::format("switch {} is below two others", shown(child)));
    }
  }
  std::map<std::string, int> colour;
  for (const SlurmSwitch& one : topology.switches) {
    if (colour[one.name] == 0) check_circle(by_name, one.name, colour, name);
  }
}

}  // namespace

std::vector<std::string> SlurmTopology::nodes() const {
  std::vector<std::string> out;
  for (const SlurmSwitch& one : switches) out.insert(out.end(), one.nodes.begin(), one.nodes.end());
  return out;
}

std::vector<std::size_t> SlurmTopology::leaf_nodes() const {
  std::vector<std::size_t> out;
  for (const SlurmSwitch& one : switches) {
    if (!one.nodes.empty()) out.push_back(one.nodes.size());
  }
  return out;
}

std::size_t SlurmTopology::nodes_below(const std::string& name) const {
  std::size_t count = 0;
  std::vector<std::string> open = {name};
  while (!open.empty()) {
    const std::string at = std::move(open.back());
    open.pop_back();
    const auto found = std::ranges::find(switches, at, &SlurmSwitch::name);
    if (found == switches.end()) continue;
    count += found->nodes.size();
    open.insert(open.end(), found->switches.begin(), found->switches.end());
  }
  return count;
}

std::vector<std::size_t> SlurmTopology::pod_nodes() const {
  std::set<std::string> below;
  for (const SlurmSwitch& one : switches) below.insert(one.switches.begin(), one.switches.end());
  std::vector<std::size_t> out;
  for (const SlurmSwitch& top : switches) {
    if (below.contains(top.name)) continue;
    for (const std::string& child : top.switches) out.push_back(nodes_below(child));
  }
  return out.empty() ? leaf_nodes() : out;
}

SlurmTopology read_slurm_topology(std::string_view text, const std::string& name) {
  SlurmTopology topology;
  std::size_t number = 0, hosts = 0;
  std::string joined;
  for (const std::string& raw : split(text, '\n')) {
    ++number;
    std::string_view line = trimmed(std::string_view(raw).substr(0, raw.find('#')));
    if (line.ends_with('\\')) {
      joined += fmt::format("{} ", line.substr(0, line.size() - 1));
      continue;
    }
    joined += line;
    const std::string whole = std::move(joined);
    joined.clear();
    SlurmSwitch one;
    std::set<std::string> seen;
    for (const std::string& entry : split(whole, ' ')) {
      const std::string_view word = trimmed(entry);
      if (word.empty()) continue;
      const auto equals = word.find('=');
      if (equals == word.npos) fail_slurm(name, number, fmt::format("{} is no KEY=VALUE", shown(word)));
      const std::string key = lower_case(word.substr(0, equals));
      const std::string_view value = word.substr(equals + 1);
      if (!seen.insert(key).second) fail_slurm(name, number, fmt::format("{} is given twice", shown(key)));
      if (key == "switchname") {
        one.name = value;
        for (const char letter : value) {
          const auto byte = static_cast<unsigned char>(letter);
          if (byte <= ' ' || byte == 127 || std::string_view("[],=\\").find(letter) != std::string_view::npos)
            fail_slurm(name, number, fmt::format("{} is no name of a switch", shown(value)));
        }
      } else if (key == "nodes") {
        one.nodes = hosts_of(value, name, number);
      } else if (key == "switches") {
        one.switches = hosts_of(value, name, number);
      } else if (key != "linkspeed") {  // for information only, says Slurm
        fail_slurm(name, number, fmt::format("{} is no key of a switch", shown(key)));
      }
    }
    if (seen.empty()) continue;
    if (one.name.empty()) fail_slurm(name, number, "a switch without SwitchName");
    if (one.nodes.empty() == one.switches.empty())
      fail_slurm(name, number, fmt::format("switch {} has either Nodes or Switches", shown(one.name)));
    hosts += one.nodes.size() + one.switches.size();
    if (hosts > kMostHosts) fail_slurm(name, number, "more nodes than any machine has");
    topology.switches.push_back(std::move(one));
  }
  if (topology.switches.empty()) fail_slurm(name, number, "there is no switch in it");
  check_tree(topology, name);
  return topology;
}

std::string to_text(const SlurmTopology& topology) {
  std::string out;
  for (const SlurmSwitch& one : topology.switches) {
    out += fmt::format("SwitchName={} {}={}\n", one.name, one.nodes.empty() ? "Switches" : "Nodes",
                       compress_hosts(one.nodes.empty() ? one.switches : one.nodes));
  }
  return out;
}

}  // namespace trireme::formats
