// bench/compress_torch.cpp -- how fast gradients are packed on one core, beside what copying as many bytes takes.
//
//   build/release/bench/compress_torch [--elements 16777216]
//   build/release/bench/compress_torch --gpu
//
// Packing with a residual reads the gradient and the residual and writes the residual: 12 bytes an element. The limit
// is the time in which memcpy reads and writes as many. Other codes are told in nanoseconds an element, both ways,
// which is what plan/compress_price.cpp counts with. --gpu: the same on a GPU, beside its copy.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "bench/arguments.h"
#include "bench/gpu_measure.h"
#include "bench/times.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/onebit_code.h"
#include "trireme/parallel/compress/power_iteration.h"
#include "trireme/parallel/compress/qsgd_code.h"
#include "trireme/parallel/compress/top_k.h"

namespace {

using namespace trireme;

template <typename Body>
double best_of(int rounds, Body&& body) {
  bench::Times times;
  for (int i = 0; i < rounds; ++i) times.seconds.push_back(bench::seconds_of(body));
  return times.least();
}

void print_gpu(std::int64_t elements) {
  const std::int64_t columns = 4096, rows = elements / columns;
  elements = rows * columns;
  const double copy = bench::copy_rate();
  const at::Tensor gradient = at::randn({elements}, bench::f32()), variance = at::ones_like(gradient);
  at::Tensor residual = at::zeros_like(gradient), out = at::empty_like(gradient);
  TextTable table({{"code"}, {"ps an element"}, {"GB/s"}, {"of the copy's rate"}, {"goal"}});
  const auto add = [&](const std::string& name, double bytes, const char* goal, const std::function<void()>& call) {
    const double seconds = bench::gpu_seconds(call), count = static_cast<double>(elements);
    table.add({name, fmt::format("{:.2f}", seconds / count * 1e12),
               fmt::format("{:.0f}", bytes * count / seconds * 1e-9),
               fmt::format("{:.0f} %", 100 * bytes * count / seconds / copy), goal});
  };
  for (const std::int64_t width : {std::int64_t{1024}, columns, std::int64_t{16384}}) {
    parallel::SlotLayout layout;
    const parallel::GpuRowCode code(elements / width, width, 1, 4, layout);
    const at::Tensor message = parallel::bytes_like(gradient, {1, layout.bytes()});
    add(fmt::format("1 bit, two means a row of {}, with residual", width), 12 + 1.0 / 8, ">= 60 %",
        [&] { code.encode(gradient, residual, residual, elements / width, message); });
    add("its decoding", 4 + 1.0 / 8, "", [&] { code.decode_all(message, out); });
  }
  {
    parallel::SlotLayout layout;
    const parallel::GpuScaledCode code(elements, 1, layout);
    const at::Tensor message = parallel::bytes_like(gradient, {1, layout.bytes()});
    add("signs and a scale, with residual and variance", 16 + 1.0 / 8, "",
        [&] { code.encode(gradient, residual, residual, variance, message); });
  }
  {
    const spec::CompressConfig config{.kind = spec::CompressKind::kQsgd};
    parallel::SlotLayout layout;
    const parallel::GpuQsgdCode code(elements, config, 4, layout);
    at::Tensor message = parallel::bytes_like(gradient, {layout.bytes()});
    const auto words = parallel::qsgd_draws(1, "w", 0, 0, 0).words();
    add("QSGD, 4 bits", 4.5, "", [&] { code.encode(gradient, words, message); });
    add("its decoding", 4.5, "", [&] { code.decode_sum(message.view({1, -1}), out); });
  }
  {
    parallel::SlotLayout layout;
    const parallel::GpuTopKCode code(elements, elements / 1000, 4, layout);
    at::Tensor message = parallel::bytes_like(gradient, {layout.bytes()}), values = gradient.clone();
    add("largest 0.1 % (they are put back)", 4, "", [&] {
      code.take(values, at::Tensor(), 0.01, message);
      code.add(message, values);
    });
  }
  std::vector<at::Tensor> factors;
  for (int i = 0; i < 100; ++i) factors.push_back(at::randn({4096, 4}, bench::f32()));
  const double seconds = bench::gpu_seconds([&] { parallel::orthogonalise(std::span<at::Tensor>(factors)); });
  fmt::print("{} elements; a copy moves {:.0f} GB/s\n{}100 factors of 4096 x 4 made orthonormal: {:.0f} us\n", elements,
             copy * 1e-9, table.text(), seconds * 1e6);
}

}  // namespace

int main(int count, char** words) try {
  std::int64_t elements = 1 << 24;
  int rounds = 7;
  bool on_gpu = false;
  bench::Arguments app("Packing of gradients on one core, beside memcpy");
  app.add_option("--elements", elements).show_default();
  app.add_option("--rounds", rounds, "the best counts").show_default();
  app.add_flag("--gpu", on_gpu, "on a GPU");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (on_gpu) {
    print_gpu(4 * elements);
    return 0;
  }
  at::set_num_threads(1);
  const std::int64_t columns = 1024, rows = elements / columns;
  elements = rows * columns;
  const auto size = static_cast<std::size_t>(elements);
  std::vector<float> gradient(size), residual(size, 0.0F), variance(size, 1.0F), sum(size, 0.0F);
  Random(1, "gradient").fill_normal(0, std::span<float>(gradient));
  // 12 bytes an element: six read, six written.
  std::vector<std::uint8_t> from(6 * size, 1), to(6 * size, 2);
  const double copy = best_of(rounds, [&] { std::memcpy(to.data(), from.data(), from.size()); });
  parallel::Message message;
  TextTable table({{"code"}, {"ns an element"}, {"of the copy's rate"}, {"goal"}});
  const auto add = [&](const char* name, double seconds, double bytes, const char* goal) {
    table.add({name, fmt::format("{:.2f}", seconds / static_cast<double>(elements) * 1e9),
               bytes > 0 ? fmt::format("{:.0f} %", 100 * copy * bytes / 12 / seconds) : "-", goal});
  };
  message.reserve(size);
  add("1 bit, two means a row, with residual",
      best_of(rounds,
              [&] {
                message.clear();
                parallel::encode_rows(gradient.data(), residual.data(), residual.data(), rows, columns, message);
              }),
      12, ">= 60 %");
  add("its decoding",
      best_of(rounds,
              [&] {
                parallel::MessageReader reader(message);
                parallel::add_rows(reader, rows, columns, sum.data());
              }),
      0, "");
  add("signs and a scale, with residual and variance",
      best_of(rounds,
              [&] {
                message.clear();
                parallel::encode_scaled(gradient.data(), residual.data(), residual.data(), variance.data(), elements,
                                        message);
              }),
      16, "");
  for (const auto coding : {spec::QsgdCoding::kFixed, spec::QsgdCoding::kElias}) {
    const spec::CompressConfig config{.kind = spec::CompressKind::kQsgd, .coding = coding};
    const bool fixed = coding == spec::QsgdCoding::kFixed;
    add(fixed ? "QSGD, 4 bits" : "QSGD, Elias codes",
        best_of(rounds,
                [&] {
                  message.clear();
                  parallel::encode_qsgd(gradient.data(), elements, config, parallel::qsgd_draws(1, "w", 0, 0, 0),
                                        message);
                }),
        0, "");
  }
  add("largest 0.1 %", best_of(rounds, [&] { parallel::top_k(gradient.data(), elements, elements / 1000, 0.01); }), 4,
      "");
  fmt::print("{} elements, memcpy of as many bytes {:.2f} ns an element\n{}", elements,
             copy / static_cast<double>(elements) * 1e9, table.text());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
