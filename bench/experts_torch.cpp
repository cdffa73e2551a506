// bench/experts_torch.cpp -- mixtures of experts on a GPU: training steps, a layer beside a dense MLP of equal FLOPs,
// permute and combine beside a plain copy.
//
//   build/release/bench/experts_torch                         all of it
//   build/release/bench/experts_torch --model mixtral-1.7b    a step: forward, backward, clipping to norm 1, AdamW
//   build/release/bench/experts_torch --layer --rows --gemms  the layer; permute and combine; grouped GEMMs by load
//
// bf16 with fp32 masters and moments, bf16 gradients (--gradients fp32: those too), random tokens, CUDA graphs; biases
// of routers move after every step. Whoever compares with another library runs it in the same call. --json keeps
// samples.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/full.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/arguments.h"
#include "bench/gpu_measure.h"
#include "bench/random_step.h"
#include "tests/nn/moe/moe_cases.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/kernels/expert_ops.h"
#include "trireme/kernels/grouped_gemm.h"
#include "trireme/optim/update.h"
#include "trireme/spec/model_shape.h"
#include "trireme/train/engine/delayed_update.h"

namespace {

using namespace trireme;
using bench::gpu;

constexpr std::int64_t kSequence = 2048;
const std::vector<std::string> kModels{"mixtral-1.7b", "deepseek-2.7b"};

/// Mixtral's and DeepSeek-V3's parts at sizes for one GPU.
spec::ModelShape shape_of(const std::string& name) {
  const bool deepseek = name == "deepseek-2.7b";
  spec::ModelShape shape = spec::family_shape(deepseek ? spec::Family::kDeepseekV3 : spec::Family::kMistral);
  shape.vocab_size = 32000, shape.max_seq_len = kSequence, shape.tied = false;
  shape.dropout = shape.attention_dropout = 0;
  shape.window = 0;
  shape.head_dim = 128;
  if (!deepseek) {
    shape.num_layers = 8, shape.hidden_size = 1536, shape.num_heads = 12, shape.num_kv_heads = 4;
    shape.ffn_size = 5376;
    shape.experts = {.num_experts = 8, .top_k = 2, .aux_loss_weight = 0.01};
    return shape;
  }
  shape.num_layers = 12, shape.hidden_size = 1280, shape.num_heads = shape.num_kv_heads = 16;
  shape.ffn_size = 7168;
  shape.mla = {.q_lora_rank = 768, .kv_lora_rank = 512, .qk_rope_head_dim = 64, .v_head_dim = 128};
  shape.rotary = {};
  shape.mtp_depth = 0;
  shape.experts = {.num_experts = 64,
                   .top_k = 6,
                   .ffn_size = 896,
                   .num_shared_experts = 2,
                   .first_dense_layers = 1,
                   .router = spec::RouterKind::kSigmoidTopK,
                   .routed_scaling_factor = 2.5,
                   .aux_loss_weight = 1e-4,
                   .bias_update_rate = 1e-3};
  return shape;
}

struct StepOptions {
  bool narrow_gradients = true, cuda_graphs = true, save_mlp_activations = false, recompute_norms = false;
  std::int64_t batch = 8, logits_mib = 1024;
};

class Training {
 public:
  Training(const std::string& name, const StepOptions& options) : batch_(options.batch) {
    model_ = models::build(shape_of(name), {.logits_chunk_bytes = options.logits_mib << 20,
                                            .recompute_norms = options.recompute_norms,
                                            .save_mlp_activations = options.save_mlp_activations});
    for (nn::Param& param : model_->params) {
      param.narrow_gradient = options.narrow_gradients && param.placement.shape.size() >= 2;
    }
    nn::initialise(model_->params, nn::Precision::kBf16, 1, gpu());
    spec::OptimConfig config;
    config.kind = spec::OptimizerKind::kAdamw;
    config.weight_decay = 0.1;
    config.beta2 = 0.95;
    config.grad_clip_norm = 1;
    optimizer_ = optim::make_optimizer(config, model_->params);
    tokens_.emplace(model_->shape.vocab_size, batch_, kSequence, gpu());
    samples_ = at::arange(batch_, at::kLong).to(gpu());
    if (!options.cuda_graphs) return;
    graph_ = std::make_unique<train::StepGraph>(*model_, train::StepGraph::Gradients{.added = [](nn::Param&) {}});
    late_ = std::make_unique<train::DelayedUpdate>(*optimizer_);
  }

