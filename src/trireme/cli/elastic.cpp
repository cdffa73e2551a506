// trireme elastic: a run whose ranks come and go. Starts members on this machine, takes those that come from others,
// and says who is in which world.
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/elastic_members.h"
#include "trireme/cli/elastic_recipe.h"
#include "trireme/cli/program.h"
#include "trireme/comm/elastic_coordinator.h"
#include "trireme/launch/host_discovery.h"
#include "trireme/observe/timeline.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ElasticClock = std::chrono::steady_clock;

constexpr auto kElasticLook = 20ms;
constexpr auto kElasticGrace = 70s;  // for members of a run that has ended, to end themselves
constexpr int kNoSuchCommand = 127;

struct ElasticFlags {
  std::vector<std::string> command;
  std::optional<int> ranks;  ///< unset: 2, or none where hosts are named
  std::string host = "127.0.0.1", join_file, hosts, ssh = std::string(launch::kSsh);
  int port = 0;
  std::map<std::string, std::string> settings;  ///< of [elastic], by key: beat the recipe's
};

volatile sig_atomic_t elastic_stop = 0;
void on_elastic_stop(int) { elastic_stop = elastic_stop + 1; }

std::chrono::milliseconds milliseconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

/// What members are going to train, as they will read it.
struct ElasticRun {
  spec::Recipe recipe;
  fs::path folder;
};

ElasticRun run_of(const ElasticFlags& flags) {
  const std::vector<std::string>& words = flags.command;
  const auto train = std::ranges::find(words, "train");
  if (train == words.end()) {
    throw ConfigError(fmt::format("\"{}\" is no `trireme train`", fmt::join(words, " ")),
                      "write: trireme elastic --ranks 4 -- trireme train RECIPE --out RUN");
  }
  std::optional<std::string> file, out;
  std::vector<std::string> sets;
  for (auto word = train + 1; word != words.end(); ++word) {
    const bool more = word + 1 != words.end();
    if (*word == "--set" && more) sets.push_back(*++word);
    if (*word == "--out" && more) out = *++word;
    if (word->starts_with("--out=")) out = word->substr(6);
    if (word->ends_with(".toml") && !file) file = *word;
    if (*word == "--ranks" || word->starts_with("--ranks=")) {
      throw ConfigError("the command says --ranks, but `trireme elastic` decides how many there are",
                        "give --ranks before the --");
    }
  }
  for (const auto& [key, value] : flags.settings) sets.push_back(fmt::format("elastic.{}={}", key, value));
  ElasticRun run{.recipe = spec::load_recipe({.file = file, .sets = sets}).value, .folder = {}};
  run.folder = out ? fs::path(*out) : fs::path(run.recipe.run.out) / run.recipe.run.name;
  return run;
}

void tell_event(const comm::ElasticCoordinator::Event& event, observe::Timeline& timeline) {
  const std::string phase(name_of(event.phase));
  timeline.tell("elastic", {{"phase", phase},
                            {"epoch", event.epoch},
                            {"members", event.members},
                            {"step", event.step},
                            {"before_s", event.phase_s},
                            {"why", event.why}});
  const std::string why = event.why.empty() ? "" : fmt::format(": {}", event.why);
  if (event.phase == comm::WorldPhase::kRunning) {
    log_info("elastic: epoch {} runs on {} from step {}", event.epoch, counted(event.members.size(), "rank"),
             event.step);
  } else if (event.phase == comm::WorldPhase::kAgreeing || event.phase == comm::WorldPhase::kWaiting) {
    log_info("elastic: epoch {} is over, {}{}", event.epoch, phase, why);
  } else {
    log_debug("elastic: epoch {} {}{}", event.epoch, phase, why);
  }
}

/// Hosts that the run begins with: those that are named, and this machine.
std::vector<launch::Host> first_hosts(const ElasticFlags& flags, const spec::ElasticConfig& elastic) {
  std::vector<launch::Host> hosts =
      flags.hosts.empty() ? std::vector<launch::Host>{} : launch::parse_hosts(flags.hosts);
  for (launch::Host& host : hosts) {
    if (!host.slots) host.slots = 1;
  }
  const bool elsewhere = !flags.hosts.empty() || !elastic.discovery_script.empty();
  const int here = flags.ranks.value_or(elsewhere ? 0 : 2);
  if (here > 0) hosts.insert(hosts.begin(), launch::Host{.user = "", .address = "localhost", .slots = here});
  return hosts;
}

bool is_loopback(const std::string& host) { return host == "127.0.0.1" || host == "::1" || host == "localhost"; }

