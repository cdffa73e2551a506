#include "trireme/parallel/gradient_sum.h"

#include "trireme/device/tensor_buffer.h"

namespace trireme::parallel {

void sum_gradients(nn::Params& params, comm::Group& group) {
  if (group.size() == 1) return;
  comm::Batch batch;
  for (nn::Param& param : params) {
    if (!param.trainable) continue;
    batch.add(group.all_reduce(device::to_buffer(nn::gradient_to_add_to(param)), comm::Reduce::kSum));
  }
  batch.commit().wait();
}

}  // namespace trireme::parallel
