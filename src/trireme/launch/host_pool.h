// launch/host_pool.h -- the hosts of an elastic run: how many ranks each takes, and which are barred after a failure.
//
// A value without clock, process or script: whoever drives it says what the time is and what happened. The words are
// those of elastic Horovod: a discovery script says which hosts there are, a host on which ranks fail is barred for a
// cooldown that doubles.
// Depends on: host_list.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/launch/host_list.h"

namespace trireme::launch {

/// How long a host on which a rank has failed gets no new one: doubled from failure to failure.
struct Cooldown {
  std::chrono::milliseconds first{10'000}, longest{100'000};

  /// After so many failures in a row.
  std::chrono::milliseconds after(int failures) const;
};

/// What a discovery script printed: a line for each host, HOST or HOST:RANKS (1 where none are given); empty lines and
/// lines that begin with # say nothing. Throws ConfigError with the line that is no host.
std::vector<Host> parse_discovery(std::string_view printed);

class HostPool {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit HostPool(Cooldown cooldown) : cooldown_(cooldown) {}

  /// The hosts that there are now, in the order in which they are to be filled. What was known of a host's failures
  /// stays, also while it is not named: a host that flaps is no new one.
  void set_hosts(const std::vector<Host>& hosts);
  /// Of the ranks that run, which are on hosts that are not named any more, or beyond what theirs takes: the newest of
  /// those first.
  std::vector<int> surplus() const;
  /// The host on which the next rank starts, if one has room and is not barred.
  std::optional<Host> next(Time now) const;

  void started(int member, const Host& host);
  /// It has ended; `failed` bars its host for a while.
  void ended(int member, bool failed, Time now);
  /// The run has come further: nobody's former failures count any more.
  void progressed();

  int running() const { return static_cast<int>(members_.size()); }
  int room() const;  ///< ranks that all named hosts take
  /// How long a host is barred from its last failure on; none for one that is not known.
  std::chrono::milliseconds barred_for(const std::string& address) const;
  /// Address of a member's host; empty where it is not known.
  std::string host_of(int member) const;

 private:
  struct Record {
    int failures = 0;
    Time barred_until = {};
  };
  int running_on(const std::string& address) const;

  Cooldown cooldown_;
  std::vector<Host> hosts_;
  std::map<std::string, Record> records_;  // by address
  std::map<int, std::string> members_;     // of those that run: their host's address
};

}  // namespace trireme::launch
