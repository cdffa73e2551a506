#include "trireme/comm/nccl/nccl_call.h"

#include "trireme/base/error.h"

namespace trireme::comm {

NcclCall::NcclCall(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call)
    : endpoint_(endpoint),
      site_(site),
      call_(call),
      ready_(endpoint.cuda(), endpoint.events()),
      over_(endpoint.cuda(), endpoint.events()) {}

void NcclCall::note_stream() {
  const device::CudaStream stream = endpoint_.cuda().current_stream();
  captured_ = endpoint_.is_capturing(stream);
  check_gpu(endpoint_.cuda().record_event(ready_.get(), stream), "recording the event of a call's data");
}

std::uint64_t NcclCall::propose(const LaunchId& id) {
  const std::uint64_t proposal = endpoint_.order().propose(id);
  ordered_ = id;
  return proposal;
}

void NcclCall::leave_order() noexcept {
  if (ordered_) endpoint_.order().leave(*ordered_);
  ordered_.reset();
}

Progress NcclCall::advance(Effort effort) {
  bool moved = false;
  while (phase_ != Phase::kDone) {
    const Progress progress = step(effort);
    if (progress != Progress::kDone) return moved ? Progress::kMoved : progress;
    moved = true;
  }
  return Progress::kDone;
}

/// One phase, or a part of the agreement; kDone: the next may begin.
Progress NcclCall::step(Effort effort) {
  Progress progress = Progress::kDone;
  switch (phase_) {
    case Phase::kAgree:
      return agree(effort);
    case Phase::kTurn:
      if (!endpoint_.order().may_launch(*ordered_)) return Progress::kStuck;
      communicator_ = &find_communicator();
      if (captured_ && communicator_->is_new()) {
        throw CommError(
            fmt::format("{} cannot be captured: these ranks have made no such call on their GPUs yet", describe(*this)),
            "make one before capturing a CUDA graph");
      }
      phase_ = communicator_->is_new() ? Phase::kMeet : Phase::kLaunch;
      return Progress::kDone;
    case Phase::kMeet: {
      nccl::UniqueId id{};
      progress = share_id(effort, id);
      if (progress != Progress::kDone) return progress;
      communicator_->connect(id);
      phase_ = Phase::kConnect;
      return Progress::kDone;
    }
    case Phase::kConnect:
      if (!communicator_->has_connected()) return Progress::kStuck;
      phase_ = Phase::kLaunch;
      return Progress::kDone;
    case Phase::kLaunch:
      launch(ready_.get());
      phase_ = Phase::kGiven;
      return Progress::kDone;
    case Phase::kGiven:
      if (!communicator_->has_launched(over_.get())) return Progress::kStuck;
      launched();
      leave_order();
      endpoint_.launched(*this, *communicator_, captured_);
      phase_ = Phase::kFinish;
      return Progress::kDone;
    case Phase::kFinish:
      progress = finish(effort);
      if (progress == Progress::kDone) phase_ = Phase::kDone;
      return progress;
    case Phase::kDone:
      break;
  }
  return Progress::kDone;
}

void NcclCall::after_wait() {
  check_gpu(endpoint_.cuda().stream_wait_event(endpoint_.cuda().current_stream(), over_.get()),
            "waiting for a call's result");
}

void NcclCall::abandon() noexcept {
  if (phase_ == Phase::kConnect || phase_ == Phase::kGiven) communicator_->abort("a call was given up");
  leave_order();
}

std::string_view NcclCall::waits_for() const {
  switch (phase_) {
    case Phase::kTurn:
      return "its turn behind other calls";
    case Phase::kMeet:
    case Phase::kConnect:
      return "NCCL to connect the ranks";
    case Phase::kGiven:
      return "NCCL to take the call";
    default:
      return {};
  }
}

}  // namespace trireme::comm
