// trireme cluster: what a cluster is made of, shown, read from files of other programs, and one of its links simulated.
#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>

#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cost/import_cluster.h"
#include "trireme/cost/infiniband.h"
#include "trireme/cost/topology.h"

namespace trireme::cli {
namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError(fmt::format("{} cannot be read", path), "look at its name and its permissions");
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

std::map<std::string, cost::IbRate> rate_words() {
  std::map<std::string, cost::IbRate> words;
  for (const auto& [name, rate] : cost::enum_names(std::type_identity<cost::IbRate>())) words[std::string(name)] = rate;
  return words;
}

/// "ndr", or Gbit/s of an adapter.
double adapter_rate(const std::string& text) {
  const auto words = rate_words();
  if (const auto found = words.find(text); found != words.end()) return cost::data_gbit_per_s(found->second);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value > 0 && value < 1e6) return value;
  std::vector<std::string> names;
  for (const auto& [name, rate] : words) names.push_back(name);
  throw ConfigError(fmt::format("\"{}\" is no network{}", text, did_you_mean(text, names)),
                    fmt::format("write the Gbit/s of an adapter, or a generation of InfiniBand: {}", listed(names)));
}

void add_cluster_show(Command& above, Context& context) {
  Command& command =
      above.add_subcommand("show", "Print how devices of a cluster are joined, and the path between two");
  struct Options {
    std::string cluster;
    std::vector<int> pair;
  };
  const auto options = std::make_shared<Options>();  // shared with the callback
  command.add_option("CLUSTER", options->cluster, "A cluster by name (dgx-h100, ...) or the path of a file").required();
  command.add_option("--pair", options->pair, "two devices, numbered node by node: 0,17")
      .delimiter(',')
      .type_name("A,B");
  command.footer("Examples:\n  trireme cluster show dgx-1v\n  trireme cluster show superpod-h100 --pair 0,17");
  command.callback([options, &context] {
    context.run = [options, &context] {
      const cost::Hardware hardware = cost::load_hardware(options->cluster);
      const cost::Cluster& cluster = hardware.cluster;
      if (!options->pair.empty()) {
        if (options->pair.size() != 2) throw ConfigError("--pair takes two devices", "--pair 0,17");
        for (const int device : options->pair) {
          if (device < 0 || device >= cluster.gpus)
            throw ConfigError(fmt::format("{} has no device {}", cluster.name, device),
                              fmt::format("devices are 0 to {}", cluster.gpus - 1));
        }
        fmt::print(context.out, "GPU {} and {}: {}\n", options->pair[0], options->pair[1],
                   cost::path_between(cluster, options->pair[0], options->pair[1]).text());
        return kExitFine;
      }
      fmt::print(context.out, "{}: {} x {}, {} a node\n  link     {}\n  network  {}\n\n{}", cluster.name, cluster.gpus,
                 hardware.device.name, cluster.gpus_per_node, cluster.link.kind, cluster.network.kind,
                 cost::topology_table(hardware));
      return kExitFine;
    };
  });
}

void add_cluster_import(Command& above, Context& context) {
  Command& command = above.add_subcommand(
      "import", "Write a cluster file from nvidia-smi, a topology file of NCCL and Slurm's topology.conf");
  struct Options {
    std::string matrix, nccl, slurm, network, out;
    cost::ClusterSources sources;
  };
  const auto options = std::make_shared<Options>();  // shared with the callback
  options->sources.name = "mine";
  command.add_option("--nvidia-smi", options->matrix, "what `nvidia-smi topo -m` printed on a node").type_name("FILE");
  command.add_option("--nccl", options->nccl, "what NCCL_TOPO_DUMP_FILE wrote on a node").type_name("FILE");
  command.add_option("--slurm-topology", options->slurm, "Slurm's topology.conf (topology/tree): nodes and pods")
      .type_name("FILE");
  command.add_option("--device", options->sources.device, "device of the nodes; default: by the NCCL file")
      .type_name("NAME");
  command.add_option("--network", options->network, "rate of a network adapter: ndr, hdr, ..., or Gbit/s")
      .type_name("RATE");
  command.add_option("--nodes", options->sources.nodes, "number of nodes, without --slurm-topology").not_negative();
  command.add_option("--oversubscription", options->sources.oversubscription, "of the links above pods").positive();
  command.add_option("--name", options->sources.name, "name of the cluster");
  command.add_option("-o,--output", options->out, "the file to write; default: print it").type_name("FILE");
  command.footer(
      "Examples:\n"
      "  trireme cluster import --nvidia-smi topo.txt --device h100 --network ndr --nodes 4\n"
      "  trireme cluster import --nccl topo.xml --slurm-topology topology.conf --name mine -o mine.toml");
  command.callback([options, &context] {
    context.run = [options, &context] {
      cost::ClusterSources& sources = options->sources;
      if (!options->matrix.empty())
        sources.matrix = formats::read_gpu_matrix(text_of_file(options->matrix), options->matrix);
      if (!options->nccl.empty())
        sources.nccl = formats::read_nccl_topology(text_of_file(options->nccl), options->nccl);
      if (!options->slurm.empty())
        sources.slurm = formats::read_slurm_topology(text_of_file(options->slurm), options->slurm);
      if (!options->network.empty()) sources.nic_gbit_per_s = adapter_rate(options->network);
      const cost::ImportedCluster imported = cost::import_cluster(sources);
      for (const std::string& note : imported.notes) log_warn("{}", note);
      const std::string text = config::to_toml(imported.cluster);
      if (options->out.empty()) {
        context.out << text;
      } else {
        write_text_file(options->out, text);
        log_info("{} written; see it with: trireme cluster show {}", options->out, options->out);
      }
      return kExitFine;
    };
  });
}

