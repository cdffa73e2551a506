#include "trireme/train/run/step_status.h"

#include <array>

namespace trireme::train {

StepStatus exchange(const StepStatus& status, comm::Group& world) {
  std::array<std::int64_t, 5> numbers{status.stop, status.memory, status.save, status.writing, status.clock};
  if (world.size() > 1) {
    world.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kI64}, comm::Reduce::kMax).wait();
  }
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

std::int64_t told(std::int64_t number, comm::Group& world) {
  if (world.size() > 1) world.broadcast(comm::Buffer{&number, 1, comm::DType::kI64}, 0).wait();
  return number;
}

}  // namespace trireme::train
