// bench/gpu_torch.cpp -- a training step on a GPU beside PyTorch's and beside its limit; operators beside a plain copy.
//
//   build/release/bench/gpu_torch --kernels                       bytes a second of every operator beside a copy's
//   build/release/bench/gpu_torch --attention                     attention into a fused gradient, by cuDNN and ATen
//   build/release/bench/gpu_torch --product-shapes                products of the models' shapes beside the tensor
//   library's build/release/bench/gpu_torch --model gpt2-124m --python PY   a step beside PyTorch eager and compiled
//   build/release/bench/gpu_torch --model gpt2-124m --profile trace.json
//   build/release/bench/gpu_torch --model gpt2-124m --capture --gradients bf16 --remake-norms --keep-active
//   build/release/bench/gpu_torch --same cpu --python PY          both sides from the same numbers: are losses equal?
//   bench/gpu_rows PY FOLDER                                      all rows of docs/performance.md, in a few calls
//
// All sides run the same step (forward, backward, clipping to norm 1, AdamW over fp32 or bf16 states, bf16 products) on
// random tokens, some steps each in turn; --apart one after the other. The limit is the time of the step's matrix
// products at their real shapes, attention's kernels, and the bytes that the rest must move over the copy's rate,
// measured in the same call. --json keeps samples.
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/gpu_attention.h"
#include "bench/gpu_offload.h"
#include "bench/gpu_sides.h"
#include "trireme/base/text.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/cross_entropy.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/embedding.h"
#include "trireme/kernels/fp8.h"
#include "trireme/kernels/norm.h"
#include "trireme/kernels/product.h"
#include "trireme/kernels/rotary.h"
#include "trireme/kernels/sum_rows.h"
#include "trireme/kernels/update.h"