void add_cluster_link(Command& above, Context& context) {
  Command& command = above.add_subcommand(
      "link", "Simulate an InfiniBand link packet by packet: credits, go-back-N, and what the formulas say");
  struct Options {
    cost::IbRate rate = cost::IbRate::kNdr;
    int width = 4;
    cost::IbLink link{.propagation_us = 0.5};
    cost::IbLane lane{.packets = 20'000};
    std::uint64_t seed = 1;
  };
  const auto options = std::make_shared<Options>();  // shared with the callback
  add_choice(command, "--rate", options->rate, rate_words(), "generation of InfiniBand");
  command.add_option("--lanes", options->width, "physical lanes of the port").within(1, 12);
  command.add_option("--mtu", options->link.mtu, "payload of a packet in bytes").within(256, 4096);
  command.add_option("--propagation-us", options->link.propagation_us, "one way, switches included").not_negative();
  command
      .add_option("--blocks", options->lane.buffer_blocks, "buffer of the receiver, in blocks of 64 bytes: the credits")
      .positive();
  command.add_option("--loss", options->link.loss, "share of packets lost to bit errors").within(0, 0.5);
  command
      .add_option("--drain-gbit", options->lane.drain_gbit_per_s,
                  "how fast the receiver empties its buffer; 0: at once")
      .not_negative();
  command.add_option("--packets", options->lane.packets, "packets to deliver").within(1, 10'000'000);
  command.add_option("--seed", options->seed, "of the losses");
  command.footer(
      "Examples:\n  trireme cluster link --rate ndr --propagation-us 2 --blocks 520\n"
      "  trireme cluster link --rate hdr --loss 1e-3");
  command.callback([options, &context] {
    context.run = [options, &context] {
      cost::IbLink& link = options->link;
      link.gbit_per_s = cost::data_gbit_per_s(options->rate, options->width);
      link.seed = options->seed;
      const cost::IbLaneResult result = cost::simulate(link, {options->lane}).front();
      const double rate = cost::payload_bytes_per_s(link);
      fmt::print(context.out, "line rate      {:.4g} Gbit/s of {:.4g} on the wire\n", link.gbit_per_s,
                 cost::signal_gbit_per_s(options->rate) * options->width);
      fmt::print(context.out, "payload        {} at most, with packets of {} bytes\n", short_bandwidth(rate), link.mtu);
      fmt::print(context.out, "credits        {} at most: {} packets in the receiver's {} blocks\n",
                 short_bandwidth(cost::credit_limited_bytes_per_s(link, options->lane)),
                 options->lane.buffer_blocks / cost::packet_blocks(link), options->lane.buffer_blocks);
      if (link.loss > 0)
        fmt::print(context.out, "go-back-N      {:.1f} % of the line rate expected\n",
                   100 * cost::go_back_n_efficiency(link));
      fmt::print(context.out, "simulated      {}, {:.1f} % of the payload rate, in {}\n",
                 short_bandwidth(result.bytes_per_s(link)), 100 * result.bytes_per_s(link) / rate,
                 short_seconds(result.seconds()));
      fmt::print(context.out, "packets        {} delivered, {} sent, {} lost; {} NAKs, {} timeouts\n", result.delivered,
                 result.sent, result.lost, result.naks, result.timeouts);
      fmt::print(context.out, "buffer         {} of {} blocks at most\n", result.most_blocks,
                 options->lane.buffer_blocks);
      return kExitFine;
    };
  });
}

}  // namespace

void add_cluster_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("cluster", "What a cluster is made of: show it, import it, simulate a link");
  command.require_subcommand(1);
  add_cluster_show(command, context);
  add_cluster_import(command, context);
  add_cluster_link(command, context);
}

}  // namespace trireme::cli
