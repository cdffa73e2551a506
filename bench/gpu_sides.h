// bench/gpu_sides.h -- the sides of bench/gpu_torch: the models it knows, our training step and PyTorch's.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/peer.h"
#include "bench/random_step.h"
#include "bench/times.h"
#include "trireme/device/cuda.h"
#include "trireme/nn/fp8.h"
#include "trireme/optim/update.h"
#include "trireme/train/engine/delayed_update.h"

namespace trireme::bench {

struct Size {
  std::string name, family;
  std::int64_t num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, vocab_size, batch, seq_len;
  bool tied = true;  ///< the head's weight is the token table
};
inline const Size kSizes[] = {{"gpt2-124m", "gpt2", 12, 768, 12, 12, 3072, 50304, 32, 1024},
                              {"gpt2-350m", "gpt2", 24, 1024, 16, 16, 4096, 50304, 32, 1024},
                              {"gpt2-1.5b", "gpt2", 48, 1600, 25, 25, 6400, 50304, 16, 1024},
                              {"llama-1b", "llama", 16, 2048, 32, 8, 8192, 128256, 8, 2048},
                              {"llama-8b", "llama", 32, 4096, 32, 8, 14336, 128256, 4, 2048, false},
                              {"qwen-1.5b", "qwen2", 28, 1536, 12, 2, 8960, 151936, 16, 1024}};
/// What --same takes: small enough for a CPU, deep enough to show a wrong factor.
inline const Size kSameSizes[] = {{"gpt2", "gpt2", 6, 128, 4, 4, 512, 2048, 4, 64},
                                  {"llama", "llama", 6, 128, 8, 2, 256, 2048, 4, 64, false},
                                  {"qwen2", "qwen2", 4, 128, 4, 2, 256, 2048, 4, 64}};
/// On a GPU also the shapes of real ones, where kernels and their libraries choose other ways.
inline const Size kSameOnGpu[] = {{"gpt2, real shapes", "gpt2", 4, 1024, 16, 16, 4096, 50304, 16, 1024},
                                  {"llama, real shapes", "llama", 3, 2048, 32, 8, 8192, 32000, 4, 2048}};

inline spec::ModelShape shape_of(const Size& s) {
  spec::ModelShape shape = spec::family_shape(s.family == "gpt2"    ? spec::Family::kGpt2
                                              : s.family == "qwen2" ? spec::Family::kQwen2
                                                                    : spec::Family::kLlama);
  shape.num_layers = s.num_layers, shape.hidden_size = s.hidden_size, shape.num_heads = s.num_heads,
  shape.num_kv_heads = s.num_kv_heads;
  shape.head_dim = s.hidden_size / s.num_heads, shape.ffn_size = s.ffn_size, shape.vocab_size = s.vocab_size;
  shape.max_seq_len = s.seq_len, shape.tied = s.tied;
  shape.dropout = shape.attention_dropout = 0;
  return shape;
}

struct OursOptions {
  at::Device device = at::kCPU;
  nn::Precision precision = nn::Precision::kBf16;
  spec::GemmPrecision gemm = spec::GemmPrecision::kSame;
  bool cuda_graphs = false;
  bool bf16_states = false;           ///< bf16 states: no masters, bf16 gradients and moments
  bool bf16_gradients = false;        ///< as precision.gradients = "bf16"
  bool recompute_norms = false;       ///< as train.recompute_norms
  bool save_mlp_activations = false;  ///< what MLPs' activations gave is kept for backward
};

class Ours {
 public:
  Ours(const Size& s, const OursOptions& options) : size_(s), device_(options.device) {
    model_ = models::build(shape_of(s), {.logits_chunk_bytes = std::int64_t{1} << 30,
                                         .recompute_norms = options.recompute_norms,
                                         .save_mlp_activations = options.save_mlp_activations});
    for (nn::Param& param : model_->params) {
      param.narrow_gradient = options.bf16_gradients && param.placement.shape.size() >= 2;
      if (param.placement.shape.size() != 2) continue;
      param.has_master = !options.bf16_states;  // as PyTorch's, which has all of them in bf16
      if (param.name.starts_with("layers.")) param.gemm = options.gemm;
    }
    nn::initialise(model_->params, options.precision, 1, device_);
    spec::OptimConfig config;
    config.kind = spec::OptimizerKind::kAdamw;
    config.weight_decay = 0.1;
    config.beta2 = 0.95;
    config.grad_clip_norm = 1;
    if (options.bf16_states) config.state_dtype = spec::StateDtype::kBf16;
    optimizer_ = optim::make_optimizer(config, model_->params);
    if (options.gemm == spec::GemmPrecision::kFp8Delayed) {
      scales_ = std::make_unique<nn::Fp8History>(model_->params, 16, 0, device_);
    }
    tokens_.emplace(s.vocab_size, s.batch, s.seq_len, device_);
    if (!options.cuda_graphs) return;
    graph_ = std::make_unique<train::StepGraph>(*model_, train::StepGraph::Gradients{.added = [](nn::Param&) {}});
    if (optimizer_->is_capturable()) late_ = std::make_unique<train::DelayedUpdate>(*optimizer_);
  }