namespace {

using namespace trireme;
using bench::Clock;
using bench::Ours;
using bench::Peer;
using bench::seconds_since;
using bench::Size;
using bench::Times;

at::Device gpu() { return device::use_cuda(0); }
at::TensorOptions bf16() { return at::TensorOptions(at::kBFloat16).device(gpu()); }
at::TensorOptions f32() { return at::TensorOptions(at::kFloat).device(gpu()); }

/// Seconds of one call: the median of turns of several calls each, waited for at their end.
double seconds_of(const std::function<void()>& call, int turns = 7, int calls = 10) {
  for (int i = 0; i < 3; ++i) call();
  Times times;
  for (int turn = 0; turn < turns; ++turn) {
    device::synchronise(gpu());
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    device::synchronise(gpu());
    times.seconds.push_back(seconds_since(begin) / calls);
  }
  return times.median();
}

/// Read and written, a second.
double copy_rate() {
  const at::Tensor from = at::randn({std::int64_t{1} << 29}, bf16());
  at::Tensor to = at::empty_like(from);
  return 2.0 * static_cast<double>(from.nbytes()) / seconds_of([&] { to.copy_(from); });
}

// ---- operators

struct Row {
  std::string name;
  double bytes, seconds;
};

/// Every operator at the shapes of a model: `rows` tokens of `width`, an MLP of `inner`, a vocabulary.
std::vector<Row> measure_kernels(std::int64_t rows, std::int64_t width, std::int64_t inner, std::int64_t vocabulary) {
  std::vector<Row> out;
  const auto numbers = [&](std::int64_t w) { return static_cast<double>(rows * w) * 2; };  // bytes of a bf16 tensor
  const auto add = [&](std::string name, double bytes, const std::function<void()>& call) {
    out.push_back({std::move(name), bytes, seconds_of(call)});
  };
  at::Tensor x = at::randn({rows, width}, bf16()), residual = at::randn({rows, width}, bf16());
  at::Tensor y = at::empty_like(x), sum = at::empty_like(x), dx = at::empty_like(x), none;
  at::Tensor weight = at::randn({width}, bf16()), bias = at::randn({width}, bf16());
  at::Tensor mean = at::empty({rows}, f32()), rstd = at::empty({rows}, f32());
  at::Tensor dweight = at::zeros({width}, f32()), dbias = at::zeros({width}, f32());
  for (const bool layer : {true, false}) {
    const kernels::Norm norm{.kind = layer ? kernels::NormKind::kLayer : kernels::NormKind::kRms};
    const std::string name = layer ? "layer norm" : "RMS norm";
    at::Tensor& center = layer ? mean : none;
    const at::Tensor& shift = layer ? bias : none;
    add(name + " of a sum, forward", 4 * numbers(width), [&, norm] {
      kernels::norm_forward({x, residual, weight, shift, y, sum, center, rstd}, norm);
    });
    add(name + " of a sum, backward", 4 * numbers(width), [&, norm, layer] {
      kernels::norm_backward({x, sum, weight, center, rstd, residual, dx, dweight, layer ? dbias : none}, norm);
    });
  }
  at::Tensor a = at::randn({rows, inner}, bf16()), b = at::randn({rows, inner}, bf16()), c = at::empty_like(a);
  at::Tensor both = at::randn({rows, 2 * inner}, bf16()), dboth = at::empty_like(both);
  add("GELU forward", 2 * numbers(inner),
      [&] { kernels::activation_forward(c, a, none, kernels::Activation::kGeluTanh); });
  add("GELU backward", 3 * numbers(inner),
      [&] { kernels::activation_backward(c, none, b, a, none, kernels::Activation::kGeluTanh); });
  at::Tensor dboth_rows = at::empty_like(a);
  at::Tensor gate = both.narrow(1, 0, inner), up = both.narrow(1, inner, inner);
  at::Tensor dgate = dboth.narrow(1, 0, inner), dup = dboth.narrow(1, inner, inner);
  add("SwiGLU forward", 3 * numbers(inner), [&] { kernels::gated_forward(c, gate, up, kernels::Activation::kSilu); });
  add("SwiGLU backward", 5 * numbers(inner),
      [&] { kernels::gated_backward(dgate, dup, none, a, gate, up, kernels::Activation::kSilu); });
  at::Tensor totals = at::zeros({inner}, f32());
  add("GELU backward, with it again and the bias's gradient", 4 * numbers(inner),
      [&] { kernels::activation_backward(c, totals, b, a, none, kernels::Activation::kGeluTanh, &dboth_rows); });
  using kernels::Fp8Format;
  using kernels::Fp8Scaling;
  const kernels::Fp8Live live{.scale = at::full({1}, 0.01, f32()), .amax = at::zeros({1}, f32()), .known = true};
  for (const bool turned : {false, true}) {
    const std::string ways = turned ? "both ways" : "as it lies";
    const double bytes = numbers(inner) * (turned ? 2 : 1.5);
    add("to 8 bits " + ways + ", delayed scale", bytes,
        [&, turned] { kernels::to_fp8(a, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, turned, &live); });
    add("to 8 bits " + ways + ", current scale", bytes + numbers(inner),
        [&, turned] { kernels::to_fp8(a, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, turned); });
    add("to 8 bits " + ways + ", blocks", bytes,
        [&, turned] { kernels::to_fp8(a, Fp8Format::kE4m3, Fp8Scaling::kLines, true, turned); });
  }
  add("bias gradient", numbers(inner), [&] { kernels::add_row_sum(totals, a); });
  const at::Tensor row_index = at::arange(rows, at::kLong).to(gpu());
  add("dropout", 2 * numbers(width),
      [&] { kernels::dropout_(x, {.stream = Random(1, "bench"), .p = 0.1}, row_index, 0, width); });
  x = at::randn({rows, width}, bf16());
  const std::int64_t size = 64, length = 1024;
  at::Tensor heads = x.view({rows / length, length, width / size, size});
  const at::Tensor angles = at::randn({length, size / 2}, f32());
  const at::Tensor cosines = angles.cos(), sines = angles.sin();
  const at::Tensor positions = row_index.remainder(length).view({rows / length, length});
  add("rotary", 2 * numbers(width),
      [&] { kernels::rotary_(heads, cosines, sines, positions, kernels::RotaryPairs::kHalves, false); });
  const at::Tensor table = at::randn({vocabulary, width}, bf16()), places = at::randn({length, width}, bf16());
  const at::Tensor ids = at::randint(vocabulary, {rows}, row_index.options());
  add("embedding forward", 2 * numbers(width), [&] {
    kernels::embedding_forward(
        {.out = y, .ids = ids, .table = table, .ids2 = row_index.remainder(length), .table2 = places});
  });
  at::Tensor dtable = at::zeros({vocabulary, width}, f32());
  // The rows of the gradient that are touched are read and written once.
  const double touched =
      static_cast<double>(vocabulary) * (1 - std::exp(-static_cast<double>(rows) / static_cast<double>(vocabulary)));
  add("embedding backward, with its sort", numbers(width) + touched * static_cast<double>(width) * 8,
      [&] { kernels::embedding_backward(dtable, ids, y, 0); });
  const std::int64_t logit_rows = 8192;
  at::Tensor logits = at::randn({logit_rows, vocabulary}, bf16()), losses = at::empty({logit_rows}, f32());
  const at::Tensor targets = at::randint(vocabulary, {logit_rows}, row_index.options());
  const at::Tensor scale = at::randn({logit_rows}, f32());
  add("cross-entropy and its gradient", 2.0 * static_cast<double>(logits.nbytes()), [&] {
    kernels::cross_entropy({.logits = logits,
                            .targets = targets,
                            .gradient_scale = scale,
                            .losses = losses,
                            .z_losses = none,
                            .lse = none},
                           {});
  });
  const std::int64_t parameters = std::int64_t{1} << 27;
  at::Tensor w = at::randn({parameters}, f32()), g = at::randn({parameters}, f32()),
             low = at::empty({parameters}, bf16());
  at::Tensor m = at::zeros({parameters}, f32()), v = at::zeros({parameters}, f32());
  add("AdamW", 30.0 * static_cast<double>(parameters), [&] {
    kernels::adamw_update({.weight = w, .gradient = g, .low = low}, m, v, {.learning_rate = 1e-4, .step = 5});
  });
  add("sum of squares", 4.0 * static_cast<double>(parameters), [&] { kernels::sum_of_squares(g); });
  at::Tensor w16 = w.to(at::kBFloat16), g16 = g.to(at::kBFloat16), m16 = m.to(at::kBFloat16), v16 = v.to(at::kBFloat16);
  add("AdamW, all in bf16, rounded by chance", 14.0 * static_cast<double>(parameters), [&] {
    kernels::adamw_update({.weight = w16, .gradient = g16, .low = none}, m16, v16,
                          {.learning_rate = 1e-4, .step = 5, .rounding = 7});
  });
  add("sum of squares of bf16", 2.0 * static_cast<double>(parameters), [&] { kernels::sum_of_squares(g16); });
  return out;
}

nlohmann::json print_kernels() {
  const double rate = copy_rate();
  fmt::print("copy: {:.2f} TB/s read and written\n", rate / 1e12);
  nlohmann::json all{{"copy_bytes_per_s", rate}};
  for (const auto& [name, width, inner, vocabulary] :
       {std::tuple{"GPT-2 124M, 32x1024", 768, 3072, 50304}, std::tuple{"Llama 1B, 16x1024", 2048, 8192, 128256}}) {
    TextTable table({{name}, {"TB/s"}, {"of copy"}, {"us"}});
    for (const Row& row : measure_kernels(width == 768 ? 32768 : 16384, width, inner, vocabulary)) {
      table.add({row.name, fmt::format("{:.2f}", row.bytes / row.seconds / 1e12),
                 fmt::format("{:.0f} %", 100 * row.bytes / row.seconds / rate),
                 fmt::format("{:.1f}", row.seconds * 1e6)});
      all[name][row.name] = {{"bytes", row.bytes}, {"seconds", row.seconds}};
    }
    fmt::print("{}\n", table.text());
    std::fflush(stdout);
  }
  return all;
}

// ---- products

/// One product of a model: how many times a step has it, and its ways.
struct ProductRow {
  std::string name;
  double flops, library, plain, fused;  // seconds: the tensor library's, ours and ours with what comes with it; 0: none
};

/// The three products of a linear layer, with the passes over memory that come with them in a model.
std::vector<ProductRow> measure_products(std::int64_t rows, std::int64_t from, std::int64_t to, bool gelu) {
  std::vector<ProductRow> out;
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(from) * static_cast<double>(to);
  const at::Tensor x = at::randn({rows, from}, bf16()).mul_(0.1), w = at::randn({to, from}, bf16()).mul_(0.1);
  const at::Tensor dy = at::randn({rows, to}, bf16()).mul_(0.1), bias = at::randn({to}, bf16());
  at::Tensor y = at::empty({rows, to}, bf16()), dx = at::empty_like(x), dw = at::zeros({to, from}, f32()), none;
  at::Tensor dbias = at::zeros({to}, f32()), active = at::empty_like(y), sum = at::empty({to}, f32());
  using Kind = kernels::ProductExtras::Kind;
  const std::string shape = fmt::format("{} x {} x {}", rows, from, to);
  out.push_back({"forward " + shape, flops, seconds_of([&] { at::mm_out(y, x, w.t()); }),
                 seconds_of([&] { kernels::product_into(y, x, w.t()); }), 0});
  const auto with_bias = [&] { at::addmm_out(y, bias, x, w.t()); };
  if (gelu) {
    out.push_back({"forward, bias, GELU", flops, seconds_of([&] {
                     with_bias();
                     kernels::activation_forward(active, y, none, kernels::Activation::kGeluTanh);
                   }),
                   0, seconds_of([&] { kernels::gelu_linear(x, w, bias); })});
  } else {
    out.push_back(
        {"forward, bias", flops, seconds_of(with_bias), 0, seconds_of([&] { kernels::linear_product(x, w, bias); })});
  }
  out.push_back({"input's gradient", flops, seconds_of([&] { at::mm_out(dx, dy, w); }),
                 seconds_of([&] { kernels::product_into(dx, dy, w); }), 0});
  if (gelu) {  // of the layer after GELU: `from` is then the inner width
    const at::Tensor back = at::randn({from, to}, bf16()).mul_(0.1);
    at::Tensor dinner = at::empty({rows, to}, bf16());
    const at::Tensor dout = at::randn({rows, from}, bf16()).mul_(0.1);
    out.push_back({"input's gradient, GELU's slope, bias", flops, seconds_of([&] {
                     at::mm_out(dinner, dout, back);
                     kernels::activation_backward(dinner, dbias, dinner, y, none, kernels::Activation::kGeluTanh,
                                                  &active);
                   }),
                   0, seconds_of([&] { kernels::gelu_linear_back(dout, back, y, active, dbias); })});
  }
  out.push_back({"weight's gradient", flops, seconds_of([&] { at::mm_out(dw, dy.t(), x, at::kFloat); }),
                 seconds_of([&] { kernels::product_into(dw, dy.t(), x); }), 0});
  const kernels::ProductExtras with_sum{.kind = Kind::kSum, .bias = sum};
  const bool sums = kernels::takes_product(dw, dy.t(), x, with_sum);
  out.push_back({"weight's gradient, bias's", flops, seconds_of([&] {
                   at::mm_out(dw, dy.t(), x, at::kFloat);
                   kernels::add_row_sum(dbias, dy);
                 }),
                 0, sums ? seconds_of([&] { kernels::fused_product(dw, dy.t(), x, false, with_sum); }) : 0});
  return out;
}

nlohmann::json print_products() {
  nlohmann::json all;
  const std::tuple<const char*, std::int64_t, std::int64_t, std::int64_t, bool> layers[] = {
      {"GPT-2 124M qkv", 32768, 768, 2304, false},    {"GPT-2 124M attention out", 32768, 768, 768, false},
      {"GPT-2 124M MLP", 32768, 768, 3072, true},     {"GPT-2 124M head", 10672, 768, 50304, false},
      {"GPT-2 350M MLP", 32768, 1024, 4096, true},    {"Llama 1B qkv", 16384, 2048, 3072, false},
      {"Llama 1B MLP in", 16384, 2048, 16384, false}, {"Llama 1B MLP out", 16384, 8192, 2048, false}};
  for (const auto& [name, rows, from, to, gelu] : layers) {
    TextTable table({{name}, {"library us"}, {"TFLOP/s"}, {"ours us"}, {"TFLOP/s"}, {"fused us"}, {"gain"}});
    for (const ProductRow& row : measure_products(rows, from, to, gelu)) {
      const double best = row.fused > 0 ? row.fused : row.plain;
      const auto us = [](double seconds) { return seconds > 0 ? fmt::format("{:.1f}", seconds * 1e6) : "-"; };
      const auto rate = [&](double seconds) {
        return seconds > 0 ? fmt::format("{:.0f}", row.flops / seconds / 1e12) : "-";
      };
      table.add({row.name, us(row.library), rate(row.library), us(row.plain), rate(row.plain), us(row.fused),
                 best > 0 ? fmt::format("{:.3f}x", row.library / best) : "-"});
      all[name][row.name] = {
          {"flops", row.flops}, {"library_s", row.library}, {"ours_s", row.plain}, {"fused_s", row.fused}};
    }
    fmt::print("{}\n", table.text());
    std::fflush(stdout);
  }
  all["choices"] = nlohmann::json::parse(kernels::chosen_text());
  return all;
}

// ---- models

/// The step's matrix products, one after the other, each three times: forward and two gradients, by the fastest plans.
class Limit {
 public:
  explicit Limit(const Size& s) : size_(s) {
    const std::int64_t rows = s.batch * s.sequence, head = s.width / s.heads;
    const std::int64_t qkv = (s.heads + 2 * s.kv_heads) * head, in = s.family == "gpt2" ? s.inner : 2 * s.inner;
    for (std::int64_t layer = 0; layer < s.layers; ++layer) {
      shapes_.insert(shapes_.end(), {{s.width, qkv}, {s.width, s.width}, {s.width, in}, {s.inner, s.width}});
    }
    std::int64_t widest = 0;
    for (const auto& [from, to] : shapes_) widest = std::max({widest, from, to});
    x_ = at::randn({rows, widest}, bf16()).mul_(0.1), w_ = at::randn({widest * 4096}, bf16()).mul_(0.1);
    y_ = at::empty({rows * widest}, bf16()), dw_ = at::empty({widest * 4096}, f32());
    chunk_ = std::min<std::int64_t>(rows, (std::int64_t{1} << 30) / (2 * s.vocabulary));
    logits_ = at::randn({chunk_, s.vocabulary}, bf16()).mul_(0.1), head_ = at::randn({s.vocabulary, s.width}, bf16());
    dhead_ = at::zeros({s.vocabulary, s.width}, f32());
    q_ = at::randn({s.batch, s.sequence, s.heads, head}, bf16());
    kv_ = at::randn({s.batch, s.sequence, 2 * s.kv_heads, head}, bf16());
  }
  void products() {
    const std::int64_t rows = x_.size(0);
    for (const auto& [from, to] : shapes_) {
      const at::Tensor x = x_.flatten().narrow(0, 0, rows * from).view({rows, from});
      const at::Tensor w = w_.narrow(0, 0, from * to).view({to, from});
      at::Tensor y = y_.narrow(0, 0, rows * to).view({rows, to}), dw = dw_.narrow(0, 0, from * to).view({to, from});
      kernels::product_into(y, x, w.t());
      at::Tensor dx = y_.narrow(0, 0, rows * from).view({rows, from});
      const at::Tensor dy = x_.flatten().narrow(0, 0, rows * to).view({rows, to});
      kernels::product_into(dx, dy, w);
      kernels::product_into(dw, dy.t(), x);
    }
    for (std::int64_t first = 0; first < rows; first += chunk_) {
      const std::int64_t count = std::min(chunk_, rows - first);
      const at::Tensor x = x_.flatten().narrow(0, 0, count * size_.width).view({count, size_.width});
      at::Tensor logits = logits_.narrow(0, 0, count),
                 dx = y_.narrow(0, 0, count * size_.width).view({count, size_.width});
      kernels::product_into(logits, x, head_.t());
      kernels::product_into(dx, logits, head_);
      kernels::product_into(dhead_, logits.t(), x);
    }
  }
  void attention() {
    const kernels::Attention options{.scale = 0.125, .causal = true};
    const at::Tensor k = kv_.narrow(2, 0, size_.kv_heads), v = kv_.narrow(2, size_.kv_heads, size_.kv_heads);
    at::Tensor dq = at::empty_like(q_), dk = at::empty_like(k), dv = at::empty_like(v);
    for (std::int64_t layer = 0; layer < size_.layers; ++layer) {
      const auto [out, lse] = kernels::attention_forward(q_, k, v, options);
      kernels::attention_backward(dq, dk, dv, q_, q_, k, v, out, lse, options);
    }
  }
  /// What has to move besides: norms' and activations' tensors once each way, residuals that products add to, logits,
  /// and the optimizer's streams.
  double bytes(std::int64_t parameters, bool narrow, bool narrow_gradients) const {
    const double tokens = static_cast<double>(size_.batch * size_.sequence), w = static_cast<double>(size_.width);
    const double inner = static_cast<double>(size_.inner) * (size_.family == "gpt2" ? 5 : 8);
    const double per_layer = tokens * 2 * (2 * 7 * w + inner);
    return static_cast<double>(size_.layers) * per_layer + tokens * 4 * static_cast<double>(size_.vocabulary) +
           (narrow             ? 18.0
            : narrow_gradients ? 30.0
                               : 34.0) *
               static_cast<double>(parameters);
  }

