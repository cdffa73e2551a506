// bench/moe_layer_torch.cpp -- a mixture of experts on the CPU, forward and backward, beside the forms in which it is
// written with PyTorch's operators and autograd.
//
//   build/release/bench/moe_layer_torch [--precision bf16] [--rounds 9] [--threads 1 --processor-time]
//
// With --processor-time the process's own, for a machine that others use: of one thread, since threads that wait for
// each other may spin.
//
// Router, dispatch, gated experts, combine, shared experts; all gradients. The forms:
//   index_add   a loop over experts that picks each one's tokens and adds its output to them (transformers' Mixtral)
//   sorted      rows sorted by expert once, a loop over their stretches, gathered back (torchtitan)
//   grouped     the same with at::_grouped_mm, where it takes the type
//   padded      batched GEMMs over rows padded to the fullest expert
// Every form is checked against ours before anything is timed; all take turns.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <time.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <functional>

#include "bench/arguments.h"
#include "bench/sides.h"
#include "tests/nn/moe/moe_cases.h"
#include "trireme/base/error.h"
#include "trireme/device/cpu_setup.h"

namespace {

using namespace trireme;
using namespace trireme::nn;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string precision = "fp32";
  int threads = 2, rounds = 9;
  bool processor_time = false;
};

struct Weights {
  at::Tensor router, in, out, shared_in, shared_out;
  std::vector<at::Tensor> list() const {
    std::vector<at::Tensor> all{router, in, out};
    if (shared_in.defined()) all.insert(all.end(), {shared_in, shared_out});
    return all;
  }
};

