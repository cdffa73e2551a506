// bench/attention_torch.cpp -- our attention beside ATen's flash kernels for CPUs and beside what the arithmetic
// allows.
//
//   build/release/bench/attention_torch [--rounds 9] [--threads N] [--type bf16,f32] [--shape 8x6x256x64,...]
//
// A shape is BATCHxHEADS[/KEY HEADS]xSEQUENCExHEAD SIZE, causal. Every round runs ATen's forward, ours, ATen's
// backward, ours, in turn; shown are medians and the ratios of the medians: above 1 ours is faster. The bound is the
// work of the visible half (4 s^2 d / 2 a head forward, 2.5 times that backward) at the speed of the multiplications
// measured in registers in the same run, on as many threads; `of bound` is the share of it that ours reaches. ATen has
// no shared heads here: it gets them repeated, outside of the measured time, and its gradients are not summed.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <immintrin.h>

#include <ctime>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <vector>

#include "bench/arguments.h"
#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/kernels/attention.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

struct Shape {
  std::int64_t batch, num_heads, key_heads, seq_len, size;
};

Shape parse_shape(const std::string& text) {
  Shape s{};
  char x = 0;
  std::istringstream in(text);
  in >> s.batch >> x >> s.num_heads >> x;
  s.key_heads = s.num_heads;
  if (x == '/') in >> s.key_heads >> x;
  in >> s.seq_len >> x >> s.size;
  if (!in || s.key_heads < 1 || s.num_heads % s.key_heads != 0)
    throw ConfigError(fmt::format("--shape {}: no shape", text), "write BxH[/K]xSxD, e.g. 8x6x256x64");
  return s;
}

