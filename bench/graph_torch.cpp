// bench/graph_torch.cpp -- a step of a graph on one rank beside PyTorch eager on the same model: is the executor's walk
// through a graph as fast as what people write?
//
//   build/release/bench/graph_torch [--only resnet50] [--batch 8] [--threads 2]
//   build/release/bench/graph_torch --cuda --batch 256 [--plain] [--profile trace.json]
//
// With --cuda only our step is timed, in bf16, channels last, as a CUDA graph; the peer is bench/peers/graph_step.py
// resnet50 --device cuda --dtype bf16 --compile. --plain: operator by operator, without fused norms.
//
// The peer is ATen under autograd: convolutions, batch norms, ReLUs; nn.LSTM's own operator over all time steps. Both
// do forward, backward and plain gradient descent in fp32, in turns.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>

#include "bench/arguments.h"
#include "trireme/base/stopwatch.h"
#include "trireme/comm/rank.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/device/cuda.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/spmd/executor.h"
#include "trireme/spmd/gpu_steps.h"
#include "trireme/spmd/reference.h"

namespace {

using namespace trireme;
namespace pg = plan::graph;

struct Options {
  std::string only;
  std::int64_t batch = 8;
  int threads = 2, rounds = 5;
  bool cuda = false, plain = false;
  std::string profile;
};

void profile_step(spmd::GpuSteps& steps, const std::string& path) {
  using namespace torch::autograd::profiler;
  const ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities{torch::profiler::impl::ActivityType::CUDA};
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  steps.step();
  disableProfiler()->save(path);
}

void measure_on_gpu(const std::string& name, const pg::Graph& forward, const Options& options) {
  const pg::Graph both = with_backward(with_dtype(forward, pg::DType::kBf16));
  const c10::Device device = device::use_cuda(0);
  const spmd::Values start = spmd::on_device(spmd::start_values(both, 1), device);
  comm::run_ranks(1, [&](comm::Rank& rank) {
    spmd::Executor executor(both, replicated(without_backward(both), layout::Mesh()), rank.world(),
                            {.descent = {.learning_rate = 0.01}, .defer_loss = true, .fused_images = !options.plain});
    executor.load(start);
    spmd::GpuSteps steps(both, executor, start, device, true);
    double loss = 0, best = 1e300;
    for (int step = 0; step < 5 + options.rounds; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      loss = steps.step().loss;
      if (step >= 5) best = std::min(best, seconds_since(begin));
    }
    fmt::print("{} cuda bf16 batch {} {}: {:.2f} ms a step, {:.1f} samples/s, loss {:.4f}\n", name, options.batch,
               options.plain ? "operator by operator" : "fused", 1e3 * best, static_cast<double>(options.batch) / best,
               loss);
    if (!options.profile.empty()) profile_step(steps, options.profile);
  });
}

/// Zaremba's language model with ATen's LSTM: weights of both layers, an embedding and a projection.
class EagerLstm {
 public:
  explicit EagerLstm(const pg::LstmShape& shape) : shape_(shape) {
    const auto draw = [&](std::vector<std::int64_t> sizes) {
      params_.push_back(at::randn(sizes).mul_(0.05).requires_grad_(true));
      return params_.back();
    };
    table_ = draw({shape.vocab, shape.hidden});
    for (pg::Index i = 0; i < shape.layers; ++i) {
      for (const auto& sizes : {std::vector<std::int64_t>{4 * shape.hidden, shape.hidden},
                                std::vector<std::int64_t>{4 * shape.hidden, shape.hidden}})
        weights_.push_back(draw(sizes));
      weights_.push_back(draw({4 * shape.hidden}));
      weights_.push_back(draw({4 * shape.hidden}));
    }
    out_ = draw({shape.vocab, shape.hidden});
    tokens_ = at::randint(shape.vocab, {shape.batch, shape.steps}, at::kLong);
    labels_ = at::randint(shape.vocab, {shape.batch * shape.steps}, at::kLong);
  }
  void step() {
    const at::Tensor zero = at::zeros({shape_.layers, shape_.batch, shape_.hidden});
    const at::Tensor y = std::get<0>(
        at::lstm(at::embedding(table_, tokens_), {zero, zero}, weights_, true, shape_.layers, 0, true, false, true));
    const at::Tensor loss = at::cross_entropy_loss(at::linear(y.flatten(0, 1), out_), labels_);
    const auto gradients = torch::autograd::grad({loss}, params_);
    const c10::AutoGradMode guard(false);
    for (std::size_t i = 0; i < params_.size(); ++i) params_[i].sub_(gradients[i], 0.01);
  }