void check_hosts(const ElasticFlags& flags, const spec::ElasticConfig& elastic) {
  if (!flags.hosts.empty() && !elastic.discovery_script.empty())
    throw ConfigError("--hosts and the discovery script both say which hosts there are",
                      "let the script print those of --hosts, and leave --hosts out");
  if ((!flags.hosts.empty() || !elastic.discovery_script.empty()) && is_loopback(flags.host))
    throw ConfigError(fmt::format("ranks of other hosts cannot reach --host {}", flags.host),
                      "give --host an address of this machine that they reach");
  if ((!flags.hosts.empty() || !elastic.discovery_script.empty()) && !env("TRIREME_TOKEN_FILE"))
    throw ConfigError("ranks of other hosts need the job's secret, which is not sent through ssh",
                      "set TRIREME_TOKEN_FILE to a file of mode 0600 that all hosts see");
}

int run_elastic(ElasticFlags& flags, Context& context) {
  const ElasticRun run = run_of(flags);
  const spec::ElasticConfig& elastic = run.recipe.elastic;
  check_hosts(flags, elastic);
  const std::vector<launch::Host> named = first_hosts(flags, elastic);
  int first_ranks = 0;
  for (const launch::Host& host : named) first_ranks += *host.slots;
  std::map<int, int> fitted;  // it is asked often, and rules take their time
  const auto fit = [&](int available) {
    const auto known = fitted.find(available);
    if (known != fitted.end()) return known->second;
    const auto world = fit_recipe(run.recipe, available);
    return fitted[available] = world ? world->ranks : 0;
  };
  const int most = std::min(elastic.max_ranks, std::max(first_ranks, elastic.min_ranks));
  if (fit(most) < elastic.min_ranks)
    throw ConfigError(fmt::format("the recipe has no layout for {} to {} ranks", elastic.min_ranks, most),
                      "`trireme check RECIPE --ranks N` says why");
  const bool here_only = is_loopback(flags.host);
  std::string token = comm::control_token();
  if (token.empty() && !here_only)
    throw ConfigError(
        fmt::format("members of other hosts could join at {}, and so could anybody: there is no token", flags.host),
        "set TRIREME_TOKEN_FILE to a file of mode 0600 with a secret, here and for members");
  if (token.empty()) set_env("TRIREME_TOKEN", token = to_hex(random_bytes(32)));

  comm::ElasticCoordinator coordinator(
      {.host = flags.host,
       .port = flags.port,
       .token = token,
       .first_ranks = std::max(first_ranks, elastic.min_ranks),
       .wait = milliseconds_of(elastic.wait),
       .heartbeat_timeout = milliseconds_of(elastic.heartbeat)},
      {.min_ranks = elastic.min_ranks, .max_ranks = elastic.max_ranks, .fit = fit, .reset_limit = elastic.reset_limit});
  const std::string address = flags.host.find(':') == flags.host.npos
                                  ? fmt::format("{}:{}", flags.host, coordinator.port())
                                  : fmt::format("[{}]:{}", flags.host, coordinator.port());
  set_env("TRIREME_ELASTIC", address);
  set_env("TRIREME_HEARTBEAT_MS", std::to_string(milliseconds_of(elastic.heartbeat).count()));
  set_env("TRIREME_SNAPSHOT_EVERY", std::to_string(elastic.snapshot_every));
  log_info("elastic: members meet at {}; another one joins with: TRIREME_ELASTIC={} {}", address, address,
           fmt::join(flags.command, " "));
  if (!flags.join_file.empty()) {
    std::ofstream(flags.join_file + ".tmp") << address << "\n";
    fs::rename(flags.join_file + ".tmp", flags.join_file);
  }

  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, on_elastic_stop);
  ElasticMembers members(
      {.command = flags.command,
       .ssh = flags.ssh,
       .variables = {"TRIREME_ELASTIC", "TRIREME_HEARTBEAT_MS", "TRIREME_SNAPSHOT_EVERY", "TRIREME_TOKEN_FILE",
                     "TRIREME_LOG"}},
      {.first = milliseconds_of(elastic.cooldown), .longest = milliseconds_of(elastic.cooldown_max)});
  members.set_hosts(named);
  std::optional<launch::HostDiscovery> discovery;
  if (!elastic.discovery_script.empty())
    discovery.emplace(elastic.discovery_script, milliseconds_of(elastic.discovery_interval));
  std::unique_ptr<observe::Timeline> timeline;
  int stops = 0;
  std::int64_t step = -1;
  ElasticClock::time_point ended{};
  while (true) {
    const bool over = coordinator.phase() == comm::WorldPhase::kEnded;
    for (const auto& ended_member : members.take_ended(/*failed=*/!over && stops == 0)) {
      const auto& [number, status, host] = ended_member;
      coordinator.lose(number, status == 0 ? "it has ended" : fmt::format("its process {}", ended_how(status)));
      if (over) continue;
      if (status == kNoSuchCommand && host == "localhost" && step < 0)  // it would be tried for as long as --wait says
        throw ConfigError(
            fmt::format("\"{}\" cannot be started on this machine: there is no such program", flags.command[0]),
            "write its path after the --");
      log_warn("elastic: member {} on {} {}; another one may start there in {:.0f} s", number, host, ended_how(status),
               std::chrono::duration<double>(members.pool().barred_for(host)).count());
    }
    if (discovery && stops == 0 && !over) {
      if (const auto hosts = discovery->look(ElasticClock::now())) {
        std::vector<launch::Host> all = named;
        all.insert(all.end(), hosts->begin(), hosts->end());
        members.set_hosts(all);
      }
    }
    if (const auto member = members.next_to_leave(); member && !over)
      coordinator.let_go(*member, "its host has no place for it any more");
    coordinator.tick();
    for (const auto& event : coordinator.take_events()) {
      if (!timeline && fs::is_directory(run.folder))
        timeline = std::make_unique<observe::Timeline>(run.folder / "timeline.jsonl", "elastic");
      if (timeline) tell_event(event, *timeline);
      if (event.step > step) {
        step = event.step;
        members.note_progress();
      }
    }
    if (elastic_stop > stops) {
      stops = elastic_stop;
      members.tell(stops == 1 ? SIGTERM : SIGKILL);
    }
    if (coordinator.phase() == comm::WorldPhase::kEnded) {
      if (ended == ElasticClock::time_point{}) ended = ElasticClock::now();
      if (members.running() == 0) break;
      if (ElasticClock::now() - ended > kElasticGrace) members.tell(SIGKILL);
    } else if (stops > 0 && members.running() == 0) {
      coordinator.end("it was asked to stop", false);
    } else if (stops == 0) {
      members.fill();
    }
    std::this_thread::sleep_for(kElasticLook);
  }
  for (const auto& event : coordinator.take_events()) {
    if (timeline) tell_event(event, *timeline);
  }
  if (coordinator.good_end()) {
    fmt::print(context.out, "the run in {} is finished\n", run.folder.string());
    return kExitFine;
  }
  fmt::print(context.out, "the run in {} is not finished: {}\n", run.folder.string(), coordinator.why());
  if (stops > 0) return kExitInterrupted;
  return coordinator.refused() ? kExitUsage : kExitFailed;
}

}  // namespace

