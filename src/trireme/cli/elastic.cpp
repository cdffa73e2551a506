// trireme elastic: a run whose ranks come and go. Starts members on this machine, takes those that come from others,
// and says who is in which world.
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include "trireme/base/child_process.h"
#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/elastic_recipe.h"
#include "trireme/cli/program.h"
#include "trireme/comm/elastic_coordinator.h"
#include "trireme/launch/cooldown.h"
#include "trireme/observe/timeline.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ElasticClock = std::chrono::steady_clock;

constexpr auto kElasticLook = 20ms;
constexpr auto kElasticGrace = 70s;  // for members of a run that has ended, to end themselves

struct ElasticFlags {
  std::vector<std::string> command;
  int ranks = 2, min_ranks = 1, max_ranks = comm::kMostMembers, reset_limit = 10;
  std::string wait = "10min", heartbeat = "10s", cooldown = "10s,100s", host = "127.0.0.1", join_file;
  std::int64_t snapshot_every = 10;
  int port = 0;
};

volatile sig_atomic_t elastic_stop = 0;
void on_elastic_stop(int) { elastic_stop = elastic_stop + 1; }

std::chrono::milliseconds milliseconds_of(const std::string& text) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(parse_duration(text));
}

/// What members are going to train, as they will read it.
struct ElasticRun {
  spec::Recipe recipe;
  fs::path folder;
};

ElasticRun run_of(const std::vector<std::string>& words) {
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
  ElasticRun run{.recipe = spec::load_recipe({.file = file, .sets = sets}).value, .folder = {}};
  run.folder = out ? fs::path(*out) : fs::path(run.recipe.run.out) / run.recipe.run.name;
  return run;
}

/// The members that this process has started, and what becomes of them.
class LocalMembers {
 public:
  LocalMembers(std::vector<std::string> command, launch::Cooldown cooldown)
      : command_(std::move(command)), cooldown_(cooldown) {}

  void start() {
    const int number = next_++;
    TRIREME_CHECK(number <= comm::kMostMembers, "{} members were started", number);
    set_env("TRIREME_MEMBER", std::to_string(number));
    children_.emplace(number, std::make_unique<ChildProcess>(command_));
  }
  int running() const { return static_cast<int>(children_.size()); }

  /// Those that have ended since, with their status.
  std::vector<std::pair<int, int>> take_ended() {
    std::vector<std::pair<int, int>> ended;
    for (auto at = children_.begin(); at != children_.end();) {
      const auto status = at->second->poll();
      if (!status) {
        ++at;
        continue;
      }
      ended.emplace_back(at->first, *status);
      at = children_.erase(at);
    }
    return ended;
  }
  void tell(int signal) {
    for (auto& [number, child] : children_) child->tell(signal);
  }
  void note_failure() { barred_until_ = ElasticClock::now() + cooldown_.after(++failures_); }
  void note_progress() { failures_ = 0; }
  bool may_start() const { return ElasticClock::now() >= barred_until_; }
  std::chrono::milliseconds barred_for() const { return cooldown_.after(failures_); }

 private:
  const std::vector<std::string> command_;
  const launch::Cooldown cooldown_;
  std::map<int, std::unique_ptr<ChildProcess>> children_;
  int next_ = 1, failures_ = 0;
  ElasticClock::time_point barred_until_ = {};
};