at::Tensor gated(const at::Tensor& both) {
  const auto halves = both.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

/// Of rows sorted by expert, each row's output.
using RunExperts = std::function<at::Tensor(const at::Tensor& rows, const at::Tensor& counts, const Weights& weights)>;

at::Tensor stretch_by_stretch(const at::Tensor& rows, const at::Tensor& counts, const Weights& weights) {
  const at::Tensor here = counts.contiguous();
  std::vector<at::Tensor> outputs;
  std::int64_t at = 0;
  for (std::int64_t expert = 0; expert < here.size(0); ++expert) {
    const std::int64_t count = here.const_data_ptr<std::int64_t>()[expert];
    const at::Tensor mine = rows.narrow(0, at, count);
    outputs.push_back(
        at::matmul(gated(at::matmul(mine, weights.in.select(0, expert).t())), weights.out.select(0, expert).t()));
    at += count;
  }
  return at::cat(outputs);
}

at::Tensor grouped(const at::Tensor& rows, const at::Tensor& counts, const Weights& weights) {
  const at::Tensor ends = counts.cumsum(0).to(at::kInt);
  const at::Tensor both = at::_grouped_mm(rows, weights.in.transpose(1, 2), ends);
  return at::_grouped_mm(gated(both), weights.out.transpose(1, 2), ends);
}

at::Tensor padded(const at::Tensor& rows, const at::Tensor& counts, const Weights& weights) {
  const std::int64_t most = counts.max().item<std::int64_t>(), experts = counts.size(0);
  const at::Tensor expert = at::repeat_interleave(at::arange(experts), counts);
  const at::Tensor place = at::arange(rows.size(0)) - (counts.cumsum(0) - counts).index_select(0, expert);
  const at::Tensor slot = expert * most + place;
  const at::Tensor room = at::zeros({experts * most, rows.size(1)}, rows.options()).index_copy(0, slot, rows);
  const at::Tensor inner = gated(at::bmm(room.view({experts, most, -1}), weights.in.transpose(1, 2)));
  return at::bmm(inner, weights.out.transpose(1, 2)).view({experts * most, -1}).index_select(0, slot);
}

struct Chosen {
  at::Tensor gates, experts;  // [tokens, k]
};
Chosen route(const at::Tensor& rows, const Weights& weights, std::int64_t top_k) {
  const auto [best, index] = at::topk(at::matmul(rows.to(at::kFloat), weights.router.to(at::kFloat).t()), top_k);
  return {at::softmax(best, -1), index};
}

at::Tensor with_shared(at::Tensor y, const at::Tensor& rows, const Weights& weights) {
  if (!weights.shared_in.defined()) return y;
  return y + at::matmul(gated(at::matmul(rows, weights.shared_in.t())), weights.shared_out.t());
}

at::Tensor by_sorting(const at::Tensor& rows, const Weights& weights, std::int64_t top_k, const RunExperts& run) {
  const auto [gates, experts] = route(rows, weights, top_k);
  const at::Tensor order = at::argsort(experts.reshape({-1}), /*stable=*/true, 0, false);
  const at::Tensor counts = at::bincount(experts.reshape({-1}), {}, weights.in.size(0));
  const at::Tensor sorted = rows.index_select(0, at::floor_divide(order, top_k));
  const at::Tensor outputs = run(sorted, counts, weights);
  const at::Tensor back = outputs.index_select(0, at::argsort(order)).view({rows.size(0), top_k, -1});
  return with_shared((back * gates.unsqueeze(2).to(back.scalar_type())).sum(1), rows, weights);
}

at::Tensor by_index_add(const at::Tensor& rows, const Weights& weights, std::int64_t top_k) {
  const auto [gates, experts] = route(rows, weights, top_k);
  at::Tensor y = at::zeros_like(rows);
  for (std::int64_t expert = 0; expert < weights.in.size(0); ++expert) {
    const auto places = at::where(experts == expert);
    const at::Tensor mine = rows.index_select(0, places[0]);
    const at::Tensor out =
        at::matmul(gated(at::matmul(mine, weights.in.select(0, expert).t())), weights.out.select(0, expert).t());
    const at::Tensor gate = gates.index({places[0], places[1]}).unsqueeze(1).to(out.scalar_type());
    y = y.index_add(0, places[0], out * gate);
  }
  return with_shared(y, rows, weights);
}

struct Form {
  std::string name;
  std::function<at::Tensor(const at::Tensor& rows, const Weights& weights, std::int64_t top_k)> run;
};

std::vector<Form> forms() {
  const auto sorted = [](const RunExperts& run) {
    return [run](const at::Tensor& rows, const Weights& weights, std::int64_t top_k) {
      return by_sorting(rows, weights, top_k, run);
    };
  };
  return {{"index_add", by_index_add},
          {"sorted", sorted(stretch_by_stretch)},
          {"grouped", sorted(grouped)},
          {"padded", sorted(padded)}};
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double seconds(const std::function<void()>& work, const Options& options) {
  const auto begin = Clock::now();
  const double computed = processor_seconds();
  work();
  if (options.processor_time) return processor_seconds() - computed;
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void measure(const moe::MoeCase& one, Precision precision, const Options& options) {
  const auto built = moe::build_moe(one, precision);
  for (Param& param : built->params) param.value.mul_(0.05);  // activations of a size that 16 bits tell apart
  const at::ScalarType type = compute_type(precision);
  const at::Tensor x = moe::moe_input(one, 0, one.samples).to(type),
                   dy = moe::moe_input(one, 0, one.samples, "dy").to(type);
  Weights weights;
  const auto leaf = [&](const char* name) {
    const Param* param = built->params.find(name);
    return param ? param->value.detach().clone().requires_grad_(true) : at::Tensor();
  };
  weights = {leaf("router.weight"), leaf("experts.in"), leaf("experts.out"), leaf("shared.in"), leaf("shared.out")};
  const auto ours = [&] {
    Context context = moe::moe_context(one, 0, one.samples);
    Tape tape;
    zero_grad(built->params);
    at::Tensor y = built->layer->forward(x, context, &tape);
    built->layer->backward(dy, context, tape);
    return y;
  };
  const auto theirs = [&](const Form& form) {
    const at::Tensor rows = x.detach().view({-1, one.hidden}).requires_grad_(true);
    const at::Tensor y = form.run(rows, weights, one.config.top_k);
    std::vector<at::Tensor> inputs = weights.list();
    inputs.push_back(rows);
    torch::autograd::grad({y}, inputs, {dy.view({-1, one.hidden})});
    return y.detach();
  };
  const at::Tensor expected = ours();
  std::vector<Form> there;
  for (const Form& form : forms()) {
    try {
      const at::Tensor y = theirs(form).view(expected.sizes());
      const double apart = ((y - expected).norm() / expected.norm()).item<double>();
      if (apart > (type == at::kFloat ? 1e-4 : 5e-2))
        throw InternalError(fmt::format("{} differs from ours by {:.1e}", form.name, apart));
      there.push_back(form);
    } catch (const c10::Error& error) {
      fmt::print("{}: not for {} on this CPU ({})\n", form.name, options.precision,
                 std::string(error.what_without_backtrace()).substr(0, 100));
    }
  }
  const auto tokens = static_cast<double>(one.samples * one.length);
  bench::Sides sides;
  for (int round = -1; round < options.rounds; ++round) {
    const double mine = seconds([&] { ours(); }, options);
    if (round >= 0) sides.add("ours", tokens, mine);
    for (const Form& form : there) {
      const double taken = seconds([&] { theirs(form); }, options);
      if (round >= 0) sides.add(form.name, tokens, taken);
    }
  }
  for (const Form& form : there) sides.compare("ours / " + form.name, "ours", form.name, /*goal=*/1.2);
  fmt::print(
      "\n{}: {} x {} tokens of {}, {} experts of {}, {} for a token{}, {}, {} threads\n{}", one.name, one.samples,
      one.length, one.hidden, one.config.num_experts, one.inner, one.config.top_k,
      one.config.num_shared_experts > 0 ? fmt::format(", {} shared", one.config.num_shared_experts) : std::string(),
      options.precision, options.threads,
      sides.text(options.processor_time ? "tokens/s of processor time" : "tokens/s"));
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("A mixture of experts, forward and backward, beside PyTorch's operators");
  app.add_option("--precision", options.precision, "fp32 or bf16").show_default().one_of({"fp32", "bf16"});
  app.add_option("--threads", options.threads).show_default();
  app.add_option("--rounds", options.rounds).show_default();
  app.add_flag("--processor-time", options.processor_time, "in place of the clock's");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  at::set_num_threads(options.threads);
  device::keep_host_memory();
  if (options.processor_time && options.threads != 1)
    throw ConfigError("processor time of several threads counts those that wait", "give --threads 1");
  const auto precision = options.precision == "bf16" ? Precision::kBf16 : Precision::kFp32;
  measure({.name = "Mixtral's shape",
           .config = {.num_experts = 8, .top_k = 2},
           .samples = 8,
           .length = 256,
           .hidden = 384,
           .inner = 1344},
          precision, options);
  measure({.name = "many small experts",
           .config = {.num_experts = 64, .top_k = 6, .num_shared_experts = 2},
           .samples = 8,
           .length = 256,
           .hidden = 320,
           .inner = 224},
          precision, options);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
