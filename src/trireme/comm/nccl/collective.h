// comm/nccl/collective.h -- a collective on GPU memory: agreed on by the hosts, then given to NCCL.
//
// Depends on: nccl_call.h, rounds.h.
#pragma once

#include <optional>

#include "trireme/comm/nccl/nccl_call.h"
#include "trireme/comm/nccl/rounds.h"

namespace trireme::comm {

class NcclCollective final : public NcclCall {
 public:
  /// In the thread that makes the call: what its stream has been given so far comes first.
  NcclCollective(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call);

  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return group_of(*this).least_sent_bytes(call_); }
  /// NCCL adds it to the graph from a thread of its own, and CUDA does not take two threads that add to one graph.
  bool blocks_caller() const override { return captured_; }
  void after_wait() override;
  bool continues_on_gpu() const override { return !alone_ && !captured_; }

 private:
  enum class Agreeing : std::uint8_t { kArrive, kLetters, kStamp };

  Progress agree(Effort effort) override;
  Communicator& find_communicator() override;
  Progress share_id(Effort effort, nccl::UniqueId& id) override;
  void launch(device::CudaEventHandle after) override;
  void launched() override;

  Progress arrive(Effort effort);
  Progress letters(Effort effort);
  Progress stamp(Effort effort);
  Rounds::Context round_context() const;

  bool alone_;
  Agreeing agreeing_ = Agreeing::kArrive;
  bool entered_ = false, on_board_ = false;
  int next_rank_ = 0;
  std::optional<Rounds> rounds_;
  std::optional<Letters> letters_;
  std::uint64_t proposal_ = 0;
};

}  // namespace trireme::comm
