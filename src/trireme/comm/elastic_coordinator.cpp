#include "trireme/comm/elastic_coordinator.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kAskEvery = 100ms;  // members to come to an edge, again and again until they have
constexpr auto kAskTimeout = 1s;
// With the server in this very process: it is not lost because a thread waits for a core, and there is no other one.
constexpr auto kOwnPatience = std::chrono::hours(1);

TcpControlOptions plane_options(const CoordinatorOptions& options) {
  return {.rank = 0,
          .ranks = kMostMembers + 1,
          .host = options.host,
          .port = options.port,
          .token = options.token,
          .heartbeat_every = std::min<std::chrono::milliseconds>(1s, options.heartbeat_timeout / 4),
          .heartbeat_timeout = options.heartbeat_timeout,
          .goodbye_timeout = 2s};
}

}  // namespace

ElasticCoordinator::ElasticCoordinator(const CoordinatorOptions& options, ElasticRules rules)
    : options_(options), world_(std::move(rules)), first_ranks_(options.first_ranks) {
  world_.set_first_ranks(first_ranks_);
  TcpControlOptions control = plane_options(options_);
  server_ = make_tcp_control_server(control);
  control.port = server_->port();
  control.heartbeat_timeout = kOwnPatience;
  plane_ = connect_tcp_control(control);
  plane_->listen([this](const Notice& notice) { hear(notice); },
                 [this](const std::string& question) { return answer(question); });
}

ElasticCoordinator::~ElasticCoordinator() {
  plane_->listen(nullptr, nullptr);
  plane_.reset();
}

void ElasticCoordinator::note_phase() {
  if (world_.phase() == noted_ && world_.epoch() == noted_epoch_) return;
  const auto now = Clock::now();
  events_.push_back({.phase = world_.phase(),
                     .epoch = world_.epoch(),
                     .step = step_,
                     .members = world_.members(),
                     .phase_s = std::chrono::duration<double>(now - since_).count(),
                     .why = std::exchange(cause_, {})});
  noted_ = world_.phase();
  noted_epoch_ = world_.epoch();
  since_ = now;
}

void ElasticCoordinator::hear(const Notice& notice) {
  if (notice.rank == 0) return;
  lose(notice.rank, notice.text);
}

void ElasticCoordinator::lose(int member, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (cause_.empty()) cause_ = fmt::format("member {}: {}", member, why);
  world_.lost(member);
  note_phase();
}

void ElasticCoordinator::let_go(int member, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (world_.leaves(member) && cause_.empty()) cause_ = fmt::format("member {}: {}", member, why);
}

void ElasticCoordinator::end(const std::string& why, bool good) {
  const std::lock_guard lock(mutex_);
  if (world_.phase() == WorldPhase::kEnded) return;
  world_.end(why, good);
  cause_ = why;
  note_phase();
}

std::string ElasticCoordinator::answer(const std::string& question) {
  const nlohmann::json ask = nlohmann::json::parse(question, nullptr, false);
  if (ask.is_discarded() || !ask.is_object()) return "{}";
  const std::string what = ask.value("do", "");
  const int member = ask.value("member", 0);
  const std::int64_t epoch = ask.value("epoch", std::int64_t{0});
  const std::lock_guard lock(mutex_);
  if (member < 1 || member > kMostMembers) return "{}";
  if (what == "rests") {
    hosts_[member] = ask.value("host", "");
    if (world_.phase() == WorldPhase::kRunning && epoch == world_.epoch() && cause_.empty())
      cause_ = ask.value("why", "");
    const WorldAnswer answer = world_.rests(member, epoch);
    note_phase();
    nlohmann::json reply{{"kind", static_cast<int>(answer.kind)},
                         {"why", answer.why},
                         {"good", answer.good_end},
                         {"epoch", answer.epoch},
                         {"rank", answer.rank},
                         {"ranks", answer.ranks},
                         {"meeting", answer.meeting},
                         {"local_rank", 0},
                         {"local_ranks", 0}};
    if (answer.kind == WorldAnswer::Kind::kWorld) {
      int local = 0;
      for (const int other : world_.members()) {
        if (hosts_[other] != hosts_[member]) continue;
        if (other == member) reply["local_rank"] = local;
        reply["local_ranks"] = ++local;
      }
    }
    return reply.dump();
  }
  if (what == "listens") world_.listens(member, epoch, ask.value("meeting", ""));
  if (what == "moved" && epoch == world_.epoch()) {
    step_ = ask.value("step", std::int64_t{0});
    world_.moved(member, epoch, step_);
  }
  if (what == "finished") world_.finished(member, epoch);
  if (what == "stopped") world_.end("the run was asked to stop, and has saved", false);
  if (what == "refused") {
    refused_ = true;
    world_.end(fmt::format("member {}: {}", member, ask.value("why", "")), false);
  }
  note_phase();
  return "{}";
}

void ElasticCoordinator::tick() {
  std::vector<int> members;
  std::int64_t epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (world_.epoch() == 0 && now - begun_ > options_.start_wait) world_.set_first_ranks(0);
    if (world_.phase() == WorldPhase::kWaiting && now - std::max(since_, begun_) > options_.wait + options_.start_wait)
      world_.end(fmt::format("too few ranks were here for {:.0f} s: {}",
                             std::chrono::duration<double>(options_.wait).count(), world_.present()),
                 false);
    if (world_.phase() == WorldPhase::kAgreeing && now - since_ > options_.agree_timeout) {
      for (const int member : world_.awaited()) {
        log_warn("elastic: member {} did not leave epoch {} in time and counts as lost", member, world_.epoch());
        world_.lost(member);
      }
    }
    note_phase();
    if (world_.wants_edge() && now - asked_ >= kAskEvery) {
      asked_ = now;
      members = world_.phase() == WorldPhase::kAgreeing ? world_.awaited() : world_.members();
      epoch = world_.epoch();
    }
  }
  if (members.empty()) return;
  plane_->ask(members, nlohmann::json{{"edge", epoch}}.dump(), kAskTimeout);
}

std::vector<ElasticCoordinator::Event> ElasticCoordinator::take_events() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}
WorldPhase ElasticCoordinator::phase() const {
  const std::lock_guard lock(mutex_);
  return world_.phase();
}
bool ElasticCoordinator::good_end() const {
  const std::lock_guard lock(mutex_);
  return world_.phase() == WorldPhase::kEnded && world_.good_end();
}
bool ElasticCoordinator::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}
std::string ElasticCoordinator::why() const {
  const std::lock_guard lock(mutex_);
  return world_.why();
}
std::int64_t ElasticCoordinator::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

}  // namespace trireme::comm