/// Wall time; on one thread its CPU time, which others on the machine disturb less.
double seconds(const auto& body) {
  const auto now = [] {
    if (at::get_num_threads() > 1) return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double begin = now();
  body();
  return now() - begin;
}

/// The median, or the smallest.
double typical(std::vector<double> values, bool best) {
  std::sort(values.begin(), values.end());
  return best ? values.front() : values[values.size() / 2];
}

/// Operations a second of multiplications that never leave the registers, best of a few, on all threads.
double peak([[maybe_unused]] bool bfloat16, int threads) {
  [[maybe_unused]] constexpr std::int64_t kSteps = 2000000;  // without AVX-512 nothing is measured
  [[maybe_unused]] constexpr int kSums = 12;
  const auto work = [&](std::int64_t, std::int64_t) {
#if defined(__AVX512F__)
    __m512 sums[kSums];
    for (auto& s : sums) s = _mm512_setzero_ps();
    __m512 a = _mm512_set1_ps(1e-3f), b = _mm512_set1_ps(1e-3f);
    for (std::int64_t i = 0; i < kSteps; ++i) {
      asm volatile("" : "+v"(a), "+v"(b));
      for (int s = 0; s < kSums; ++s) {
#if defined(__AVX512BF16__)
        sums[s] = bfloat16 ? _mm512_dpbf16_ps(sums[s], (__m512bh)a, (__m512bh)b) : _mm512_fmadd_ps(a, b, sums[s]);
#else
        sums[s] = _mm512_fmadd_ps(a, b, sums[s]);
#endif
      }
    }
    for (auto& s : sums) asm volatile("" ::"v"(s));
#endif
  };
#if defined(__AVX512F__)
  double best = 1e9;
  for (int i = 0; i < 5; ++i) best = std::min(best, seconds([&] { at::parallel_for(0, threads, 1, work); }));
#if defined(__AVX512BF16__)
  const double per_step = 16.0 * (bfloat16 ? 4 : 2);
#else
  const double per_step = 16.0 * 2;
#endif
  return per_step * kSums * kSteps * threads / best;
#else
  static_cast<void>(bfloat16), static_cast<void>(threads), static_cast<void>(work);
  return NAN;
#endif
}

struct Times {
  std::vector<double> aten_forward, forward, aten_backward, backward;
};

Times measure(const Shape& s, at::ScalarType type, int rounds, bool alone) {
  const double scale = 1 / std::sqrt(static_cast<double>(s.size));
  const auto random = [&](std::int64_t heads) {
    return at::randn({s.batch, s.seq_len, heads, s.size}, at::kFloat).to(type);
  };
  const at::Tensor q = random(s.num_heads), k = random(s.key_heads), v = random(s.key_heads),
                   dout = random(s.num_heads);
  const std::int64_t group = s.num_heads / s.key_heads;
  const auto for_aten = [&](const at::Tensor& t) { return t.transpose(1, 2); };  // [batch, heads, sequence, size]
  const at::Tensor every_k = group == 1 ? k : k.repeat_interleave(group, 2);
  const at::Tensor every_v = group == 1 ? v : v.repeat_interleave(group, 2);
  at::Tensor out = at::empty_like(q), lse = at::empty({s.batch, s.num_heads, s.seq_len}, at::kFloat);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  const kernels::Attention options{.scale = scale, .causal = true};
  at::Tensor aten_out, aten_lse;
  Times t;
  for (int round = -2; round < rounds; ++round) {
    const double a = alone ? NAN : seconds([&] {
      std::tie(aten_out, aten_lse) = at::_scaled_dot_product_flash_attention_for_cpu(
          for_aten(q), for_aten(every_k), for_aten(every_v), 0.0, true, {}, scale);
    });
    const double b = seconds([&] { kernels::attention_forward(out, lse, q, k, v, options); });
    const double c = alone ? NAN : seconds([&] {
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          for_aten(dout), for_aten(q), for_aten(every_k), for_aten(every_v), aten_out, aten_lse, 0.0, true, {}, scale);
    });
    const double d = seconds([&] { kernels::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, options); });
    if (round < 0) continue;  // warming up
    t.aten_forward.push_back(a), t.forward.push_back(b), t.aten_backward.push_back(c), t.backward.push_back(d);
  }
  return t;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 9, threads = at::get_num_threads();
  std::string types = "bf16,f32", shapes = "8x6x256x64,8x4x256x64,1x12x1024x64,1x32/8x2048x128";
  bench::Arguments app("attention beside ATen's flash kernels");
  app.add_option("--rounds", rounds).positive();
  app.add_option("--threads", threads).positive();
  app.add_option("--type", types);
  app.add_option("--shape", shapes);
  bool alone = false;
  app.add_flag("--alone", alone, "leave ATen out, to profile ours");
  bool best = false;
  app.add_flag("--best", best, "the fastest round instead of the median: where others use the machine");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  at::set_num_threads(threads);
  fmt::print("{} threads, {}, {} of {} rounds of {} time, causal\n", threads, to_string(instruction_set()),
             best ? "best" : "medians", rounds, threads > 1 ? "wall" : "CPU");
  fmt::print("{:<5}{:<18}{:<9}{:>10}{:>10}{:>8}{:>10}{:>10}{:>9}\n", "type", "shape", "pass", "ATen ms", "ours ms",
             "ratio", "GFLOP/s", "bound ms", "of bound");
  std::istringstream each_type(types);
  for (std::string type; std::getline(each_type, type, ',');) {
    const bool bf16 = type == "bf16";
    const double speed = peak(bf16, threads);
    std::istringstream each_shape(shapes);
    for (std::string text; std::getline(each_shape, text, ',');) {
      const Shape s = parse_shape(text);
      const Times t = measure(s, bf16 ? at::kBFloat16 : type == "f16" ? at::kHalf : at::kFloat, rounds, alone);
      const double flops = 2.0 * static_cast<double>(s.batch * s.num_heads * s.seq_len * s.seq_len * s.size);
      const auto row = [&](const char* pass, const std::vector<double>& aten, const std::vector<double>& mine,
                           double work) {
        fmt::print("{:<5}{:<18}{:<9}{:>10.3f}{:>10.3f}{:>8.2f}{:>10.1f}{:>10.3f}{:>9.2f}\n", type, text, pass,
                   typical(aten, best) * 1e3, typical(mine, best) * 1e3, typical(aten, best) / typical(mine, best),
                   work / typical(mine, best) / 1e9, work / speed * 1e3, work / speed / typical(mine, best));
      };
      row("forward", t.aten_forward, t.forward, flops);
      row("backward", t.aten_backward, t.backward, 2.5 * flops);
      std::fflush(stdout);
    }
  }
  return 0;
}
