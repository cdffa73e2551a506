// bench/gpu_gemm.h -- GEMMs of the models' shapes, with their epilogues, beside ATen's.
#pragma once

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/gpu_measure.h"
#include "trireme/base/text.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/autotune.h"
#include "trireme/kernels/gemm.h"
#include "trireme/kernels/sum_rows.h"

namespace trireme::bench {

/// One GEMM of a model, in seconds: ATen's, ours, and ours with the epilogue that a model gives it; 0: none.
struct GemmRow {
  std::string name;
  double flops, aten, plain, fused;
};

/// The three GEMMs of a linear layer, with the passes over memory that come with them in a model.
inline std::vector<GemmRow> measure_gemms(std::int64_t rows, std::int64_t from, std::int64_t to, bool gelu) {
  using Op = kernels::Epilogue::Op;
  std::vector<GemmRow> out;
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(from) * static_cast<double>(to);
  const at::Tensor x = at::randn({rows, from}, bf16()).mul_(0.1), w = at::randn({to, from}, bf16()).mul_(0.1);
  const at::Tensor dy = at::randn({rows, to}, bf16()).mul_(0.1), bias = at::randn({to}, bf16());
  at::Tensor y = at::empty({rows, to}, bf16()), dx = at::empty_like(x), dw = at::zeros({to, from}, f32()), none;
  at::Tensor dbias = at::zeros({to}, f32()), active = at::empty_like(y);
  const auto seconds = [](const kernels::Gemm& call) { return gpu_seconds([&] { kernels::gemm(call); }); };
  const std::string shape = fmt::format("{} x {} x {}", rows, from, to);
  const kernels::Gemm forward{.a = x, .b = w, .transpose_b = true, .out = y};
  out.push_back({"forward " + shape, flops, gpu_seconds([&] { at::mm_out(y, x, w.t()); }), seconds(forward), 0});
  const auto with_bias = [&] { at::addmm_out(y, bias, x, w.t()); };
  kernels::Gemm biased = forward;
  biased.epilogue.bias = bias;
  if (gelu) {
    biased.out = active;
    biased.epilogue.op = Op::kActivation;
    biased.epilogue.pre_activation = y;
    out.push_back({"forward, bias, GELU", flops, gpu_seconds([&] {
                     with_bias();
                     kernels::activation_forward(active, y, none, kernels::Activation::kGeluTanh);
                   }),
                   0, seconds(biased)});
  } else {
    out.push_back({"forward, bias", flops, gpu_seconds(with_bias), 0, seconds(biased)});
  }
  out.push_back(
      {"grad_input", flops, gpu_seconds([&] { at::mm_out(dx, dy, w); }), seconds({.a = dy, .b = w, .out = dx}), 0});
  if (gelu) {  // of the layer after GELU: `from` is then the ffn size
    const at::Tensor back = at::randn({from, to}, bf16()).mul_(0.1);
    at::Tensor dpre = at::empty({rows, to}, bf16());
    const at::Tensor dout = at::randn({rows, from}, bf16()).mul_(0.1);
    kernels::Gemm dgelu{.a = dout, .b = back, .out = dpre};
    dgelu.epilogue = {.op = Op::kActivationBackward, .pre_activation = y, .recompute = active, .bias_grad_out = dbias};
    out.push_back({"grad_input, GELU's derivative, bias", flops, gpu_seconds([&] {
                     at::mm_out(dpre, dout, back);
                     kernels::activation_backward(dpre, dbias, dpre, y, none, kernels::Activation::kGeluTanh, &active);
                   }),
                   0, seconds(dgelu)});
  }
  kernels::Gemm grad{.a = dy, .b = x, .transpose_a = true, .out = dw};
  out.push_back({"grad_weight", flops, gpu_seconds([&] { at::mm_out(dw, dy.t(), x, at::kFloat); }), seconds(grad), 0});
  grad.epilogue.bias_grad_a = dbias;
  out.push_back({"grad_weight, grad_bias", flops, gpu_seconds([&] {
                   at::mm_out(dw, dy.t(), x, at::kFloat);
                   kernels::add_row_sum(dbias, dy);
                 }),
                 0, seconds(grad)});
  return out;
}

inline nlohmann::json print_gemms() {
  nlohmann::json all;
  const std::tuple<const char*, std::int64_t, std::int64_t, std::int64_t, bool> layers[] = {
      {"GPT-2 124M qkv", 32768, 768, 2304, false},    {"GPT-2 124M attention out", 32768, 768, 768, false},
      {"GPT-2 124M MLP", 32768, 768, 3072, true},     {"GPT-2 124M head", 10672, 768, 50304, false},
      {"GPT-2 350M MLP", 32768, 1024, 4096, true},    {"Llama 1B qkv", 16384, 2048, 3072, false},
      {"Llama 1B MLP in", 16384, 2048, 16384, false}, {"Llama 1B MLP out", 16384, 8192, 2048, false}};
  for (const auto& [name, rows, from, to, gelu] : layers) {
    TextTable table({{name}, {"ATen us"}, {"TFLOP/s"}, {"ours us"}, {"TFLOP/s"}, {"fused us"}, {"gain"}});
    for (const GemmRow& row : measure_gemms(rows, from, to, gelu)) {
      const double best = row.fused > 0 ? row.fused : row.plain;
      const auto us = [](double seconds) { return seconds > 0 ? fmt::format("{:.1f}", seconds * 1e6) : "-"; };
      const auto rate = [&](double seconds) {
        return seconds > 0 ? fmt::format("{:.0f}", row.flops / seconds / 1e12) : "-";
      };
      table.add({row.name, us(row.aten), rate(row.aten), us(row.plain), rate(row.plain), us(row.fused),
                 best > 0 ? fmt::format("{:.3f}x", row.aten / best) : "-"});
      all[name][row.name] = {{"flops", row.flops}, {"aten_s", row.aten}, {"ours_s", row.plain}, {"fused_s", row.fused}};
    }
    fmt::print("{}\n", table.text());
    std::fflush(stdout);
  }
  all["tuning"] = nlohmann::json::parse(kernels::tuning_cache_text());
  return all;
}

}  // namespace trireme::bench