launch::Cooldown parse_cooldown(const std::string& text) {
  const auto parts = split(text, ',');
  if (parts.size() != 2)
    throw ConfigError(fmt::format("--cooldown is \"{}\", but takes two durations", text), "write --cooldown 10s,100s");
  return {.first = milliseconds_of(parts[0]), .longest = milliseconds_of(parts[1])};
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

int run_elastic(ElasticFlags& flags, Context& context) {
  const ElasticRun run = run_of(flags.command);
  if (flags.min_ranks > flags.max_ranks)
    throw ConfigError(fmt::format("--min-ranks {} is more than --max-ranks {}", flags.min_ranks, flags.max_ranks),
                      fmt::format("set --max-ranks {}", flags.min_ranks));
  std::map<int, int> fitted;  // it is asked often, and rules take their time
  const auto fit = [&](int available) {
    const auto known = fitted.find(available);
    if (known != fitted.end()) return known->second;
    const auto world = fit_recipe(run.recipe, available);
    return fitted[available] = world ? world->ranks : 0;
  };
  const int most = std::min(flags.max_ranks, std::max(flags.ranks, flags.min_ranks));
  if (fit(most) < flags.min_ranks)
    throw ConfigError(fmt::format("the recipe has no layout for {} to {} ranks", flags.min_ranks, most),
                      "`trireme check RECIPE --ranks N` says why");
  const bool here_only = flags.host == "127.0.0.1" || flags.host == "::1" || flags.host == "localhost";
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
       .first_ranks = flags.ranks,
       .wait = milliseconds_of(flags.wait),
       .heartbeat_timeout = milliseconds_of(flags.heartbeat)},
      {.min_ranks = flags.min_ranks, .max_ranks = flags.max_ranks, .fit = fit, .reset_limit = flags.reset_limit});
  const std::string address = flags.host.find(':') == flags.host.npos
                                  ? fmt::format("{}:{}", flags.host, coordinator.port())
                                  : fmt::format("[{}]:{}", flags.host, coordinator.port());
  set_env("TRIREME_ELASTIC", address);
  set_env("TRIREME_HEARTBEAT_MS", std::to_string(milliseconds_of(flags.heartbeat).count()));
  set_env("TRIREME_SNAPSHOT_EVERY", std::to_string(flags.snapshot_every));
  log_info("elastic: members meet at {}; another one joins with: TRIREME_ELASTIC={} {}", address, address,
           fmt::join(flags.command, " "));
  if (!flags.join_file.empty()) {
    std::ofstream(flags.join_file + ".tmp") << address << "\n";
    fs::rename(flags.join_file + ".tmp", flags.join_file);
  }

  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, on_elastic_stop);
  LocalMembers locals(flags.command, parse_cooldown(flags.cooldown));
  for (int i = 0; i < flags.ranks; ++i) locals.start();
  std::unique_ptr<observe::Timeline> timeline;
  int stops = 0;
  std::int64_t step = -1;
  ElasticClock::time_point ended{};
  while (true) {
    for (const auto& [number, status] : locals.take_ended()) {
      coordinator.lose(number, status == 0 ? "it has ended" : fmt::format("its process {}", ended_how(status)));
      if (coordinator.phase() == comm::WorldPhase::kEnded) continue;
      locals.note_failure();
      log_warn("elastic: member {} {}; another one may start in {:.0f} s", number, ended_how(status),
               std::chrono::duration<double>(locals.barred_for()).count());
    }
    coordinator.tick();
    for (const auto& event : coordinator.take_events()) {
      if (!timeline && fs::is_directory(run.folder))
        timeline = std::make_unique<observe::Timeline>(run.folder / "timeline.jsonl", "elastic");
      if (timeline) tell_event(event, *timeline);
      if (event.step > step) {
        step = event.step;
        locals.note_progress();
      }
    }
    if (elastic_stop > stops) {
      stops = elastic_stop;
      locals.tell(stops == 1 ? SIGTERM : SIGKILL);
    }
    if (coordinator.phase() == comm::WorldPhase::kEnded) {
      if (ended == ElasticClock::time_point{}) ended = ElasticClock::now();
      if (locals.running() == 0) break;
      if (ElasticClock::now() - ended > kElasticGrace) locals.tell(SIGKILL);
    } else if (stops > 0 && locals.running() == 0) {
      coordinator.end("it was asked to stop", false);
    } else if (stops == 0 && locals.running() < flags.ranks && locals.may_start()) {
      locals.start();
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
      "  trireme elastic --ranks 0 --host 10.0.0.1 --port 29400 -- trireme train recipes/tiny.toml --out runs/tiny");
  const auto flags = std::make_shared<ElasticFlags>();  // shared with the callback
  command.add_option("--ranks", flags->ranks, "ranks to start and keep on this machine; others may join")
      .not_negative()
      .show_default();
  command.add_option("--min-ranks", flags->min_ranks, "with fewer the run waits").positive().show_default();
  command.add_option("--max-ranks", flags->max_ranks, "more are spare").positive().show_default();
  command
      .add_option("--snapshot-every", flags->snapshot_every,
                  "steps between two snapshots in memory: so many at most are computed again")
      .positive()
      .show_default();
  command.add_option("--wait", flags->wait, "for more ranks, below --min-ranks; then the run ends").show_default();
  command.add_option("--heartbeat", flags->heartbeat, "a rank that is silent for so long is lost").show_default();
  command
      .add_option("--cooldown", flags->cooldown,
                  "before a rank that died here is replaced: the first time, and at most; doubled without progress")
      .show_default();
  command.add_option("--reset-limit", flags->reset_limit, "so many worlds in a row may begin at the same step; 0: any")
      .not_negative()
      .show_default();
  command.add_option("--host", flags->host, "address of this machine at which members meet").show_default();
  command.add_option("--port", flags->port, "port there; 0: any free one").not_negative().show_default();
  command.add_option("--join-file", flags->join_file, "write HOST:PORT to this file, for members that others start");
  command.add_option("COMMAND", flags->command, "after --: trireme train ...").required();
  command.callback([flags, &context] { context.run = [flags, &context] { return run_elastic(*flags, context); }; });
}

}  // namespace trireme::cli
