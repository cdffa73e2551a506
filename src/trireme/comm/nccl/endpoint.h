// comm/nccl/endpoint.h -- what the calls of one rank share: communicators, the order of launches, events, captures.
//
// Depends on: communicator.h, launch_order.h, group.h.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/nccl/communicator.h"
#include "trireme/comm/nccl/launch_order.h"
#include "trireme/comm/nccl/nccl_transport.h"

namespace trireme::comm {

/// Taken from the endpoint's store and given back.
class GpuEvent {
 public:
  using Store = std::vector<device::CudaEventHandle>;
  GpuEvent(const device::CudaRuntime& cuda, Store& store);
  ~GpuEvent();
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  device::CudaEventHandle get() const { return event_; }

 private:
  Store& store_;
  device::CudaEventHandle event_ = nullptr;
};

/// Messages with the same tag between two ranks shake hands one after the other.
struct LaneId {
  std::uint32_t channel = 0, tag = 0;
  int peer = -1;
  bool is_send = false;
  auto operator<=>(const LaneId&) const = default;
};

class NcclMessage;
class NcclToItself;

class NcclEndpoint final : public GpuTransport {
 public:
  NcclEndpoint(const device::CudaRuntime& cuda, NcclOptions options) : cuda_(cuda), options_(std::move(options)) {}
  ~NcclEndpoint() override;

  std::string_view name() const override { return "nccl"; }
  int gpu() const override { return options_.gpu; }
  std::unique_ptr<Operation> make_collective(const GpuCallSite& site, const Call& call) override;
  std::unique_ptr<Operation> make_message(const GpuCallSite& site, const Call& call, bool is_send, int peer) override;
  std::uint32_t largest_tag() const override;
  std::uint64_t register_buffer(const Members& members, void* data, std::size_t bytes) override;
  void deregister_buffer(std::uint64_t registration) noexcept override;
  void begin_capture() override;
  std::uint64_t end_capture() override;
  void replay(std::uint64_t capture, void (*launch)(void*), void* context) override;
  void drop_capture(std::uint64_t capture) noexcept override;
  GpuProgress progress_of(const std::string& ranks) const override;
  void give_up() noexcept override;

  // --- for the operations
  const device::CudaRuntime& cuda() const { return cuda_; }
  LaunchOrder& order() { return order_; }
  GpuEvent::Store& events() { return events_; }
  /// Of these ranks of the world, in this order; made at the first call.
  Communicator& communicator(const std::vector<int>& ranks, int me);
  /// Whether calls on this stream are being captured. CommError where nobody would follow them.
  bool is_capturing(device::CudaStream stream) const;
  /// The GPU has been given the call of this operation: it is followed, or noted as part of the capture.
  void launched(const Operation& call, Communicator& communicator, bool captured);
  /// Around the launch of a captured collective. Branches of a graph run in no order: two kernels of NCCL that wait
  /// for other GPUs could each hold up the other's partner. So a call comes after the last one of another communicator,
  /// in the order that the ranks have agreed on.
  void order_in_capture(const Communicator& communicator);
  void note_captured(const Communicator& communicator);
  std::deque<NcclMessage*>& lane(const LaneId& id) { return lanes_[id]; }
  /// Of this rank to itself: who came first and waits.
  std::deque<NcclToItself*>& waiting_for_itself(std::uint32_t channel, std::uint32_t tag) {
    return to_itself_[{channel, tag}];
  }

 private:
  struct CapturedCollective {
    Group* group;
    CallFacts facts;
    Communicator* communicator;
  };
  using Capture = std::vector<CapturedCollective>;

  const device::CudaRuntime& cuda_;
  NcclOptions options_;
  std::optional<NcclLibrary> library_;
  GpuEvent::Store events_;
  LaunchOrder order_;
  mutable std::mutex communicators_mutex_;  // the map itself, for progress_of()
  std::map<std::vector<int>, std::unique_ptr<Communicator>> communicators_;
  std::vector<Communicator*> in_order_;  // as made, which is the same order on all ranks
  std::map<LaneId, std::deque<NcclMessage*>> lanes_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<NcclToItself*>> to_itself_;
  std::map<std::uint64_t, Communicator*> registered_;
  std::map<std::uint64_t, Capture> captures_;
  std::optional<Capture> capture_;
  std::optional<GpuEvent> last_end_;             // of the capture's last collective
  const Communicator* last_captured_ = nullptr;  // and where it ran; null: there is none yet
  std::uint64_t next_id_ = 1;
  std::string given_up_;  // why; empty: it has not
};

}  // namespace trireme::comm
