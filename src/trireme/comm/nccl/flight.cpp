#include "trireme/comm/nccl/flight.h"

#include "trireme/comm/recorder.h"

namespace trireme::comm {
namespace {

// Asking NCCL takes its locks; counters tell the ordinary course of things.
constexpr std::int64_t kHealthEveryNs = 50'000'000;

}  // namespace

Progress NcclFlight::advance(Effort) {
  // An aborted communicator lets the stream run on, past the counter: that is no end to be taken for one.
  if (communicator_.is_ready() && communicator_.is_done(number_)) return Progress::kDone;
  const std::int64_t now = now_ns();
  if (!communicator_.is_ready() || now - health_checked_ns_ >= kHealthEveryNs) {
    health_checked_ns_ = now;
    communicator_.check_health();
  }
  return Progress::kStuck;
}

void NcclFlight::abandon() noexcept { communicator_.abort("a call that the GPU was given did not end"); }

}  // namespace trireme::comm
