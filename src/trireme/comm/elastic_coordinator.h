// comm/elastic_coordinator.h -- the process that members of an elastic world meet at; it decides who is in which epoch.
//
// It serves a control plane in which every member has a seat of its own, for life: that plane says who is dead (its
// connection ended, or its heartbeat stopped). Members ask what to do (elastic_member.h); the answers are those of
// ElasticWorld. It holds no tensors and takes no part in a world; when it ends, the run ends, and its checkpoints stay.
// Depends on: control.h, elastic_world.h.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/control.h"
#include "trireme/comm/elastic_world.h"

namespace trireme::comm {

/// Numbers of members are from 1 to this, each used once.
inline constexpr int kMostMembers = 4095;

struct CoordinatorOptions {
  std::string host = "127.0.0.1";  ///< where members reach it
  int port = 0;
  std::string token = {};
  int first_ranks = 1;                           ///< the first world waits for so many ...
  std::chrono::milliseconds start_wait{60'000};  ///< ... at most for this
  std::chrono::milliseconds wait{600'000};  ///< below the least number of ranks: for more to come, then the run ends
  std::chrono::milliseconds heartbeat_timeout{10'000};
  std::chrono::milliseconds agree_timeout{120'000};  ///< for members to leave an epoch that is over; then they are lost
};

class ElasticCoordinator {
 public:
  using Clock = std::chrono::steady_clock;
  /// What happened, for logs and the run's timeline.
  struct Event {
    WorldPhase phase;  ///< that it came to
    std::int64_t epoch = 0, step = -1;
    std::vector<int> members;
    double phase_s = 0;  ///< how long the phase before took
    std::string why;     ///< what led to it; may be empty
  };

  ElasticCoordinator(const CoordinatorOptions& options, ElasticRules rules);
  ~ElasticCoordinator();

  int port() const { return server_->port(); }
  /// Often: asks members to come to an edge, and lets pass what is overdue.
  void tick();
  /// Somebody knows that this member's process has ended.
  void lose(int member, const std::string& why);
  /// It ends by itself after the step that it is in, as one that has done its work; no step is lost. One at a time, and
  /// again until it has gone: it may not be here yet.
  void let_go(int member, const std::string& why);
  void end(const std::string& why, bool good);
  std::vector<Event> take_events();

  WorldPhase phase() const;
  bool good_end() const;
  bool refused() const;  ///< a member found what it was asked for wrong
  std::string why() const;
  std::int64_t step() const;  ///< that the newest epoch went on from

 private:
  std::string answer(const std::string& question);
  void hear(const Notice& notice);
  void note_phase();

  const CoordinatorOptions options_;
  mutable std::mutex mutex_;
  ElasticWorld world_;
  std::map<int, std::string> hosts_;
  std::string cause_;
  std::int64_t step_ = -1;
  bool refused_ = false;
  WorldPhase noted_ = WorldPhase::kWaiting;
  std::int64_t noted_epoch_ = 0;
  Clock::time_point since_ = Clock::now(), asked_{}, begun_ = Clock::now();
  std::vector<Event> events_;
  int first_ranks_;
  std::unique_ptr<TcpControlServer> server_;
  std::unique_ptr<ControlPlane> plane_;  // the last to come, the first to go: it calls back
};

}  // namespace trireme::comm
