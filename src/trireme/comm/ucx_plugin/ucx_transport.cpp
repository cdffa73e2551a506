// The UCX endpoint of a process: how ranks meet, sends and receives, boards on one node.
#include <unistd.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/sha256.h"
#include "trireme/comm/control.h"
#include "trireme/comm/rank.h"
#include "trireme/comm/shared_node.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"
#include "trireme/comm/ucx_plugin/ucx_transfer.h"

namespace trireme::comm {
namespace {

/// Of the messages between ranks: whoever changes UcxHeader counts it up.
constexpr int kUcxWireVersion = 1;

/// Hears, as long as it lives, whether another rank ends before all have met. One that does ends the meeting: nobody
/// waits for it until the timeout.
class Attendance {
 public:
  explicit Attendance(ControlPlane& control) : control_(control) {
    control_.listen(
        [this](const Notice& notice) {
          const std::lock_guard lock(mutex_);
          if (!gone_) gone_ = notice;
        },
        nullptr);
  }
  ~Attendance() { control_.listen(nullptr, nullptr); }
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

  bool is_complete() {
    const std::lock_guard lock(mutex_);
    return !gone_;
  }
  /// PeerFailure with the reason when a rank has gone.
  void check() {
    const std::lock_guard lock(mutex_);
    if (!gone_) return;
    const bool refused = gone_->kind == Notice::Kind::kRefused, failed = gone_->kind == Notice::Kind::kFailed;
    throw PeerFailure(fmt::format("rank {} was not met by all ranks: {}{}", control_.rank(),
                                  refused || failed ? fmt::format("rank {} failed: ", gone_->rank) : "", gone_->text),
                      fmt::format("look at the log of rank {}", gone_->rank));
  }

 private:
  ControlPlane& control_;
  std::mutex mutex_;
  std::optional<Notice> gone_;
};

/// How long to wait for others while they meet.
struct MeetWait {
  std::chrono::milliseconds timeout;
  std::function<bool()> called_off;
  Attendance* attendance = nullptr;  // borrowed; nothing once all have met

  bool is_in_vain() const { return (attendance && !attendance->is_complete()) || (called_off && called_off()); }
  /// The key's value. CommError when it does not come, or nobody is to come any more.
  std::string wait_for(ControlPlane& control, const std::string& key) const {
    if (auto value = control.wait_unless(key, timeout, [this] { return is_in_vain(); })) return *std::move(value);
    if (attendance) attendance->check();
    throw CommError("the others will not come: the world is formed anew");
  }
};

/// Ranks that agree through keys of the control plane. Every rank of the world is served by rank 0's process, so this
/// is for the start of things, not for the data path.
class ControlBootstrap final : public Bootstrap {
 public:
  ControlBootstrap(ControlPlane& control, std::string prefix, std::size_t ranks, bool is_first, MeetWait wait)
      : control_(control), prefix_(std::move(prefix)), ranks_(ranks), is_first_(is_first), wait_(std::move(wait)) {}

  bool is_first() const override { return is_first_; }
  void broadcast(void* data, std::size_t bytes) override {
    const std::string key = next_key();
    if (is_first_) {
      control_.set(key, std::string(static_cast<const char*>(data), bytes));
      return;
    }
    const std::string value = wait_.wait_for(control_, key);
    TRIREME_CHECK(value.size() == bytes, "{} has {} bytes instead of {}", key, value.size(), bytes);
    std::memcpy(data, value.data(), bytes);
  }
  bool all(bool mine) override {
    const std::string key = next_key();
    control_.add(key + "/yes", mine ? 1 : 0);
    // The last to come knows what all have said.
    if (control_.add(key + "/here", 1) == static_cast<std::int64_t>(ranks_)) {
      const bool verdict = control_.add(key + "/yes", 0) == static_cast<std::int64_t>(ranks_);
      control_.set(key + "/all", verdict ? "1" : "0");
      return verdict;
    }
    return wait_.wait_for(control_, key + "/all") == "1";
  }

 private:
  std::string next_key() { return fmt::format("{}/{}", prefix_, number_++); }

