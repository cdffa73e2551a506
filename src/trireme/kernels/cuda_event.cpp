#include "trireme/kernels/cuda_event.h"

#include <utility>

#include "trireme/kernels/cuda.h"

namespace trireme::kernels {

CudaEvent::CudaEvent() { check_cuda(cuda().event_new(&event_, /*timed=*/false), "a mark"); }

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cuda().event_free(event_);
}

CudaEvent::CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

void CudaEvent::record() { check_cuda(cuda().event_record(event_, cuda_stream()), "a mark"); }

void CudaEvent::wait() { check_cuda(cuda().event_wait(event_), "waiting for a mark"); }

}  // namespace trireme::kernels
