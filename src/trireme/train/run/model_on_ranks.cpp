#include "trireme/train/run/model_on_ranks.h"

#include "trireme/parallel/gpu_exchange.h"
#include "trireme/spec/layout_check.h"

namespace trireme::train {

ModelOnRanks open_on_ranks(const std::filesystem::path& model, int tp, spec::Precision precision,
                           spec::DeviceKind device, comm::Group& world) {
  spec::LayoutConfig layout;
  layout.tp = tp;
  spec::LayoutTask task;
  task.shape = checkpoint::stored_shape(model);
  task.ranks = task.batch_rows = world.size();
  parallel::check_layout(layout, {}, task);
  ModelOnRanks out;
  out.groups = parallel::form(layout, task.shape, world, task.sequence, parallel::init_device_exchange(device, world));
  checkpoint::OpenOptions options;
  options.precision = precision;
  options.device = out.groups->device;
  options.build.parallel = &out.groups->parallel;
  out.opened = checkpoint::open_model(model, options);
  return out;
}

}  // namespace trireme::train
