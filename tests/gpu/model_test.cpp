#include <ATen/ops/arange.h>

#include "tests/gpu/support.h"
#include "trireme/models/model.h"
#include "trireme/optim/update.h"

namespace trireme::gpu {
namespace {

using nn::Precision;

spec::ModelShape small(spec::Family family) {
  spec::ModelShape shape = spec::family_shape(family);
  shape.num_layers = 2;
  shape.hidden_size = 128;
  shape.num_heads = 4;
  shape.num_kv_heads = family == spec::Family::kLlama ? 2 : 4;
  shape.head_dim = 32;
  shape.ffn_size = 256;
  shape.max_seq_len = 64;
  shape.vocab_size = 320;
  shape.num_encoder_layers = 0;
  return shape;
}

struct Step {
  double loss;
  std::vector<at::Tensor> gradients, weights;
};

/// Two optimizer steps; gradients are the second's.
Step train(const spec::ModelShape& shape, Precision precision, at::Device device, bool documents = false) {
  auto model = models::build(shape);
  nn::initialise(model->params, precision, 7, device);
  spec::OptimConfig config;
  config.kind = spec::OptimizerKind::kAdamw;
  config.grad_clip_norm = 1;
  auto optimizer = optim::make_optimizer(config, model->params);
  Step out;
  for (int step = 0; step < 2; ++step) {
    const std::int64_t batch = 3, length = 48;
    const at::Tensor ids =
        at::arange(batch * (length + 1), at::kLong).mul(7919).remainder(shape.vocab_size).view({batch, -1});
    nn::Context context;
    context.training = true;
    context.seed = 7;
    context.step = step;
    context.losses_later = true;
    context.samples = at::arange(batch, at::kLong).to(device);
    context.sequence = nn::plain_sequence(batch, length);
    context.sequence.positions = context.sequence.positions.to(device);
    context.sequence.position_count = length;
    if (documents) {
      context.sequence.documents =
          at::arange(batch * length, at::kInt).div(19, "floor").to(at::kInt).view({batch, length}).to(device);
    }
    context.targets = ids.narrow(1, 1, length).contiguous().to(device);
    context.gradient_scale = 1.0 / static_cast<double>(batch * length);
    nn::Tape tape;
    model->forward({ids.narrow(1, 0, length).contiguous().to(device)}, context, &tape);
    model->backward(context, tape);
    nn::settle(context.losses);
    out.loss = context.losses.at(0).sum / context.losses.at(0).count;
    out.gradients.clear();
    for (nn::Param& param : model->params) out.gradients.push_back(param.gradient.cpu());
    optim::update(*optimizer, {.learning_rate = 1e-2});
  }
  for (nn::Param& param : model->params) out.weights.push_back(param.master.cpu());
  return out;
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const at::Tensor x = a[i].to(at::kDouble), y = b[i].to(at::kDouble);
    difference += (x - y).square().sum().item<double>();
    total += y.square().sum().item<double>();
  }
  return std::sqrt(difference / total);
}

TEST(GpuModels, TrainAsOnTheCpu) {
  for (const auto family : {spec::Family::kGpt2, spec::Family::kLlama, spec::Family::kBert}) {
    for (const bool documents : {false, true}) {
      spec::ModelShape shape = small(family);
      SCOPED_TRACE(fmt::format("family {}, documents {}", static_cast<int>(family), documents));
      shape.dropout = 0.1;
      const Step cpu = train(shape, Precision::kFp64, at::kCPU, documents);
      const Step exact = train(shape, Precision::kFp64, gpu(), documents);
      EXPECT_NEAR(exact.loss, cpu.loss, 1e-10);
      EXPECT_LT(distance(exact.gradients, cpu.gradients), 1e-9);
      EXPECT_LT(distance(exact.weights, cpu.weights), 1e-9);
      // Float masters start from draws of their own.
      const Step single_cpu = train(shape, Precision::kFp32, at::kCPU, documents);
      const Step single = train(shape, Precision::kFp32, gpu(), documents);
      EXPECT_NEAR(single.loss, single_cpu.loss, 1e-4);
      EXPECT_LT(distance(single.gradients, single_cpu.gradients), 1e-3);
      const Step narrow = train(shape, Precision::kBf16, gpu(), documents);
      EXPECT_NEAR(narrow.loss, single_cpu.loss, 0.03);
      EXPECT_LT(distance(narrow.gradients, single_cpu.gradients), 0.1);
    }
  }
}

TEST(GpuModels, RepeatThemselvesToTheBit) {
  const spec::ModelShape shape = small(spec::Family::kLlama);
  const Step one = train(shape, Precision::kFp32, gpu()), two = train(shape, Precision::kFp32, gpu());
  EXPECT_EQ(one.loss, two.loss);
  for (std::size_t i = 0; i < one.weights.size(); ++i) EXPECT_TRUE(same_bits(one.weights[i], two.weights[i])) << i;
}

}  // namespace
}  // namespace trireme::gpu
