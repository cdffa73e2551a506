// comm/nccl/collective.h -- a collective on GPU memory: agreed on by the hosts, then given to NCCL.
//
// Depends on: endpoint.h, rounds.h.
#pragma once

#include <optional>

#include "trireme/comm/nccl/endpoint.h"
#include "trireme/comm/nccl/rounds.h"

namespace trireme::comm {

class NcclCollective final : public Operation {
 public:
  /// In the thread that makes the call: what its stream has been given so far comes first.
  NcclCollective(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call);
  ~NcclCollective() override;

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return group_of(*this).least_sent_bytes(call_); }
  /// NCCL adds it to the graph from a thread of its own, and CUDA does not take two threads that add to one graph.
  bool blocks_caller() const override { return captured_; }
  void after_wait() override;
  bool needs_polling() const override { return phase_ == Phase::kConnect || phase_ == Phase::kGiven; }
  bool continues_on_gpu() const override { return !alone_ && !captured_; }
  std::string_view waits_for() const override;

 private:
  enum class Phase : std::uint8_t { kArrive, kLetters, kStamp, kTurn, kMeet, kConnect, kLaunch, kGiven, kDone };

  Progress step(Effort effort);
  Progress arrive(Effort effort);
  Progress letters(Effort effort);
  Progress stamp(Effort effort);
  Progress meet(Effort effort);
  Rounds::Context round_context() const;
  LaunchId id() const { return {.channel = site_.members.channel, .number = site_.tag}; }

  NcclEndpoint& endpoint_;
  GpuCallSite site_;
  Call call_;
  bool alone_;
  bool captured_ = false;
  Phase phase_ = Phase::kArrive;
  GpuEvent ready_, over_;
  bool entered_ = false, on_board_ = false, ordered_ = false;
  int next_rank_ = 0;
  std::optional<Rounds> rounds_;
  std::optional<Letters> letters_;
  std::uint64_t proposal_ = 0;
  Communicator* communicator_ = nullptr;
};

}  // namespace trireme::comm