  void step() {
    nn::Context context = tokens_->context();
    context.samples = samples_;
    context.sample_scale = 1.0 / static_cast<double>(batch_);
    bench::forward_backward(*model_, graph_.get(), tokens_->inputs, context);
    flops_ = context.flops;
    if (late_) {
      late_->start(context.losses, 1e-4);
      if (model_->shape.experts.bias_update_rate > 0) model_->balance.advance(/*taken=*/true);
      if (late_->waiting() > 1) loss_ = nn::sum_of(late_->wait().losses) / tokens();
      return;
    }
    optim::update(*optimizer_, {.learning_rate = 1e-4});
    nn::settle(context.losses);
    loss_ = nn::sum_of(context.losses) / tokens();
    model_->balance.advance(/*taken=*/true);
  }
  /// Seconds a step.
  double run(int steps) {
    device::synchronise(gpu());
    const auto begin = bench::Clock::now();
    for (int i = 0; i < steps; ++i) step();
    device::synchronise(gpu());
    const double seconds = bench::seconds_since(begin) / steps;
    while (late_ && late_->waiting() > 0) loss_ = nn::sum_of(late_->wait().losses) / tokens();
    return seconds;
  }
  double tokens() const { return static_cast<double>(batch_ * kSequence); }
  double loss() const { return loss_; }
  double flops() const { return flops_; }
  std::int64_t parameters() const { return model_->params.elements(); }

