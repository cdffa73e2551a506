// ps/server.h -- a parameter server as a state machine: messages in, messages out, no clock, no thread, no wire.
//
// It answers for the keys whose chain it leads and holds copies of others. What is guaranteed:
//   - a push is applied once, by (worker, task) against the vector clock of each of its ranges, however often it comes;
//   - a push is acknowledged when the last of every chain that it touched has it, and what a pull returns is there too:
//     no acknowledged push and no value that was ever pulled is lost with a server, while one of its chain lives;
//   - what travels along a chain is the state of changed keys after all pushes that came meanwhile, not the pushes:
//     with n workers that is one message a chain and not n (aggregation before replication, Li et al. 2014, 4.2).
// A message of another epoch is not of this world: older ones are dropped (whoever sent them hears of the new view and
// sends again), newer ones wait until the view comes. A view in which the server leads a chain that it did not lead, or
// that has somebody new, makes it copy those ranges down the chain, a chunk at a time, between pushes.
// With `aggregate` a task's pushes of all workers are summed, in the order of workers, and applied as one.
// Depends on: filters.h, message.h, update_rule.h.
#pragma once

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/ps/filters.h"
#include "trireme/ps/message.h"
#include "trireme/ps/update_rule.h"

namespace trireme::ps {

struct ServerOptions {
  int address = 0, manager = 0;
  std::uint64_t keys = 0;
  ValueType type = ValueType::kF64;
  bool aggregate = false;
  std::size_t chunk_bytes = 1 << 20;  ///< of a copy, when a range goes to a server that lacks it
  int copies_in_flight = 2;           ///< of each chain; pushes that come meanwhile go together
};

struct ServerCounters {
  std::int64_t pushes = 0;      ///< messages that changed something
  std::int64_t duplicates = 0;  ///< that had been applied already
  std::int64_t stale = 0;       ///< of an older epoch
  std::int64_t pulls = 0;
  std::int64_t copies = 0, copy_bytes = 0;    ///< sent along chains, forwarded ones included
  std::int64_t key_hits = 0, key_misses = 0;  ///< of key caching
  std::int64_t most_clocks = 0, most_ranges = 0;
  std::int64_t most_pending = 0;  ///< answers that waited for copies
};

class Server {
 public:
  Server(const ServerOptions& options, std::unique_ptr<UpdateRule> rule);

  void receive(int from, Message message);
  /// Sends copies that are due. To be called when no more mail waits: what came until then goes together.
  void flush();
  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }

  const View& view() const { return view_; }
  /// It was in the view and is no more: it has left in good order, or others took it for dead.
  bool retired() const { return retired_; }
  bool stopped() const { return stopped_; }
  const ServerCounters& counters() const { return counters_; }
  const RangeClocks& clocks() const { return clocks_; }
  std::uint64_t version() const { return version_; }
  /// Requests that wait here, for copies, keys or other workers' pushes, by Little's law.
  QueueReading queue() const { return meter_.read(); }
  /// Of the weights that it holds, for tests; others are 0.
  std::vector<double> weights() const;
  const SegmentSet& present() const { return present_; }

 private:
  struct Lane {
    std::vector<int> chain;
    SegmentSet dirty, clocked;  // whose values, whose clocks have changed
    std::deque<Segment> install;
    struct Copy {
      std::vector<Segment> segments;
      bool install;
    };
    std::map<std::uint64_t, Copy> unacked;  // by number
    std::uint64_t issued = 0, acked = 0;
    std::uint64_t whole_at = 0;  // when this copy is acknowledged every copy is complete
    bool is_whole() const { return install.empty() && acked >= whole_at; }
  };
  struct Pending {
    int to;
    Message answer;
    std::vector<std::pair<std::size_t, std::uint64_t>> needs;  // lane, its copy
    QueueMeter::Nanoseconds since = 0;
  };
  struct Contribution {
    int from;
    Message message;
    QueueMeter::Nanoseconds since = 0;
  };
  struct Behind {
    Message message;
    QueueMeter::Nanoseconds since = 0;
  };

  void adopt(const View& view);
  void plan_copies(const std::vector<PlacedRange>& before);
  void take_request(int from, Message message);
  bool resolve_keys(int from, Message& message);
  void carry_out(int from, Message message);
  void hold_push(int from, Message message);
  QueueMeter::Nanoseconds begin_wait();
  void forget_waiting();
  void apply_push(const Message& message, const std::vector<int>& workers, std::span<const std::byte> values);
  void take_pull(int from, const Message& message);
  void take_copy(Message message);
  void take_copied(const Message& message);
  void send_copy(std::size_t lane, const std::vector<Segment>& segments, bool install);
  /// What a push says about keys: they, or, where they are many single ones, the owned ranges from first to last.
  std::vector<Segment> coverage(const std::vector<Segment>& segments) const;
  void mark_dirty(const std::vector<Segment>& segments);
  void answer(int to, Message answer, const std::vector<Segment>& touched);
  void answer_push(int to, const Message& push);
  void answer_settled();
  void report_whole();
  std::vector<std::byte> read_planes(const std::vector<Segment>& segments) const;
  /// Calls body(lane, part) for the parts of a segment, each in one lane.
  template <typename Body>
  void for_lanes(const Segment& segment, const Body& body) const;

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  const ServerOptions options_;
  const std::unique_ptr<UpdateRule> rule_;
  std::vector<std::unique_ptr<std::byte[], Free>> memory_;  // zeroed pages that are not touched take no room
  Planes planes_;
  View view_;
  bool retired_ = false, stopped_ = false, told_whole_ = false;
  std::vector<PlacedRange> owned_;        // by key
  std::vector<std::size_t> owned_lanes_;  // of each of them
  std::vector<Lane> lanes_;
  SegmentSet present_;
  RangeClocks clocks_;
  std::uint64_t version_ = 0;
  /// By worker, task and part: the versions that the latest pushes became. A push that had no answer when the epoch
  /// changed comes again, when those of others may have followed it.
  std::map<int, std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>> became_;
  std::deque<Pending> pending_;
  std::vector<std::pair<int, Message>> early_;
  std::map<int, std::map<std::uint64_t, std::vector<Segment>>> key_lists_;  // by worker and hash
  std::map<int, std::deque<Behind>> behind_;  // a worker's messages after one whose keys are awaited
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::map<int, Contribution>> held_;  // by task, hash of keys
  std::vector<Outgoing> outgoing_;
  QueueMeter meter_;
  ServerCounters counters_;
};

}  // namespace trireme::ps
