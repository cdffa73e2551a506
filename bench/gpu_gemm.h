// bench/gpu_gemm.h -- GEMMs of the models' shapes, with what comes with them, beside the tensor library's.
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
#include "trireme/kernels/gemm.h"
#include "trireme/kernels/sum_rows.h"

namespace trireme::bench {

/// One GEMM of a model: how many times a step has it, and its ways.
struct ProductRow {
  std::string name;
  double flops, library, plain, fused;  // seconds: the tensor library's, ours and ours with what comes with it; 0: none
};

/// The three GEMMs of a linear layer, with the passes over memory that come with them in a model.
inline std::vector<ProductRow> measure_products(std::int64_t rows, std::int64_t from, std::int64_t to, bool gelu) {
  std::vector<ProductRow> out;
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(from) * static_cast<double>(to);
  const at::Tensor x = at::randn({rows, from}, bf16()).mul_(0.1), w = at::randn({to, from}, bf16()).mul_(0.1);
  const at::Tensor dy = at::randn({rows, to}, bf16()).mul_(0.1), bias = at::randn({to}, bf16());
  at::Tensor y = at::empty({rows, to}, bf16()), dx = at::empty_like(x), dw = at::zeros({to, from}, f32()), none;
  at::Tensor dbias = at::zeros({to}, f32()), active = at::empty_like(y), sum = at::empty({to}, f32());
  using Kind = kernels::GemmExtras::Kind;
  const std::string shape = fmt::format("{} x {} x {}", rows, from, to);
  out.push_back({"forward " + shape, flops, gpu_seconds([&] { at::mm_out(y, x, w.t()); }),
                 gpu_seconds([&] { kernels::product_into(y, x, w.t()); }), 0});
  const auto with_bias = [&] { at::addmm_out(y, bias, x, w.t()); };
  if (gelu) {
    out.push_back({"forward, bias, GELU", flops, gpu_seconds([&] {
                     with_bias();
                     kernels::activation_forward(active, y, none, kernels::Activation::kGeluTanh);
                   }),
                   0, gpu_seconds([&] { kernels::gelu_linear(x, w, bias); })});
  } else {
    out.push_back(
        {"forward, bias", flops, gpu_seconds(with_bias), 0, gpu_seconds([&] { kernels::linear_product(x, w, bias); })});
  }
  out.push_back({"input's gradient", flops, gpu_seconds([&] { at::mm_out(dx, dy, w); }),
                 gpu_seconds([&] { kernels::product_into(dx, dy, w); }), 0});
  if (gelu) {  // of the layer after GELU: `from` is then the inner width
    const at::Tensor back = at::randn({from, to}, bf16()).mul_(0.1);
    at::Tensor dinner = at::empty({rows, to}, bf16());
    const at::Tensor dout = at::randn({rows, from}, bf16()).mul_(0.1);
    out.push_back({"input's gradient, GELU's slope, bias", flops, gpu_seconds([&] {
                     at::mm_out(dinner, dout, back);
                     kernels::activation_backward(dinner, dbias, dinner, y, none, kernels::Activation::kGeluTanh,
                                                  &active);
                   }),
                   0, gpu_seconds([&] { kernels::gelu_linear_back(dout, back, y, active, dbias); })});
  }
  out.push_back({"weight's gradient", flops, gpu_seconds([&] { at::mm_out(dw, dy.t(), x, at::kFloat); }),
                 gpu_seconds([&] { kernels::product_into(dw, dy.t(), x); }), 0});
  const kernels::GemmExtras with_sum{.kind = Kind::kSum, .bias = sum};
  const bool sums = kernels::takes_product(dw, dy.t(), x, with_sum);
  out.push_back({"weight's gradient, bias's", flops, gpu_seconds([&] {
                   at::mm_out(dw, dy.t(), x, at::kFloat);
                   kernels::add_row_sum(dbias, dy);
                 }),
                 0, sums ? gpu_seconds([&] { kernels::fused_product(dw, dy.t(), x, false, with_sum); }) : 0});
  return out;
}

inline nlohmann::json print_products() {
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

}  // namespace trireme::bench
