#include "trireme/train/engine/updates.h"

namespace trireme::train {

Updates::Updates(const spec::LayoutConfig& layout, Engine& engine, optim::Optimizer& optimizer, WeightAverage* average)
    : engine_(engine), optimizer_(optimizer), average_(average), warmup_(layout.offload_warmup) {
  if (layout.delayed_update) worker_ = std::make_unique<Worker>();
}

void Updates::wait() {
  if (worker_) worker_->wait();
  engine_.data_parallel().wait_for_weights();
}

optim::UpdateResult Updates::take(const optim::UpdateOptions& options, std::int64_t steps) {
  // Reads gradients only, so the update of the step before may still be at work.
  const optim::Decision decision = optim::decide(optimizer_, options);
  wait();
  if (unseen_) engine_.updated();
  unseen_ = false;
  if (!decision.result.taken) return decision.result;
  optimizer_.begin_step();
  parallel::DataParallel& data_parallel = engine_.data_parallel();
  const std::uint64_t sent = data_parallel.sent_weights();  // read from where the update writes
  if (worker_ && steps >= warmup_) {
    data_parallel.swap_gradient_buffers();
    unseen_ = true;
    // The rank's own thread goes on with its groups.
    const optim::StepOptions step{.learning_rate = decision.step.learning_rate,
                                  .gradient_scale = decision.step.gradient_scale,
                                  .across = data_parallel.late_across()};
    worker_->post([this, &data_parallel, sent, step] {
      data_parallel.wait_until_copied(sent);
      optimizer_.finish_step(step);
      if (average_ != nullptr) average_->update();
    });
    data_parallel.step_taken(decision.step.learning_rate);
  } else {
    data_parallel.wait_until_copied(sent);
    optim::StepOptions step = decision.step;
    if (data_parallel.streams_weights()) step.updated = [&](const nn::Param& param) { data_parallel.updated(param); };
    optimizer_.finish_step(step);
    data_parallel.step_taken(decision.step.learning_rate);
    if (average_ != nullptr) average_->update();
    engine_.updated();
  }
  return decision.result;
}

std::vector<at::Tensor> Updates::computed() const {
  return worker_ ? engine_.data_parallel().computed() : std::vector<at::Tensor>();
}

void Updates::exchanged(const std::vector<at::Tensor>& computed) {
  if (computed.empty()) return engine_.updated();
  parallel::DataParallel& data_parallel = engine_.data_parallel();
  data_parallel.wait_for_weights();
  std::size_t i = 0;
  for (const at::Tensor& part : data_parallel.computed()) part.copy_(computed[i++]);
  data_parallel.computed_changed();
}

void Updates::send_again() {
  if (worker_) return engine_.data_parallel().computed_changed();
  for (nn::Param& param : engine_.params()) {
    if (param.trainable) ++param.version;  // what has not changed is not sent
  }
  engine_.updated();
}

void Updates::moved() {
  optimizer_.placements_changed();
  if (worker_) return engine_.data_parallel().computed_changed();
  engine_.updated();
}

void Updates::add_state(nn::State& state) {
  if (!worker_) return;
  const std::vector<at::Tensor> computed = engine_.data_parallel().computed();
  std::size_t i = 0;
  for (const nn::Param& param : engine_.params()) {
    state.add("computed/" + param.name, computed[i++], param.placement);
  }
}

void Updates::loaded() {
  engine_.data_parallel().loaded();
  for (nn::Param& param : engine_.params()) nn::publish(param);
  nn::zero_grad(engine_.params());
  unseen_ = worker_ != nullptr;
  if (unseen_) {
    engine_.data_parallel().computed_changed();
  } else {
    engine_.updated();
  }
}

}  // namespace trireme::train
