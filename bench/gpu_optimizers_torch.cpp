// Training steps and updates by optimizer on a GPU, as ratios to AdamW's: build/release/bench/gpu_optimizers_torch
// [BATCH]
//
// GPT-2 124M in bf16 with fp32 master weights, without CUDA graphs; BATCH sequences of 1,024 tokens a step (64). Goal:
// Muon's step at most 1.1 times AdamW's.
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "bench/arguments.h"
#include "bench/gpu_measure.h"
#include "bench/random_step.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/cuda.h"
#include "trireme/optim/update.h"

namespace trireme::bench {
namespace {

constexpr std::int64_t kTokens = 1024;  // of a sequence

class Training {
 public:
  Training(spec::OptimizerKind kind, std::int64_t batch, at::Device device) : device_(device) {
    spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);  // 12 layers of 768
    shape.vocab_size = 50304;
    shape.dropout = shape.attention_dropout = 0;
    model_ = models::build(shape, {.logits_chunk_bytes = std::int64_t{1} << 30});
    nn::initialise(model_->params, nn::Precision::kBf16, 1, device_);
    spec::OptimConfig config;
    config.kind = kind;
    config.weight_decay = 0.1;
    config.grad_clip_norm = 1;
    optimizer_ = optim::make_optimizer(config, model_->params);
    tokens_.emplace(shape.vocab_size, batch, kTokens, device_);
  }

  /// Seconds a step.
  double run_steps(int steps) {
    return timed(steps, [this] { step(); });
  }
  /// Seconds an update, by the gradients that the last step left.
  double run_updates(int updates) {
    return timed(updates, [this] {
      for (nn::Param& param : model_->params) param.gradient_empty = false;
      optim::update(*optimizer_, {.learning_rate = 0});
    });
  }
  double loss() const { return loss_; }

 private:
  void step() {
    nn::Context context = tokens_->context();
    forward_backward(*model_, nullptr, tokens_->inputs, context);
    optim::update(*optimizer_, {.learning_rate = 1e-4});
    nn::settle(context.losses);
    loss_ = context.losses.at(0).sum / context.losses.at(0).count;
  }
  template <typename Body>
  double timed(int times, const Body& body) {
    device::synchronise(device_);
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) body();
    device::synchronise(device_);
    return seconds_since(begin) / times;
  }

  at::Device device_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<RandomTokens> tokens_;
  double loss_ = 0;
};

int run(int count, char** words) {
  std::int64_t batch = 64;
  Arguments app("Training steps and updates by optimizer on a GPU, beside AdamW's");
  app.add_option("BATCH", batch, "sequences of a step").positive().show_default();
  if (const auto status = app.parse(count, words)) return *status;
  if (const auto status = lacks_gpu()) return *status;
  const at::Device device = device::use_cuda(0);
  const auto names = spec::enum_names(std::type_identity<spec::OptimizerKind>());
  using enum spec::OptimizerKind;
  double adamw = 0;
  fmt::print("GPT-2 124M, {} sequences of {} tokens a step\n", batch, kTokens);
  fmt::print("{:<22}{:>10}{:>12}{:>12}{:>10}\n", "optimizer", "step ms", "of adamw's", "update ms", "loss");
  for (const spec::OptimizerKind kind : {kAdamw, kMuon, kLion, kScheduleFree, kAdafactor, kSoap, kShampoo}) {
    Training training(kind, batch, device);
    training.run_steps(4);  // libraries choose kernels
    const double step = training.run_steps(10);
    const double loss = training.loss();
    const double update = training.run_updates(10);
    if (kind == kAdamw) adamw = step;
    fmt::print("{:<22}{:>10.2f}{:>12.3f}{:>12.2f}{:>10.4f}\n", name_in(names, kind), step * 1e3, step / adamw,
               update * 1e3, loss);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int count, char** words) { return trireme::bench::run(count, words); }