void add_elastic_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("elastic", "Train with ranks that come and go, without restarts");
  command.footer(
      "A rank that dies shrinks the world: the others go on from snapshots in their memory, with the largest layout "
      "that\n"
      "the recipe's rules allow. New ranks come in between two steps. Batch, samples and learning rate stay.\n"
      "\n"
      "Examples:\n"
      "  trireme elastic --ranks 4 --min-ranks 2 -- trireme train recipes/tiny.toml --out runs/tiny\n"
      "  trireme elastic --host 10.0.0.1 --host-discovery-script ./hosts.sh -- trireme train recipes/tiny.toml\n"
      "  trireme elastic --ranks 0 --host 10.0.0.1 --port 29400 -- trireme train recipes/tiny.toml --out runs/tiny");
  const auto flags = std::make_shared<ElasticFlags>();  // shared with the callback
  command
      .add_option("--ranks", flags->ranks,
                  "ranks to start and keep on this machine; others may join; 2, or none where hosts are named")
      .not_negative();
  command.add_option("--hosts", flags->hosts, "start ranks on these hosts too, over ssh: a:4,b:4, user@node[1-8]");
  command.add_option("--ssh", flags->ssh, "what reaches a host, with its options; the host and a line of sh are added")
      .show_default();
  const auto setting = [&](const std::string& option, const std::string& key, const std::string& meaning) {
    command.add_option_with(
        option, [flags, key](const std::string& value) { flags->settings[key] = value; },
        meaning + fmt::format("; as elastic.{} of the recipe", key));
  };
  setting("--min-ranks", "min_ranks", "with fewer the run waits");
  setting("--max-ranks", "max_ranks", "more are spare");
  setting("--snapshot-every", "snapshot_every", "steps between two snapshots in memory");
  setting("--wait", "wait", "for more ranks, below --min-ranks; then the run ends");
  setting("--heartbeat", "heartbeat", "a rank that is silent for so long is lost");
  setting("--cooldown", "cooldown", "how long a host on which a rank died gets no new one; doubled without progress");
  setting("--cooldown-max", "cooldown_max", "at most so long");
  setting("--reset-limit", "reset_limit", "so many worlds in a row may begin at the same step; 0: any");
  setting("--host-discovery-script", "discovery_script",
          "command that prints the hosts there are now, a line each: HOST or HOST:RANKS. It is run again and again; "
          "ranks start on hosts that come and end on hosts that go");
  setting("--discovery-interval", "discovery_interval", "between two runs of that script");
  command.add_option("--host", flags->host, "address of this machine at which members meet").show_default();
  command.add_option("--port", flags->port, "port there; 0: any free one").not_negative().show_default();
  command.add_option("--join-file", flags->join_file, "write HOST:PORT to this file, for members that others start");
  command.add_option("COMMAND", flags->command, "after --: trireme train ...").required();
  command.callback([flags, &context] { context.run = [flags, &context] { return run_elastic(*flags, context); }; });
}

}  // namespace trireme::cli
