// cli/elastic_members.h -- the processes of an elastic run's ranks: started on this machine and on others, watched,
// ended.
//
// Where ranks go is launch::HostPool's decision; this starts and ends processes.
// Depends on: launch, base (child_process).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/child_process.h"
#include "trireme/launch/host_pool.h"

namespace trireme::cli {

class ElasticMembers {
 public:
  struct Options {
    std::vector<std::string> command;  ///< of a member
    std::string ssh;                   ///< reaches other hosts
    /// What members of other hosts cannot inherit: the address at which they meet and the like.
    std::vector<std::string> variables;
  };
  struct Ended {
    int member = 0, status = 0;
    std::string host;
  };

  ElasticMembers(Options options, launch::Cooldown cooldown) : options_(std::move(options)), pool_(cooldown) {}

  /// The hosts that there are now: ranks that have no place any more are to leave.
  void set_hosts(const std::vector<launch::Host>& hosts);
  /// Often: a rank that is to leave now; they go one after the other. One that has not gone in time is ended (SIGKILL;
  /// the others go on from their snapshots).
  std::optional<int> next_to_leave();
  /// Starts ranks wherever there is room on a host that is not barred.
  void fill();
  /// Those that have ended since. `failed`: their hosts are barred for a while.
  std::vector<Ended> take_ended(bool failed);
  void tell(int signal);
  void note_progress() { pool_.progressed(); }
  int running() const { return pool_.running(); }
  const launch::HostPool& pool() const { return pool_; }

 private:
  void start(const launch::Host& host);

  const Options options_;
  launch::HostPool pool_;
  std::map<int, std::unique_ptr<ChildProcess>> children_;
  std::vector<int> unwanted_;                                   // they leave, in this order: no failure of their hosts
  std::optional<std::chrono::steady_clock::time_point> asked_;  // the first of them
  int next_ = 1;
};

}  // namespace trireme::cli
