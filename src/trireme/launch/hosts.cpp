// Ranks on named hosts, started over ssh by this process, which stays: `--hosts a:4,b:4`.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "trireme/base/text.h"
#include "trireme/launch/host_list.h"
#include "trireme/launch/launcher.h"

namespace trireme::launch {
namespace {

class Hosts final : public Launcher {
 public:
  std::string name() const override { return "hosts"; }
  std::string value() const override { return "HOST[:RANKS],..."; }
  std::string meaning() const override {
    return "start ranks on these hosts over ssh and stay until they end: a:4,b:4, user@node[1-8], [fd00::7]:2; "
           "localhost needs no ssh";
  }
  std::vector<Setting> settings() const override {
    return {
        {"ssh", "COMMAND", "what reaches a host, with its options; the host and a line of sh are added",
         std::string(kSsh)},
        {"master-addr", "ADDRESS", "address of rank 0's host, where ranks meet, if the name in --hosts is not it", ""}};
  }
  int slots(const Settings& settings) const override {
    const auto hosts = list_of(settings);
    if (std::ranges::any_of(hosts, [](const Host& host) { return !host.slots; })) return 0;
    return std::accumulate(hosts.begin(), hosts.end(), 0, [](int sum, const Host& host) { return sum + *host.slots; });
  }
  int nodes(const Settings& settings) const override { return static_cast<int>(list_of(settings).size()); }

  std::vector<config::Problem> find_problems(const Job& job, const Settings& settings) const override {
    std::vector<config::Problem> problems;
    const auto hosts = list_of(settings);
    const int given = static_cast<int>(std::ranges::count_if(hosts, [](const Host& host) { return !!host.slots; }));
    const int count = static_cast<int>(hosts.size());
    if (given > 0 && given < count) {
      problems.push_back({.key = "--hosts",
                          .reason = "some hosts say how many ranks they take, others do not",
                          .hint = "write HOST:RANKS for each"});
    } else if (given == 0 && job.ranks % count != 0) {
      problems.push_back({.key = "--hosts",
                          .reason = fmt::format("{} do not divide {} ranks", counted(hosts.size(), "host"), job.ranks),
                          .hint = "write HOST:RANKS for each"});
    } else if (given > 0 && slots(settings) < job.ranks) {
      problems.push_back(
          {.key = "--hosts",
           .reason = fmt::format("there is room for {} ranks, but the run has {}", slots(settings), job.ranks),
           .hint = fmt::format("name more hosts, or set layout.dp so that {} ranks are enough", slots(settings))});
    }
    if (!job.sweep.empty()) {
      problems.push_back({.key = "--sweep", .reason = "hosts have no queue for several runs", .hint = "use --slurm"});
    }
    return problems;
  }

  Submission prepare(const Job& job, const Settings& settings) const override {
    const auto hosts = list_of(settings);
    const std::string master = settings.text("master-addr").empty() ? hosts[0].address : settings.text("master-addr");
    Submission submission;
    int rank = 0;
    for (std::size_t node = 0; node < hosts.size() && rank < job.ranks; ++node) {
      const int room = hosts[node].slots.value_or(job.ranks / static_cast<int>(hosts.size()));
      const int here = std::min(room, job.ranks - rank);
      for (int local = 0; local < here; ++local, ++rank) {
        const std::string script =
            rank_script(job, torchrun_environment(job, master, rank, local, here, static_cast<int>(node)));
        submission.processes.push_back({.name = fmt::format("rank {} on {}", rank, hosts[node].address),
                                        .prefix = fmt::format("[rank {}] ", rank),
                                        .words = words_on(hosts[node], script, settings.text("ssh"))});
      }
    }
    return submission;
  }

 private:
  static std::vector<Host> list_of(const Settings& settings) { return parse_hosts(settings.text("hosts")); }
};

}  // namespace

std::unique_ptr<const Launcher> make_hosts() { return std::make_unique<Hosts>(); }

}  // namespace trireme::launch