 private:
  std::int64_t batch_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<train::StepGraph> graph_;
  std::unique_ptr<train::DelayedUpdate> late_;
  std::optional<bench::RandomTokens> tokens_;
  at::Tensor samples_;
  double loss_ = 0, flops_ = 0;
};

nlohmann::json measure_model(const std::string& name, const StepOptions& options, int rounds, int steps) {
  gpu();  // begins to use it
  device::cuda_runtime().reset_peak_memory_stats(0);
  Training training(name, options);
  training.run(5);
  bench::Times times;
  for (int round = 0; round < rounds; ++round) times.seconds.push_back(training.run(steps));
  const double peak = static_cast<double>(device::cuda_runtime().max_memory_allocated(0)) / (1 << 30);
  fmt::print(
      "{}: {:.2f}B parameters, {}x{}, {} gradients{}: {:.2f} ms a step, {:.0f} tokens/s, {:.0f} TFLOP/s, peak "
      "{:.1f} GiB, loss {:.4f}\n",
      name, static_cast<double>(training.parameters()) / 1e9, options.batch, kSequence,
      options.narrow_gradients ? "bf16" : "fp32", options.cuda_graphs ? ", CUDA graphs" : "", times.median() * 1e3,
      training.tokens() / times.median(), training.flops() / times.median() / 1e12, peak, training.loss());
  std::fflush(stdout);
  return {{"seconds", times.seconds}, {"peak_gib", peak}, {"tokens", training.tokens()}, {"loss", training.loss()}};
}

/// Forward and backward of `layer` on [tokens, width].
double layer_seconds(nn::UnaryLayer& layer, const spec::ModelShape& shape, nn::Params& params) {
  for (nn::Param& param : params) param.narrow_gradient = param.placement.shape.size() >= 2;
  const std::int64_t batch = 8;
  const at::Tensor x = at::randn({batch, kSequence, shape.hidden_size}, bench::bf16()), dy = at::randn_like(x);
  nn::Context context;
  context.training = true;
  context.losses_later = true;
  context.samples = at::arange(batch, at::kLong).to(gpu());
  context.sequence = nn::plain_sequence(batch, kSequence);
  return bench::gpu_seconds([&] {
    nn::zero_grad(params);
    context.losses.clear();
    nn::Tape tape;
    layer.forward(x, context, &tape);
    layer.backward(dy.clone(), context, tape);
  });
}

nlohmann::json measure_layer(const std::string& name) {
  const spec::ModelShape shape = shape_of(name);
  const std::int64_t inner = spec::expert_ffn_size(shape), width = shape.hidden_size;
  nn::moe::MoeCase c{.name = name, .config = shape.experts, .hidden = width, .inner = inner};
  const auto moe = nn::moe::build_moe(c, nn::Precision::kBf16, nullptr, nn::single_rank(), gpu());
  const double experts = layer_seconds(*moe->layer, shape, moe->params);
  nn::Params params;
  const std::int64_t wide = inner * (shape.experts.top_k + shape.experts.num_shared_experts);
  nn::Param& in = params.add("in", {2 * wide, width}, {nn::Init::Kind::kNormal, 0.02}, true);
  nn::Param& out = params.add("out", {width, wide}, {nn::Init::Kind::kNormal, 0.02}, true);
  nn::initialise(params, nn::Precision::kBf16, 1, gpu());
  nn::Mlp mlp(nn::Linear(in, nullptr), nn::Linear(out, nullptr), kernels::Activation::kSilu, /*gated=*/true);
  const double dense = layer_seconds(mlp, shape, params);
  fmt::print(
      "{}, layer, forward and backward of 16384 tokens: {:.3f} ms, dense MLP of equal FLOPs {:.3f} ms ({:.2f})\n", name,
      experts * 1e3, dense * 1e3, dense / experts);
  return {{"moe", experts}, {"dense", dense}};
}

nlohmann::json measure_rows(const std::string& name, double rate) {
  const spec::ModelShape shape = shape_of(name);
  const std::int64_t tokens = 16384, k = shape.experts.top_k, width = shape.hidden_size;
  const at::Tensor logits = at::randn({tokens, shape.experts.num_experts}, bench::f32());
  const kernels::ExpertRouter router{.sigmoid = shape.experts.router == spec::RouterKind::kSigmoidTopK,
                                     .top_k = k,
                                     .group_tokens = kSequence,
                                     .sample_tokens = kSequence};
  const kernels::ExpertRouting routing = kernels::route_experts(logits, {}, router);
  const at::Tensor x = at::randn({tokens, width}, bench::bf16()), rows = kernels::permute_rows(x, routing.row_of);
  const double bytes = static_cast<double>((tokens * k + tokens) * width * 2);
  const double route = bench::graph_times([&] { kernels::route_experts(logits, {}, router); }).median();
  const double permute = bench::graph_times([&] { kernels::permute_rows(x, routing.row_of); }).median();
  const double combine = bench::graph_times([&] { kernels::combine_rows(rows, routing.row_of); }).median();
  fmt::print(
      "{}: route {:.0f} us, permute {:.0f} us ({:.0f} GB/s, {:.2f} of a copy's), combine {:.0f} us ({:.0f} GB/s, "
      "{:.2f})\n",
      name, route * 1e6, permute * 1e6, bytes / permute / 1e9, bytes / permute / rate, combine * 1e6,
      bytes / combine / 1e9, bytes / combine / rate);
  return {{"route", route}, {"permute", permute}, {"combine", combine}, {"bytes", bytes}, {"copy_rate", rate}};
}

/// Rows of each expert: equal; as a router that knows nothing chooses; the share of expert i as 1 / i.
at::Tensor ends_of(const std::string& load, std::int64_t experts, std::int64_t rows) {
  at::Tensor counts;
  if (load == "balanced") {
    counts = at::full({experts}, rows / experts, at::kLong);
    counts[0] += rows - counts.sum();
  } else {
    const at::Tensor share = load == "zipf" ? 1 / at::arange(1, experts + 1, at::kFloat) : at::ones({experts});
    counts = at::bincount(at::multinomial(share / share.sum(), rows, /*replacement=*/true), {}, experts);
  }
  return counts.cumsum(0).to(at::kInt).to(gpu());
}

/// The grouped GEMMs of a layer.
nlohmann::json measure_gemms(const std::string& name) {
  const spec::ModelShape shape = shape_of(name);
  const std::int64_t experts = shape.experts.num_experts, k = shape.experts.top_k, rows = 16384 * k,
                     width = shape.hidden_size, inner = spec::expert_ffn_size(shape);
  const at::Tensor x = at::randn({rows, width}, bench::bf16()), wide = at::randn({rows, 2 * inner}, bench::bf16()),
                   narrow = at::randn({rows, inner}, bench::bf16());
  const at::Tensor in = at::randn({experts, 2 * inner, width}, bench::bf16()),
                   out = at::randn({experts, width, inner}, bench::bf16());
  at::Tensor in_grad = at::empty_like(in), out_grad = at::empty_like(out), in_sum = at::empty_like(in, at::kFloat);
  nlohmann::json json;
  for (const std::string load : {"balanced", "random", "zipf"}) {
    const at::Tensor ends = ends_of(load, experts, rows);
    const auto tell = [&](const std::string& op, std::int64_t across, const std::function<void()>& call) {
      const double seconds = bench::graph_times(call, 5, 3).median();
      const double rate =
          2.0 * static_cast<double>(rows) * static_cast<double>(width) * static_cast<double>(across) / seconds;
      fmt::print("{}, {}, {}: {:.0f} us, {:.0f} TFLOP/s\n", name, load, op, seconds * 1e6, rate / 1e12);
      json[load][op] = seconds;
    };
    const auto product = [&](const at::Tensor& a, const at::Tensor& b, bool transpose) {
      return
          [a, b, transpose, &ends] { kernels::grouped_gemm({.a = a, .b = b, .transpose_b = transpose, .ends = ends}); };
    };
    const auto gradient = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums, bool adds, bool own) {
      return [a, b, sums, adds, own, &ends] {
        kernels::grouped_weight_grad(
            {.a = a, .b = b, .out = sums, .accumulate = adds, .ends = ends, .own_kernel = own});
      };
    };
    if (load == "balanced") bench::gpu_seconds(product(x, in, true), 10);  // the GPU's clock has settled
    tell("in, forward", 2 * inner, product(x, in, true));
    tell("out, forward", inner, product(narrow, out, true));
    tell("in, backward", 2 * inner, product(wide, in, false));
    tell("out, backward", inner, product(x, out, false));
    for (const bool own : {false, true}) {
      const std::string whose = own ? ", own kernel" : ", ATen's";
      tell("in, weight's, bf16" + whose, 2 * inner, gradient(wide, x, in_grad, false, own));
      tell("out, weight's, bf16" + whose, inner, gradient(x, narrow, out_grad, false, own));
      tell("in, weight's, fp32" + whose, 2 * inner, gradient(wide, x, in_sum, false, own));
      tell("in, weight's, added to fp32" + whose, 2 * inner, gradient(wide, x, in_sum, true, own));
    }
  }
  return json;
}

}  // namespace

