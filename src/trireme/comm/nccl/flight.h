// comm/nccl/flight.h -- follows a call that the GPU has been given until the GPU's counters say that it is done.
//
// Nobody waits for it: the engine has adopted it, watches its deadline and gives it up when a rank it needs is gone.
// Depends on: communicator.h.
#pragma once

#include "trireme/comm/nccl/communicator.h"
#include "trireme/comm/operation.h"

namespace trireme::comm {

class NcclFlight final : public Operation {
 public:
  NcclFlight(Communicator& communicator, std::uint64_t number) : communicator_(communicator), number_(number) {}

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  std::uint64_t sent_bytes() const override { return 0; }  // counted with the call
  std::optional<GpuPosition> gpu_position() const override { return GpuPosition{communicator_.name(), number_}; }

 private:
  Communicator& communicator_;
  std::uint64_t number_;
  std::int64_t health_checked_ns_ = 0;
};

}  // namespace trireme::comm
