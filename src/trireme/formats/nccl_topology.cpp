#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/formats/format_error.h"
#include "trireme/formats/topology_files.h"
#include "trireme/formats/xml_reader.h"

namespace trireme::formats {
namespace {

[[noreturn]] void fail_nccl(const std::string& name, const std::string& what) {
  throw FormatError(fmt::format("{}: {}", name, what), "give a file that NCCL_TOPO_DUMP_FILE has written");
}

double leading_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && std::isfinite(value) && value >= 0 ? value : -1;
}

int whole(const XmlElement& element, std::string_view key, const std::string& name) {
  const double value = leading_number(element.attribute(key));
  if (value < 0 || value > 1e6 || value != std::floor(value))
    fail_nccl(name, fmt::format("{} of an element {} is {}, which it cannot be", key, shown(element.name),
                                shown(element.attribute(key))));
  return static_cast<int>(value);
}

/// "16.0 GT/s PCIe" and "16": GB/s in one direction, after encoding. 0 where the file does not say.
double pci_rate(const XmlElement& pci) {
  const double transfers = leading_number(pci.attribute("link_speed")),
               width = leading_number(pci.attribute("link_width"));
  if (transfers <= 0 || width <= 0 || transfers > 1000 || width > 64) return 0;
  return transfers * width / 8 * (transfers < 6 ? 8.0 / 10 : 128.0 / 130);
}

class NcclWalk {
 public:
  NcclWalk(const std::string& name, NcclTopology& topology) : name_(name), topology_(topology) {}

  void walk(const XmlElement& element, const XmlElement* pci) {
    if (element.name == "gpu") gpu(element, pci);
    if (element.name == "net") net(element);
    for (const XmlElement& child : element.children) walk(child, element.name == "pci" ? &element : pci);
  }

 private:
  void gpu(const XmlElement& element, const XmlElement* pci) {
    NcclTopology::Gpu gpu{
        .dev = whole(element, "dev", name_), .sm = whole(element, "sm", name_), .bus_id = {}, .nvlinks = {}};
    if (pci != nullptr) {
      gpu.bus_id = pci->attribute("busid");
      gpu.pci_gb_per_s = pci_rate(*pci);
    }
    for (const XmlElement& child : element.children) {
      if (child.name != "nvlink") continue;
      // The class of what is at the other end: 0x0680.. is a bridge, which NVSwitches are.
      gpu.nvlinks.push_back({.target = std::string(child.attribute("target")),
                             .count = whole(child, "count", name_),
                             .to_switch = child.attribute("tclass").starts_with("0x0680")});
    }
    topology_.gpus.push_back(std::move(gpu));
  }
  void net(const XmlElement& element) {
    const double mbit = leading_number(element.attribute("speed"));
    if (mbit <= 0) fail_nccl(name_, fmt::format("the adapter {} has no speed", shown(element.attribute("name"))));
    topology_.nets.push_back({.name = std::string(element.attribute("name")), .gbit_per_s = mbit / 1000});
  }

  const std::string& name_;
  NcclTopology& topology_;
};

}  // namespace

NcclTopology read_nccl_topology(std::string_view text, const std::string& name) {
  const XmlElement root = read_xml(text, name);
  if (root.name != "system") fail_nccl(name, fmt::format("its root is {}, not <system>", shown(root.name)));
  NcclTopology topology;
  NcclWalk(name, topology).walk(root, nullptr);
  if (topology.gpus.empty()) fail_nccl(name, "there is no GPU in it");
  std::ranges::stable_sort(topology.gpus, {}, &NcclTopology::Gpu::dev);
  for (std::size_t i = 1; i < topology.gpus.size(); ++i) {
    if (topology.gpus[i].dev == topology.gpus[i - 1].dev)
      fail_nccl(name, fmt::format("device {} is there twice", topology.gpus[i].dev));
  }
  return topology;
}

}  // namespace trireme::formats