 private:
  Size size_;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes_;
  std::int64_t chunk_ = 0;
  at::Tensor x_, w_, y_, dw_, logits_, head_, dhead_, q_, kv_;
};

struct Options {
  std::string python, json, profile, peers = TRIREME_BENCH_DIR "/peers";
  std::vector<std::string> models;
  bool kernels = false, attention = false, shapes = false, eager = true, capture = false, narrow = false, apart = false,
       offload = false;
  bool tune = true, keep_active = false, remake_norms = false;
  std::string same, gradients = "fp32";
  spec::Products products = spec::Products::kSame;
  int rounds = 5, steps = 10;
  std::int64_t batch = 0;
};

void profile(Ours& ours, const std::string& path) {
  using namespace torch::autograd::profiler;
  const ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities{torch::profiler::impl::ActivityType::CPU,
                                                                 torch::profiler::impl::ActivityType::CUDA};
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  ours.run(2);
  disableProfiler()->save(path);
}

/// What one side of PyTorch's gave.
struct Theirs {
  std::unique_ptr<Peer> peer;
  Times times;
  double peak_gib = 0, loss = 0;

  void begin(const bench::PeerOptions& options, const Size& size) {
    peer = std::make_unique<Peer>(options, size);
    peer->run(kWarmUp);
  }
  void turn(int steps) {
    if (!peer) return;
    times.seconds.push_back(peer->run(steps));
    peak_gib = peer->peak_gib, loss = peer->loss;
  }
  static constexpr int kWarmUp = 5;
};

nlohmann::json compare(const Size& size, const Options& options, double rate) {
  nlohmann::json out;
  const double tokens = static_cast<double>(size.batch * size.sequence);
  const bool narrow_gradients = options.gradients == "bf16";
  bench::PeerOptions peer{.python = options.python,
                          .peers = options.peers,
                          .narrow = options.narrow,
                          .fp8 = options.products != spec::Products::kSame};
  Theirs eager, compiled;
  const auto begin = [&](Theirs& side, bool compile) {
    peer.compile = compile;
    if (!options.python.empty() && (compile || options.eager)) side.begin(peer, size);
  };
  if (options.apart) {
    for (const bool compile : {false, true}) {
      Theirs& side = compile ? compiled : eager;
      begin(side, compile);
      for (int round = 0; round < options.rounds; ++round) side.turn(options.steps);
      side.peer.reset();  // its memory is needed
    }
  }
  kernels::cuda().forget_peak(0);
  auto ours = std::make_unique<Ours>(size, bench::OursOptions{.device = gpu(),
                                                              .products = options.products,
                                                              .capture = options.capture,
                                                              .narrow = options.narrow,
                                                              .narrow_gradients = narrow_gradients,
                                                              .remake_norms = options.remake_norms,
                                                              .keep_active = options.keep_active});
  ours->run(Theirs::kWarmUp);
  const double peak = static_cast<double>(kernels::cuda().peak_bytes(0)) / (1 << 30);
  if (!options.profile.empty()) profile(*ours, options.profile);
  if (!options.apart) {
    begin(eager, false);
    begin(compiled, true);
  }
  auto limit = std::make_unique<Limit>(size);
  Times mine, products, attention;
  for (int round = 0; round < options.rounds; ++round) {
    mine.seconds.push_back(ours->run(options.steps));
    eager.turn(options.steps);
    compiled.turn(options.steps);
    products.seconds.push_back(seconds_of([&] { limit->products(); }, 3, 5));
    attention.seconds.push_back(seconds_of([&] { limit->attention(); }, 3, 5));
  }
  const bool has_eager = !eager.times.seconds.empty(), has_compiled = !compiled.times.seconds.empty();
  const double moved = limit->bytes(ours->parameters(), options.narrow, narrow_gradients), moving = moved / rate;
  const double light = products.median() + attention.median() + moving;
  fmt::print("{}: {} parameters, {}x{}, bf16 with {}, products: {}; ours: {} gradients{}{}{}\n", size.name,
             ours->parameters(), size.batch, size.sequence, options.narrow ? "bf16 states" : "fp32 states",
             name_in(spec::enum_names(std::type_identity<spec::Products>()), options.products), options.gradients,
             options.remake_norms ? ", norms made again" : "", options.keep_active ? ", activations kept" : "",
             options.apart ? "; one side after the other" : "");
  TextTable table({{"side"}, {"ms a step"}, {"tokens/s"}, {"TFLOP/s"}, {"ours is"}, {"peak GiB"}, {"loss"}});
  const auto row = [&](const std::string& name, double seconds, double gib, double loss) {
    table.add({name, fmt::format("{:.2f}", seconds * 1e3), fmt::format("{:.0f}", tokens / seconds),
               fmt::format("{:.0f}", ours->flops() / seconds / 1e12), fmt::format("{:.3f}x", seconds / mine.median()),
               gib > 0 ? fmt::format("{:.1f}", gib) : "-", loss > 0 ? fmt::format("{:.4f}", loss) : "-"});
  };
  row("ours", mine.median(), peak, ours->loss());
  row("limit", light, 0, 0);
  if (has_eager) row("PyTorch eager", eager.times.median(), eager.peak_gib, eager.loss);
  if (has_compiled) row("PyTorch compiled", compiled.times.median(), compiled.peak_gib, compiled.loss);
  fmt::print("{}  limit: products {:.2f} ms, attention {:.2f} ms, {:.2f} GB at {:.2f} TB/s {:.2f} ms\n\n", table.text(),
             products.median() * 1e3, attention.median() * 1e3, moved / 1e9, rate / 1e12, moving * 1e3);
  std::fflush(stdout);
  out["ours"] = mine.seconds, out["products"] = products.seconds, out["attention"] = attention.seconds;
  out["moving"] = moving, out["peak_gib"] = peak, out["tokens"] = tokens, out["flops"] = ours->flops();
  out["loss"] = ours->loss();
  out["gradients"] = options.gradients, out["remake_norms"] = options.remake_norms,
  out["keep_active"] = options.keep_active;
  if (has_eager) {
    out["eager"] = eager.times.seconds, out["eager_peak_gib"] = eager.peak_gib, out["eager_loss"] = eager.loss;
  }
  if (has_compiled) {
    out["compiled"] = compiled.times.seconds, out["compiled_peak_gib"] = compiled.peak_gib;
    out["compiled_loss"] = compiled.loss;
  }
  return out;
}

// ---- the same step

/// Both sides from the same numbers over the same tokens: the losses of each step side by side, which differ by
/// rounding alone. Whether it did is the answer.
bool check_same(const Options& options) {
  bool right = true;
  const bool on_gpu = options.same == "cuda";
  std::vector<Size> sizes(std::begin(bench::kSameSizes), std::end(bench::kSameSizes));
  if (on_gpu) sizes.insert(sizes.end(), std::begin(bench::kSameOnGpu), std::end(bench::kSameOnGpu));
  for (const Size& size : sizes) {
    for (const bool narrow : {false, true}) {
      Ours ours(size, {.device = on_gpu ? gpu() : at::Device(at::kCPU),
                       .precision = narrow ? nn::Precision::kBf16 : nn::Precision::kFp32,
                       .capture = on_gpu && options.capture,
                       .narrow_gradients = narrow && options.gradients == "bf16",
                       .remake_norms = options.remake_norms,
                       .keep_active = options.keep_active});
      const std::string start = fmt::format("/tmp/trireme-same-{}.bin", ::getpid());
      ours.write_start(start);
      Peer peer({.python = options.python,
                 .peers = options.peers,
                 .device = options.same,
                 .type = narrow ? "bf16" : "fp32",
                 .start = start},
                size);
      TextTable table({{"step"}, {"ours"}, {"PyTorch"}, {"differs"}});
      double worst = 0;
      for (int step = 1; step <= 24; ++step) {
        ours.run(1), peer.run(1);
        const double differs = std::abs(ours.loss() / peer.loss - 1);
        worst = std::max(worst, differs);
        if (step > 2 && step % 4 != 0) continue;
        table.add({fmt::format("{}", step), fmt::format("{:.6f}", ours.loss()), fmt::format("{:.6f}", peer.loss),
                   fmt::format("{:.1e}", differs)});
      }
      std::remove(start.c_str());
      const double allowed = narrow ? 1e-2 : on_gpu ? 2e-3 : 2e-4;  // a GPU's products may round to 19 bits
      fmt::print("{}, {} on {}: the losses of a step differ by up to {:.1e}, allowed {:.0e}\n{}\n", size.name,
                 narrow ? "bf16" : "fp32", options.same, worst, allowed, table.text());
      right = right && worst <= allowed;
    }
  }
  return right;
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  CLI::App app("A training step on a GPU beside PyTorch and its limit; operators beside a copy");
  app.add_option("--python", options.python, "a Python with torch, for the peer; without: ours and the limit only");
  app.add_option("--peers", options.peers, "the folder of the peer's script");
  app.add_option("--model", options.models,
                 "gpt2-124m, gpt2-350m, gpt2-1.5b, llama-1b, llama-8b, qwen-1.5b; several may be given");
  app.add_option("--batch", options.batch, "rows, in place of the model's own");
  app.add_option("--same", options.same,
                 "on cpu or cuda: are the sides the same computation? A small model from the same numbers, its losses "
                 "side by side")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_flag("--kernels", options.kernels, "operators beside a copy");
  app.add_flag("--attention", options.attention,
               "attention into a fused gradient: cuDNN directly, through ATen with the join, in a fixed order");
  app.add_flag("--product-shapes", options.shapes, "products of the models' shapes beside the tensor library's");
  app.add_flag("--capture", options.capture,
               "ours records forward and backward, and its update, once and starts them as one; no step is waited for");
  app.add_flag("!--no-tune", options.tune, "products as cuBLAS sees fit, not timed");
  app.add_flag("--keep-active", options.keep_active, "ours keeps what MLPs' activations gave for backward");
  app.add_flag("--remake-norms", options.remake_norms, "ours makes what norms gave again in backward, and keeps none");
  app.add_option("--gradients", options.gradients, "of our matrices and tables, beside fp32 masters and moments")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_flag(
      "--narrow", options.narrow,
      "bf16 states: no fp32 masters, bf16 gradients and moments (ours rounds by chance, PyTorch's to nearest)");
  app.add_flag("--apart", options.apart, "one side after the other, where they do not fit the GPU together");
  app.add_flag("--offload", options.offload, "ours with fp32 masters on the host, in place of the comparison")
      ->excludes("--gradients")
      ->excludes("--remake-norms")
      ->excludes("--keep-active");
  app.add_flag("!--no-eager", options.eager,
               "leave out PyTorch without torch.compile: all sides share the GPU's memory");
  app.add_option("--rounds", options.rounds, "turns of each side")->capture_default_str();
  app.add_option("--steps", options.steps, "steps in a turn")->capture_default_str();
  const std::map<std::string, spec::Products> kinds{{"same", spec::Products::kSame},
                                                    {"fp8", spec::Products::kFp8},
                                                    {"fp8-blocks", spec::Products::kFp8Blocks},
                                                    {"fp8-delayed", spec::Products::kFp8Delayed}};
  app.add_option("--products", options.products, "of our layers: same, fp8, fp8-blocks, fp8-delayed")
      ->transform(CLI::CheckedTransformer(kinds));
  app.add_option("--json", options.json, "keep the samples in this file");
  app.add_option("--profile", options.profile, "a trace of two steps, for Perfetto");
  CLI11_PARSE(app, count, words);
  if (!options.same.empty()) return check_same(options) ? 0 : 1;
  nlohmann::json all;
  kernels::set_tuned_products(options.tune);
  if (options.kernels) all["kernels"] = print_kernels();
  if (options.attention) {
    all["attention"] =
        bench::print_attention(bf16(), [](const std::function<void()>& call) { return seconds_of(call); });
  }
  if (options.shapes) all["products"] = print_products();
  const double rate = options.models.empty() || options.offload ? 0 : copy_rate();
  for (const std::string& name : options.models) {
    for (Size size : bench::kSizes) {
      if (size.name != name) continue;
      if (options.batch > 0) size.batch = options.batch;
      all[name] =
          options.offload ? bench::measure_offload(size, options.rounds, options.steps) : compare(size, options, rate);
    }
  }
  if (!options.json.empty()) std::ofstream(options.json) << all.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
