// comm/negotiator.h -- sums of named tensors that ranks have ready in different orders (Horovod).
//
//   Negotiator sums(group, {});
//   sums.all_reduce("layer2.weight", gradient);   // in any order, on each rank
//   sums.wait_all();
//
// In cycles, ranks agree on what all of them have ready (negotiation.h): by names through the coordinator the first
// time, then by one bit for each name that is remembered (the response cache), which is one small all-reduce. Tensors
// that are ready together are copied into a buffer of `fusion_bytes` and summed by one call.
//
// There is no thread behind it (negotiator_thread.h has one): cycles go on in all_reduce(), poll() and wait(). A rank
// that does none of these holds up the others until the group's deadline names it. The group is the negotiator's alone
// while it lives.
// Depends on: base, group.h, negotiation.h.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/events.h"
#include "trireme/comm/group.h"
#include "trireme/comm/negotiation.h"

namespace trireme::comm {

struct NegotiatorOptions {
  std::size_t fusion_bytes = std::size_t{64} << 20;
  std::chrono::nanoseconds cycle = std::chrono::milliseconds(1);  ///< at least so long from one to the next
  bool cache = true;                                              ///< names are remembered
  std::chrono::nanoseconds stall = std::chrono::seconds(60);      ///< after so long, who is missing is told
  /// On rank 0; unset: logged as warnings. Each tensor is told of once.
  std::function<void(const std::string&)> on_stall;
  /// Settings to try while work goes on, each for so many cycles that summed something; empty: as given above.
  std::vector<CycleTuner::Setting> autotune;
  int autotune_samples = 5;
  bool cycles_when_idle = false;  ///< cycles go on where this rank has nothing under way; the same on all ranks
  /// Told what becomes of each tensor, on a lane of its own (Horovod's timeline): "negotiate", "fuse", "all_reduce" and
  /// "unfuse", the tensor's name as detail. Borrowed; null: nobody.
  EventSink* events = nullptr;
};

class Negotiator {
 public:
  /// On all ranks of the group together.
  Negotiator(Group& group, NegotiatorOptions options);
  /// finish() must have been called, but for exceptions.
  ~Negotiator();
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  /// In place; `data` is borrowed until the tensor's wait(). A name may come again after that. Host memory.
  void all_reduce(const std::string& name, Buffer data);
  /// Goes on with what can go on without waiting.
  void poll();
  /// Goes on by one step, waiting for other ranks where that takes them.
  void go_on() { advance(/*hurry=*/true); }
  /// Tensors whose wait() would return, or throw, at once.
  std::vector<std::string> done() const;
  /// A CommError where ranks gave the name different types or sizes: on every rank.
  void wait(const std::string& name);
  void wait_all();
  /// All ranks together: nothing will come any more.
  void finish();

  struct Counters {
    std::int64_t cycles = 0;       ///< agreements made
    std::int64_t negotiated = 0;   ///< of them, by names
    std::int64_t collectives = 0;  ///< sums
    std::int64_t tensors = 0;      ///< that they summed
    std::int64_t cached = 0;       ///< of these, agreed on by bits
  };
  const Counters& counters() const { return counters_; }
  CycleTuner::Setting setting() const { return {options_.fusion_bytes, options_.cycle}; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase : std::uint8_t { kIdle, kBits, kSizes, kReports, kAnswerSize, kAnswer };
  struct Pending {
    ReadyTensor tensor;
    void* data = nullptr;
    bool told = false, summing = false, done = false;
    std::string refused;
    Clock::time_point since;
    int lane = 0;  // of events
  };
  /// A sum under way.
  struct Sum {
    std::vector<Pending*> members;
    std::vector<std::byte> buffer;  // of several
    std::size_t bytes = 0;
    Work work;
    Clock::time_point started;
  };

  bool has_news() const;
  bool advance(bool hurry);
  void begin_cycle();
  void take_bits();
  void send_report();
  void answer();
  void take_answer();
  void start_sums(const std::vector<ReadyTensor>& tensors);
  bool settle_sums();
  void tell(const Pending& tensor, const char* phase, Clock::time_point begin, Clock::time_point end) const;
  void tell_stalls(Clock::time_point now);
  void tune();

  Group& group_;
  NegotiatorOptions options_;
  std::map<std::string, Pending> pending_;
  std::vector<ReadyTensor> remembered_;  // the cache: the same list on all ranks
  std::map<std::string, std::size_t> place_;
  std::deque<Sum> sums_;
  std::optional<Coordinator> coordinator_;  // rank 0
  std::optional<CycleTuner> tuner_;
  std::vector<std::string> told_stalls_;
  std::map<std::string, int> lanes_;  // of events, by tensor
  Counters counters_;

  Phase phase_ = Phase::kIdle;
  Clock::time_point last_cycle_, tuned_since_;
  double tuned_bytes_ = 0;
  bool stops_ = false, stopped_ = false, setting_changed_ = false, forget_ = false;
  Work control_;
  std::vector<std::uint8_t> bits_;
  std::vector<std::int64_t> sizes_;
  std::int64_t size_ = 0;
  std::vector<std::byte> report_, reports_, answer_;
};

}  // namespace trireme::comm