int main(int count, char** words) try {
  std::vector<std::string> models;
  std::string json, gradients = "bf16";
  bool layer = false, rows = false, gemms = false;
  int rounds = 3, steps = 8;
  StepOptions options;
  bench::Arguments app("Mixtures of experts on a GPU: steps, a layer beside a dense one, rows beside a copy");
  app.add_option("--model", models, "mixtral-1.7b, deepseek-2.7b; several may be given");
  app.add_flag("--layer", layer, "forward and backward of the layer beside a dense MLP of equal FLOPs");
  app.add_flag("--rows", rows, "routing, permute and combine beside a copy");
  app.add_flag("--gemms", gemms, "grouped GEMMs, of even and uneven loads");
  app.add_option("--gradients", gradients, "of matrices and tables").one_of({"fp32", "bf16"}).show_default();
  app.add_flag("!--no-graphs", options.cuda_graphs, "kernel by kernel");
  app.add_flag("--recompute-norms", options.recompute_norms, "norms' outputs are recomputed in backward");
  app.add_flag("--save-mlp-activations", options.save_mlp_activations, "those of shared experts and dense layers");
  app.add_option("--batch", options.batch, "rows of 2048 tokens").show_default();
  app.add_option("--logits-mib", options.logits_mib, "of the head's logits at a time").show_default();
  app.add_option("--rounds", rounds, "turns").show_default();
  app.add_option("--steps", steps, "steps in a turn").show_default();
  app.add_option("--json", json, "keep the samples in this file");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  for (const std::string& model : models) {
    if (std::ranges::find(kModels, model) == kModels.end())
      throw ConfigError(fmt::format("--model {}: there are {}", model, listed(kModels)));
  }
  options.narrow_gradients = gradients == "bf16";
  const bool all = models.empty() && !layer && !rows && !gemms;
  nlohmann::json out;
  const double rate = rows || all ? bench::copy_rate() : 0;
  if (rate > 0) fmt::print("a copy moves {:.0f} GB/s\n", rate / 1e9);
  for (const std::string& name : kModels) {
    if (rows || all) out["rows"][name] = measure_rows(name, rate);
    if (gemms || all) out["gemms"][name] = measure_gemms(name);
    if (layer || all) out["layer"][name] = measure_layer(name);
  }
  for (const std::string& name : all ? kModels : models)
    out["step"][name] = measure_model(name, options, rounds, steps);
  if (!json.empty()) std::ofstream(json) << out.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