 private:
  const pg::LstmShape shape_;
  std::vector<at::Tensor> params_, weights_;
  at::Tensor table_, out_, tokens_, labels_;
};

bool measure(const std::string& name, const pg::Graph& forward, const std::function<void()>& theirs,
             const Options& options) {
  const pg::Graph both = with_backward(forward);
  const spmd::Values start = spmd::in_channels_last(spmd::start_values(both, 1));
  std::vector<double> ours_seconds, their_seconds;
  double peak = 0;
  comm::run_ranks(1, [&](comm::Rank& rank) {
    spmd::Executor executor(both, replicated(forward, layout::Mesh()), rank.world(),
                            {.descent = {.learning_rate = 0.01}});
    executor.load(start);
    for (int round = -1; round < options.rounds; ++round) {  // the first is for warming up
      auto begin = std::chrono::steady_clock::now();
      peak = executor.step(start).peak_bytes;
      const double a = seconds_since(begin);
      begin = std::chrono::steady_clock::now();
      theirs();
      const double b = seconds_since(begin);
      if (round < 0) continue;
      ours_seconds.push_back(a);
      their_seconds.push_back(b);
    }
  });
  const auto best = [](const std::vector<double>& of) { return *std::ranges::min_element(of); };
  const double ratio = best(their_seconds) / best(ours_seconds);
  fmt::print(
      "{:<9} batch {}: graph {:.1f} ms, PyTorch eager {:.1f} ms (fastest of {}): {:.2f}x; at most {:.2f} GB held\n",
      name, options.batch, 1e3 * best(ours_seconds), 1e3 * best(their_seconds), options.rounds, ratio, peak / 1e9);
  return ratio >= 1;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("Steps of operator graphs beside PyTorch eager");
  app.add_option("--only", options.only, "resnet50 or lstm");
  app.add_option("--batch", options.batch).show_default();
  app.add_option("--threads", options.threads).show_default();
  app.add_option("--rounds", options.rounds).show_default();
  app.add_flag("--cuda", options.cuda, "our step on a GPU");
  app.add_flag("--plain", options.plain, "there, without fused norms");
  app.add_option("--profile", options.profile, "there, a trace of one step");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  at::set_num_threads(options.threads);
  device::initialise_mkl_vml();
  device::keep_host_memory();  // as the program's commands do; the peer has it too
  if (options.cuda) {
    if (options.only.empty() || options.only == "resnet50")
      measure_on_gpu("resnet50", pg::build_model("resnet50", options.batch), options);
    if (options.only == "lstm") measure_on_gpu("lstm", pg::build_model("lstm", options.batch), options);
    return 0;
  }
  bool fine = true;
  if (options.only.empty() || options.only == "resnet50") {
    const pg::Graph forward = pg::build_model("resnet50", options.batch);
    spmd::Values values = spmd::start_values(forward, 1);
    fine = measure(
               "resnet50", forward,
               [&] {
                 const spmd::Reference reference = spmd::run_eager(forward, values);
                 for (std::size_t i = 0; i < values.size(); ++i) {
                   if (reference.gradients[i].defined()) values[i].sub_(reference.gradients[i], 0.01);
                 }
               },
               options) &&
           fine;
  }
  if (options.only.empty() || options.only == "lstm") {
    pg::LstmShape shape;
    shape.batch = options.batch;
    EagerLstm eager(shape);
    fine = measure(
               "lstm", pg::lstm_language_model(shape), [&] { eager.step(); }, options) &&
           fine;
  }
  return fine ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