  ControlPlane& control_;
  const std::string prefix_;
  const std::size_t ranks_;
  const bool is_first_;
  const MeetWait wait_;
  int number_ = 0;
};

/// What a rank tells the others before the first message.
struct RankCard {
  std::string host, address;
  ProcessCard process;
};

nlohmann::json to_json(const RankCard& card) {
  return {{"ucx", UcxContext::version()},
          {"wire", kUcxWireVersion},
          {"host", card.host},
          {"address", to_hex(card.address)},
          {"process", {card.process.node, card.process.process, card.process.probe_address, card.process.probe}}};
}

/// Throws ConfigError, the same on every rank, when one is built with something else than rank 0.
RankCard from_json(const nlohmann::json& json, int rank, const nlohmann::json& first) {
  RankCard card{.host = json.at("host"), .address = bytes_of_hex(json.at("address")), .process = {}};
  for (const char* what : {"ucx", "wire"}) {
    if (json.at(what) == first.at(what)) continue;
    throw ConfigError(fmt::format("rank {} on {} has {} {}, but rank 0 on {} has {}", rank, card.host,
                                  what == std::string_view("ucx") ? "UCX" : "messages of version", json.at(what).dump(),
                                  first.at("host").get<std::string>(), first.at(what).dump()),
                      "install the same Trireme and the same UCX on all hosts");
  }
  const auto& process = json.at("process");
  card.process = {
      .node = process.at(0), .process = process.at(1), .probe_address = process.at(2), .probe = process.at(3)};
  return card;
}

struct Met {
  std::vector<RankCard> cards;
  std::string session;
};

/// Rank 0 collects everybody's card and hands them all out, with the session.
Met meet(ControlPlane& control, const RankCard& mine, const MeetWait& wait) {
  const int rank = control.rank(), ranks = control.ranks();
  control.set(fmt::format("trireme/ucx/card/{}", rank), to_json(mine).dump());
  if (rank == 0) {
    nlohmann::json all = {{"session", to_hex(random_bytes(kSessionBytes))}, {"cards", nlohmann::json::array()}};
    const auto deadline = std::chrono::steady_clock::now() + wait.timeout;
    for (int r = 0; r < ranks; ++r) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      try {
        const MeetWait rest{std::max(left, std::chrono::milliseconds(1)), wait.called_off, wait.attendance};
        all["cards"].push_back(nlohmann::json::parse(rest.wait_for(control, fmt::format("trireme/ucx/card/{}", r))));
      } catch (const CommError&) {
        if (wait.is_in_vain()) throw;
        throw CommError(fmt::format("rank {} of {} did not come within {:.0f} s", r, ranks,
                                    std::chrono::duration<double>(wait.timeout).count()),
                        "look at its log; start all ranks within that time, and with the same WORLD_SIZE");
      }
    }
    control.set("trireme/ucx/cards", all.dump());
  }
  const MeetWait longer{wait.timeout + wait.timeout / 4, wait.called_off, wait.attendance};
  const nlohmann::json all = nlohmann::json::parse(longer.wait_for(control, "trireme/ucx/cards"));
  Met met{.cards = {}, .session = bytes_of_hex(all.at("session"))};
  for (int r = 0; r < ranks; ++r)
    met.cards.push_back(from_json(all.at("cards").at(static_cast<std::size_t>(r)), r, all.at("cards").at(0)));
  return met;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(ControlPlane& control, const UcxOptions& options)
      : control_(control),
        wait_{options.meet_timeout, options.called_off},
        worker_(options.interfaces, own_events_),
        matcher_(worker_, control.ranks()),
        rank_(control.rank()),
        ranks_(control.ranks()) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    const RankCard mine{.host = host, .address = worker_.address(), .process = own_process_card(node_identity())};
    Attendance attendance(control);
    const MeetWait wait{wait_.timeout, wait_.called_off, &attendance};
    const Met met = meet(control, mine, wait);
    std::vector<UcxPeer> peers;
    std::vector<ProcessCard> processes;
    for (const RankCard& card : met.cards) {
      peers.push_back({.host = card.host, .address = card.address});
      processes.push_back(card.process);
    }
    node_ = std::make_unique<SharedNode>(rank_, processes, options.ranks_per_node, [&](const std::vector<int>& locals) {
      return std::make_unique<ControlBootstrap>(control_, fmt::format("trireme/node/{}", locals.front()), locals.size(),
                                                locals.front() == rank_, wait);
    });
    worker_.start(rank_, std::move(peers), met.session, matcher_);
    if (EventCount* shared = node_->event_count()) worker_.notify_at(shared);
    log_debug("UCX {} on {}, {} bytes of address", UcxContext::version(), host, mine.address.size());
  }
  ~UcxTransport() override {
    worker_.stop([this] { matcher_.release_all(); });
  }

  std::string_view name() const override { return "ucx"; }
  bool has_processes() const override { return true; }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> node_of() const override { return node_->node_of(); }

  std::unique_ptr<Transfer> post_send(const Envelope& envelope, const void* data, std::size_t bytes) override {
    const auto locked = worker_.lock();
    return std::make_unique<UcxSend>(worker_, matcher_, envelope, data, bytes);
  }
  std::unique_ptr<Transfer> post_recv(const Envelope& envelope, const Sink& sink) override {
    const auto locked = worker_.lock();
    return std::make_unique<UcxRecv>(worker_, matcher_, envelope, sink);
  }

  void leave(const Members& members) noexcept override {
    const auto locked = worker_.lock();
    matcher_.drop(members.channel);
  }
  std::unique_ptr<Board> make_board(const Members& members) override {
    if (!node_->can_share(members)) return nullptr;
    ControlBootstrap bootstrap(control_, fmt::format("trireme/board/{}", members.channel), members.ranks.size(),
                               members.me == 0, wait_);
    return node_->make_board(bootstrap, members);
  }
  void give_up() noexcept override { worker_.give_up(); }

  bool progress() override { return worker_.progress(); }
  bool may_sleep() override { return worker_.may_sleep(); }
  EventCount* event_count() override {
    EventCount* shared = node_->event_count();
    return shared != nullptr ? shared : &own_events_;
  }

 private:
  ControlPlane& control_;  // outlives the groups, not this
  const MeetWait wait_;
  EventCount own_events_;
  UcxWorker worker_;
  UcxMatcher matcher_;
  const int rank_, ranks_;
  std::unique_ptr<SharedNode> node_;
};

}  // namespace
}  // namespace trireme::comm

extern "C" trireme::comm::Transport* trireme_ucx_transport(trireme::comm::ControlPlane& control,
                                                           const trireme::comm::UcxOptions& options) {
  return new trireme::comm::UcxTransport(control, options);
}
