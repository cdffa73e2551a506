// comm/rank.h -- one participant: its transport, its engine, its place in the world, and what it knows of the others.
//
// run_ranks() runs a function on ranks that are threads; launch.h and the MPI plugin make the Rank of a process.
// Depends on: group.h, engine.h, control.h.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/control.h"
#include "trireme/comm/departure.h"
#include "trireme/comm/gpu_transport.h"
#include "trireme/comm/group.h"
#include "trireme/comm/progress_engine.h"
#include "trireme/comm/recorder.h"
#include "trireme/comm/transport.h"
#include "trireme/cost/cost_table.h"

namespace trireme::comm {

/// This rank stopped because another one did: the other's error is the one to look at.
class PeerFailure : public CommError {
 public:
  using CommError::CommError;
};

struct CommOptions {
  std::chrono::milliseconds deadline{600'000};  ///< of every call, unless it says otherwise
  Algorithm algorithm = Algorithm::kAuto;       ///< for calls that do not ask for one
  std::optional<std::chrono::nanoseconds>
      spin;                               ///< busy waiting before a thread yields; default: 50 us if cores suffice
  std::size_t recorded_calls = 1000;      ///< kept by the flight recorder
  std::string flight_directory = ".";     ///< where it is written on failure; empty: nowhere
  std::size_t segment_bytes = 256 << 10;  ///< routines cut long transfers into these
  cost::CostTable costs;                  ///< for choosing algorithms; the same on all ranks
};

class Rank final : private Watch {
 public:
  Rank(std::unique_ptr<Transport> transport, std::unique_ptr<ControlPlane> control, CommOptions options);
  ~Rank() override;
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return transport_->rank(); }
  int ranks() const { return transport_->ranks(); }
  Group& world() { return *world_; }
  ControlPlane& control() { return *control_; }
  Transport& transport() { return *transport_; }
  /// Calls under way, by Little's law.
  QueueReading queue() { return engine_.queue(); }
  const Recorder& recorder() const { return recorder_; }
  const CommOptions& options() const { return options_; }

  /// This rank cannot go on, for this reason: the others are told, and their calls that need it fail. After kRefused
  /// they write no flight recorders: nothing broke.
  void announce_failure(const std::string& reason, Notice::Kind kind = Notice::Kind::kFailed) noexcept;

 private:
  friend class Group;
  friend class Work;

  void check_peers(const Group& group);
  std::exception_ptr timed_out(const Operation& operation) override;
  std::exception_ptr peer_lost(const Operation& operation) override;
  FailureReport report(const Group& group, const std::exception_ptr& error) override;
  void failed(const FailureReport& report) override;

  void give_up() noexcept;
  void on_notice(const Notice& notice);
  std::string on_question(const std::string& question);
  void add(Group& group);
  void remove(Group& group);
  std::string arrivals(const Operation& operation, std::vector<int>& missing);
  std::string peer_position(const Operation& operation);
  std::string gpu_positions(const Operation& operation, const GpuPosition& mine);

  CommOptions options_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ControlPlane> control_;
  Recorder recorder_;
  FlightListing listing_;

  std::mutex groups_mutex_;
  std::vector<Group*> groups_;
  Departure departure_;  // what this rank will have done when it leaves: groups that have ended already

  struct Gone {
    Notice::Kind kind;
    std::string text;
    std::int64_t since_ns;
    std::optional<Departure> departure;  // of one that left
  };
  bool fails(const Gone& gone, const Operation& operation) const;
  bool peer_refused();
  std::mutex gone_mutex_;
  std::vector<std::optional<Gone>> gone_;  // by rank
  bool has_failed_ = false;                // this rank; its last words are said

  // It goes after the engine, whose background thread may still tell it of a failure when the rank ends.
  std::unique_ptr<GpuTransport> gpu_;
  ProgressEngine engine_;
  std::unique_ptr<Group> world_;
};

/// What carries messages between ranks that are processes.
enum class ProcessTransport : std::uint8_t {
  kAuto,  ///< MPI where its launcher started the ranks, UCX otherwise
  kMpi,
  kUcx,
};

/// How ranks are made, whether they are threads or processes.
struct RanksOptions {
  CommOptions comm;
  ProcessTransport processes = ProcessTransport::kAuto;
  std::string interface = {};    ///< UCX: network interfaces, see network_interfaces.h
  std::string fingerprint = {};  ///< of what all processes must have alike, such as the recipe; empty: not compared
  int ranks_per_node = 0;        ///< as if so many, in order, were on each node; 0: as they are
  /// Wraps each rank's transport, e.g. into an emulated network.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap;
};

/// Runs `body` on `ranks` threads and waits for all. When some throw, the others are woken; then the error that came
/// first and was not itself a consequence of another rank's is rethrown.
void run_ranks(int ranks, const std::function<void(Rank&)>& body, const RanksOptions& options = {});

}  // namespace trireme::comm
