// comm/elastic_member.h -- a process that takes part in an elastic world: what it tells the coordinator, and its ranks.
//
//   ElasticMember member(options);
//   while (const auto place = member.wait_for_world()) {
//     const auto process = member.join(*place, ranks_options);      // the rank that it is in this epoch
//     ... process->rank() ...; on a CommError, or at an edge: destroy it and ask again
//   }
// Depends on: control.h, process.h.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "trireme/comm/control.h"
#include "trireme/comm/process.h"

namespace trireme::comm {

struct MemberOptions {
  std::string host = "127.0.0.1";  ///< of the coordinator
  int port = 0;
  int number = 0;  ///< 0: any that is free
  std::string token = {};
  std::chrono::milliseconds connect_timeout{60'000};
  std::chrono::milliseconds heartbeat_timeout{10'000};
};

/// TRIREME_ELASTIC and TRIREME_MEMBER; nothing when this process belongs to no elastic world.
std::optional<MemberOptions> member_from_env();

struct ElasticPlace {
  std::int64_t epoch = 0;
  int rank = 0, ranks = 1, local_rank = 0, local_ranks = 1;
  std::string meeting;  ///< "10.0.0.7:41234"; empty on rank 0, which is going to listen
};

class ElasticMember {
 public:
  /// CommError when the coordinator is not reached or refuses this process.
  explicit ElasticMember(const MemberOptions& options);
  ~ElasticMember();

  int number() const { return options_.number; }
  /// Until this member is in a world; nothing when the run has ended. `why`: the world before is over. CommError when
  /// the coordinator is gone, or says that the run has failed.
  std::optional<ElasticPlace> wait_for_world(const std::string& why = {});
  /// CommError when another rank does not come.
  std::unique_ptr<ProcessRank> join(const ElasticPlace& place, const RanksOptions& options);
  void moved(std::int64_t step) { tell("moved", {}, step); }
  void finished() { tell("finished"); }
  void stopped() { tell("stopped"); }
  void refused(const std::string& why) { tell("refused", why); }
  /// Whether the epoch is to end at the next step edge.
  bool wants_edge() const { return edge_.load() >= epoch_.load() || coordinator_lost_; }

 private:
  void tell(const std::string& what, const std::string& why = {}, std::int64_t step = 0);
  std::string own_address() const;

  MemberOptions options_;
  std::string name_;
  std::unique_ptr<ControlPlane> plane_;
  std::atomic<std::int64_t> edge_{0}, epoch_{0};
  std::atomic<bool> coordinator_lost_{false};
};

}  // namespace trireme::comm
