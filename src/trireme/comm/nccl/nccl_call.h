// comm/nccl/nccl_call.h -- what collectives and messages have in common: agreed on by the hosts, then given to NCCL.
//
// A call goes through phases: its ranks agree that they make the same one and on its place in the order of launches; it
// waits for its turn; ranks without a communicator connect; NCCL takes it. A kind of call says how its ranks agree, how
// they pass on the id of a new communicator, and what is launched.
// Depends on: endpoint.h.
#pragma once

#include <optional>

#include "trireme/comm/nccl/endpoint.h"

namespace trireme::comm {

class NcclCall : public Operation {
 public:
  ~NcclCall() override { leave_order(); }

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  void after_wait() override;
  bool needs_polling() const override { return phase_ == Phase::kConnect || phase_ == Phase::kGiven; }
  std::string_view waits_for() const override;

 protected:
  NcclCall(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call);
  /// What its stream has been given so far comes first. In the thread that makes the call.
  void note_stream();
  /// There is nothing to do with NCCL.
  void skip() { phase_ = Phase::kDone; }

  /// This rank's proposal for the order of launches, which then counts with it until it is given to the GPU.
  std::uint64_t propose(const LaunchId& id);
  bool has_proposed() const { return ordered_.has_value(); }
  /// All proposals are known, and `stamp` is the largest.
  void settle(std::uint64_t stamp) { endpoint_.order().settle(*ordered_, stamp); }
  void agreed() { phase_ = Phase::kTurn; }

  NcclEndpoint& endpoint_;
  GpuCallSite site_;
  Call call_;
  bool captured_ = false;
  Communicator* communicator_ = nullptr;  // from its turn on

 private:
  enum class Phase : std::uint8_t { kAgree, kTurn, kMeet, kConnect, kLaunch, kGiven, kFinish, kDone };

  /// One part of the agreement; kDone: it is asked for the next one, unless it has called agreed().
  virtual Progress agree(Effort effort) = 0;
  virtual Communicator& find_communicator() = 0;
  /// The communicator's id, from the rank that makes it to the others; kDone: the same on all.
  virtual Progress share_id(Effort effort, nccl::UniqueId& id) = 0;
  virtual void launch(device::CudaEventHandle after) = 0;
  virtual void launched() {}
  /// After NCCL has taken it.
  virtual Progress finish(Effort /*effort*/) { return Progress::kDone; }

  Progress step(Effort effort);
  void leave_order() noexcept;

  Phase phase_ = Phase::kAgree;
  GpuEvent ready_, over_;
  std::optional<LaunchId> ordered_;  // in the order of launches
};

}  // namespace trireme::comm