  void step() {
    nn::Context context = tokens_->context();
    forward_backward(*model_, graph_.get(), tokens_->inputs, context);
    flops_ = context.flops;
    if (late_) {
      late_->start(context.losses, 1e-4);
      if (scales_) scales_->advance();
      if (late_->waiting() > 1) take_loss();  // the step before this one
      return;
    }
    optim::update(*optimizer_, {.learning_rate = 1e-4});
    if (scales_) scales_->advance();
    nn::settle(context.losses);
    loss_ = context.losses.at(0).sum / context.losses.at(0).count;
  }
  /// Seconds a step.
  double run(int steps) {
    device::synchronise(device_);
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) step();
    device::synchronise(device_);
    const double seconds = seconds_since(begin) / steps;
    while (late_ && late_->waiting() > 0) take_loss();
    return seconds;
  }
  double loss() const { return loss_; }
  double flops() const { return flops_; }
  std::int64_t parameters() const { return model_->params.elements(); }

  /// Numbers and tokens for the peer to start from: a line of JSON, [[name, elements], ...], and then the numbers in
  /// float, the tokens behind them in int64.
  void write_start(const std::string& path) const {
    std::ofstream out(path, std::ios::binary);
    nlohmann::json names = nlohmann::json::array();
    for (const nn::Param& param : model_->params) names.push_back({param.name, param.elements()});
    out << names.dump() << "\n";
    const auto write = [&](const at::Tensor& tensor) {
      const at::Tensor here = tensor.cpu().contiguous();
      out.write(static_cast<const char*>(here.const_data_ptr()), static_cast<std::streamsize>(here.nbytes()));
    };
    for (const nn::Param& param : model_->params) write(param.master.to(at::kFloat));
    write(tokens_->ids);
    if (!out.flush()) throw std::runtime_error(path + " cannot be written");
  }

 private:
  void take_loss() { loss_ = nn::sum_of(late_->wait().losses) / static_cast<double>(size_.batch * size_.seq_len); }

  Size size_;
  at::Device device_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<nn::Fp8History> scales_;
  std::unique_ptr<train::DelayedUpdate> late_;
  std::unique_ptr<train::StepGraph> graph_;
  std::optional<RandomTokens> tokens_;
  double loss_ = 0, flops_ = 0;
};

struct PeerOptions {
  std::string python, peers;
  bool compile = false, bf16_states = false, fp8 = false;
  std::string device = "cuda", type = "bf16";
  std::string start;  ///< a file of Ours::write_start; empty: its own numbers, drawn by the same rules
};

class Peer {
 public:
  Peer(const PeerOptions& options, const Size& s) : process_(command(options, s)) {}
  double run(int steps) {
    const auto answer = process_.ask(fmt::format("run {}", steps));
    peak_gib = answer["peak_gib"].get<double>(), loss = answer["loss"].get<double>();
    return answer["seconds"].get<double>();
  }
  double peak_gib = 0, loss = 0;

 private:
  static std::vector<std::string> command(const PeerOptions& options, const Size& s) {
    std::vector<std::string> words{options.python, options.peers + "/gpu_step.py", "--family=" + s.family,
                                   "--device=" + options.device, "--type=" + options.type};
    for (const auto& [name, value] : {std::pair{"num-layers", s.num_layers},
                                      {"hidden-size", s.hidden_size},
                                      {"num-heads", s.num_heads},
                                      {"num-kv-heads", s.num_kv_heads},
                                      {"ffn-size", s.ffn_size},
                                      {"vocab-size", s.vocab_size},
                                      {"batch", s.batch},
                                      {"seq-len", s.seq_len}}) {
      words.push_back(fmt::format("--{}={}", name, value));
    }
    if (options.compile) words.push_back("--compile");
    if (options.bf16_states) words.push_back("--states=bf16");
    if (options.fp8) words.push_back("--gemm=fp8");
    if (!s.tied) words.push_back("--untied");
    if (!options.start.empty()) words.push_back("--start=" + options.start);
    return words;
  }
  PeerProcess process_;
};

}  // namespace trireme::bench
