// comm/nccl/message.h -- a send or receive on GPU memory.
//
// NCCL has no tags and matches messages between two ranks in the order in which both launch them. So the two hosts
// shake hands first, over the host transport, which has tags: the sender says hello with the number of its message, the
// receiver answers with a proposal for the order of launches once it has a receive for it, the sender decides. Then
// both launch, on a communicator of just these two ranks.
// Depends on: nccl_call.h.
#pragma once

#include <array>

#include "trireme/comm/nccl/nccl_call.h"

namespace trireme::comm {

/// Messages of the handshake share the call's tag; what they are goes into bits above it.
inline constexpr std::uint32_t kLargestGpuTag = (1u << 27) - 1;

class NcclMessage final : public NcclCall {
 public:
  NcclMessage(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call, bool is_send, int peer);
  ~NcclMessage() override { leave_lane(); }

  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return is_send_ ? call_.key.count * call_.element() : 0; }
  bool continues_on_gpu() const override { return !captured_; }

 private:
  enum class Handshake : std::uint8_t { kHello, kAnswer, kVerdict };
  enum Letter : std::uint32_t { kHello, kAnswer, kVerdict, kId };

  Progress agree(Effort effort) override;
  Communicator& find_communicator() override;
  Progress share_id(Effort effort, nccl::UniqueId& id) override;
  void launch(device::CudaEventHandle after) override;
  Progress finish(Effort effort) override;

  Envelope envelope(Letter letter) const;
  void post(Letter letter, void* data, std::size_t bytes, bool send);
  /// Whether the last letter posted is through; raises a mismatch where the other side has another one.
  bool is_over(Letter letter, Effort effort);
  bool is_first_in_lane() const;
  void leave_lane();
  int my_rank() const { return site_.members.ranks[static_cast<std::size_t>(site_.members.me)]; }
  int peer_rank() const { return site_.members.ranks[static_cast<std::size_t>(peer_)]; }
  LaunchId id() const;

  bool is_send_;
  int peer_;
  LaneId lane_;
  Handshake handshake_ = Handshake::kHello;
  bool in_lane_ = true;
  std::array<std::unique_ptr<Transfer>, 4> letters_;
  std::uint64_t number_ = 0, answer_ = 0, verdict_ = 0;
  nccl::UniqueId nccl_id_ = {};
};

/// From a rank to itself: whoever comes second, send or receive, launches a copy.
class NcclToItself final : public Operation {
 public:
  NcclToItself(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call, bool is_send);
  ~NcclToItself() override { leave(); }

  Progress advance(Effort effort) override;
  void abandon() noexcept override { leave(); }
  std::uint64_t sent_bytes() const override { return 0; }
  void after_wait() override;

 private:
  void leave() noexcept;

  NcclEndpoint& endpoint_;
  std::uint32_t channel_, tag_;
  int me_;
  Call call_;
  bool is_send_;
  enum class State : std::uint8_t { kAlone, kCopied, kMismatched } state_ = State::kAlone;
  CallKey theirs_;
  GpuEvent event_;  // alone: its data is ready; copied: the copy is made
};

}  // namespace trireme::comm
