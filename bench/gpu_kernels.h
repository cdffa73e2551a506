// bench/gpu_kernels.h -- bytes a second of every operator beside a copy's.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "bench/gpu_measure.h"
#include "trireme/base/text.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/cross_entropy.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/embedding.h"
#include "trireme/kernels/fp8.h"
#include "trireme/kernels/norm.h"
#include "trireme/kernels/rotary.h"
#include "trireme/kernels/sum_rows.h"
#include "trireme/kernels/update.h"

namespace trireme::bench {

struct Row {
  std::string name;
  double bytes;
  Times times;
};

/// Every operator at the shapes of a model: `rows` tokens of `width`, an MLP of `inner`, a vocabulary.
inline std::vector<Row> measure_kernels(std::int64_t rows, std::int64_t width, std::int64_t inner,
                                        std::int64_t vocabulary) {
  std::vector<Row> out;
  const auto numbers = [&](std::int64_t w) { return static_cast<double>(rows * w) * 2; };  // bytes of a bf16 tensor
  const auto add = [&](std::string name, double bytes, const std::function<void()>& call) {
    out.push_back({std::move(name), bytes, graph_times(call)});
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
  const kernels::Fp8DelayedScale delayed{
      .scale = at::full({1}, 0.01, f32()), .amax = at::zeros({1}, f32()), .known = true};
  for (const bool transposed : {false, true}) {
    const std::string ways = transposed ? "with its transpose" : "as it is";
    const double bytes = numbers(inner) * (transposed ? 2 : 1.5);
    add("to FP8 " + ways + ", delayed scale", bytes,
        [&, transposed] { kernels::to_fp8(a, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, transposed, &delayed); });
    add("to FP8 " + ways + ", current scale", bytes + numbers(inner),
        [&, transposed] { kernels::to_fp8(a, Fp8Format::kE4m3, Fp8Scaling::kTensor, true, transposed); });
    add("to FP8 " + ways + ", blocks", bytes,
        [&, transposed] { kernels::to_fp8(a, Fp8Format::kE4m3, Fp8Scaling::kBlocks1x128, true, transposed); });
  }
  add("SwiGLU forward, to FP8", numbers(inner) * 2.5,
      [&] { kernels::gated_to_fp8(gate, up, kernels::Activation::kSilu, Fp8Format::kE4m3, true, false, delayed); });
  add("SwiGLU backward, to FP8 with its transpose", numbers(inner) * 5.5,
      [&] { kernels::gated_backward_to_fp8(a, gate, up, kernels::Activation::kSilu, delayed, delayed); });
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
  add("sum of squares", 4.0 * static_cast<double>(parameters), [&, list = &g] {
    kernels::sums_of_squares_on_device({&list, 1});
  });
  at::Tensor w16 = w.to(at::kBFloat16), g16 = g.to(at::kBFloat16), m16 = m.to(at::kBFloat16), v16 = v.to(at::kBFloat16);
  add("AdamW, all in bf16, stochastically rounded", 14.0 * static_cast<double>(parameters), [&] {
    kernels::adamw_update({.weight = w16, .gradient = g16, .low = none}, m16, v16,
                          {.learning_rate = 1e-4, .step = 5, .rounding = 7});
  });
  add("sum of squares of bf16", 2.0 * static_cast<double>(parameters), [&, list = &g16] {
    kernels::sums_of_squares_on_device({&list, 1});
  });
  return out;
}

/// Beside the rate of a copy of a gigabyte; the short ones also beside a copy of as many bytes as they move, which has
/// a start and an end too.
inline nlohmann::json print_kernels() {
  const double rate = copy_rate();
  fmt::print("copy: {:.2f} TB/s read and written\n", rate / 1e12);
  nlohmann::json all{{"copy_bytes_per_s", rate}};
  constexpr double kShort = 4e8;
  std::map<double, double> copies;  // seconds, by bytes
  for (const auto& [name, width, inner, vocabulary] :
       {std::tuple{"GPT-2 124M, 32x1024", 768, 3072, 50304}, std::tuple{"Llama 1B, 16x1024", 2048, 8192, 128256}}) {
    TextTable table({{name}, {"TB/s"}, {"of copy"}, {"of one as large"}, {"us"}});
    for (const Row& row : measure_kernels(width == 768 ? 32768 : 16384, width, inner, vocabulary)) {
      const bool is_short = row.bytes < kShort;
      if (is_short && !copies.contains(row.bytes)) copies[row.bytes] = copy_seconds(row.bytes);
      const double seconds = row.times.median(), as_large = is_short ? copies[row.bytes] : 0;
      table.add({row.name, fmt::format("{:.2f}", row.bytes / seconds / 1e12),
                 fmt::format("{:.0f} %", 100 * row.bytes / seconds / rate),
                 is_short ? fmt::format("{:.0f} %", 100 * as_large / seconds) : "-",
                 fmt::format("{:.1f}", seconds * 1e6)});
      all[name][row.name] = {{"bytes", row.bytes}, {"seconds", row.times.seconds}};
      if (is_short) all[name][row.name]["copy_seconds"] = as_large;
    }
    fmt::print("{}\n", table.text());
    std::fflush(stdout);
  }
  return all;
}

}  // namespace trireme::bench
