// bench/compress_torch.cpp -- how fast gradients are packed on one core, beside what copying as many bytes takes.
//
//   build/release/bench/compress_torch [--elements 16777216]
//   build/release/bench/compress_torch --gpu
//
// Packing with a residual reads the gradient and the residual and writes the residual: 12 bytes an element. The limit
// is the time in which memcpy reads and writes as many. So it is told of the other codes, with the bytes that each must
// read and write. Whole reductions are told in nanoseconds an element, which is what plan/compress_price.cpp counts
// with. --gpu: the same on a GPU, beside its copy.
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
#include "trireme/comm/rank.h"
#include "trireme/device/stream.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_compress_table.h"
#include "trireme/layout/placing.h"
#include "trireme/parallel/compress/delta_code.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/onebit_code.h"
#include "trireme/parallel/compress/power_iteration.h"
#include "trireme/parallel/compress/qsgd_code.h"
#include "trireme/parallel/compress/top_k.h"
#include "trireme/parallel/data_parallel.h"

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
  for (const std::int64_t width : {std::int64_t{768}, columns, std::int64_t{16384}}) {
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
  for (const bool half : {false, true}) {
    const at::Tensor message = parallel::bytes_like(gradient, {3 * elements});
    auto* codes = static_cast<std::uint8_t*>(message.mutable_data_ptr());
    const std::int64_t levels_at = half ? 0 : elements / kernels::kCudaDeltaBlock * 4;
    const kernels::CudaCompressKernels& table_of_kernels = kernels::cuda_compress();
    add(half ? "deltas of 16 bits, with residual" : "deltas of 8 bits, with residual", half ? 14 : 13, "", [&] {
      table_of_kernels.encode_delta({.values = gradient.const_data_ptr(),
                                     .residual = residual.mutable_data_ptr(),
                                     .codes = codes,
                                     .levels_at = levels_at,
                                     .count = elements,
                                     .half = half},
                                    kernels::Element::kFloat, device::cuda_stream());
    });
    add("their decoding", half ? 6 : 5, "", [&] {
      table_of_kernels.decode_delta(
          {.codes = codes, .levels_at = levels_at, .count = elements, .out = out.mutable_data_ptr(), .half = half},
          kernels::Element::kFloat, device::cuda_stream());
    });
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

/// Seconds of whole reductions of one matrix by one copy, which sends to nobody: residual, both codes, both decodings,
/// error. What a copy among N computes is about the same.
double reduction_seconds(const spec::CompressConfig& config, std::int64_t rows, std::int64_t columns, int rounds) {
  double seconds = 0;
  comm::run_ranks(1, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    nn::Params params;
    parallel::MeshGroups groups(rank.world(), layout::Mesh({{"dp", 1}}));
    const layout::Placing placing(groups.mesh(), 0, "w", {rows, columns});
    nn::Param& param = params.add(placing.placement(), {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
    param.uses = 1;
    parallel::DataParallelOptions options{.precision = nn::Precision::kFp32};
    options.compress = config;
    options.reducer = parallel::reducer_named(spec::compress_name(config.kind));
    options.seed = 1;
    std::vector<parallel::ShardUnit> units;
    units.push_back({.params = {&param}});
    parallel::DataParallel data_parallel(std::move(units), params, groups, options);
    nn::initialise(data_parallel.owned(), options.precision, 1);
    at::Tensor gradient = at::empty({rows, columns}, at::kFloat);
    Random(1, "gradient")
        .fill_normal(0,
                     std::span<float>(gradient.mutable_data_ptr<float>(), static_cast<std::size_t>(gradient.numel())));
    bench::Times times;
    for (int round = 0; round < rounds + 2; ++round) {
      data_parallel.begin_micro(true);
      nn::add_gradient(param, gradient);
      const double took = bench::seconds_of([&] {
        data_parallel.added(param);  // begins here, beside backward
        data_parallel.finish();
      });
      if (round >= 2) times.seconds.push_back(took);
      data_parallel.step_taken(0.1);
      nn::zero_grad(data_parallel.owned());
    }
    seconds = times.least();
  });
  return seconds;
}

void print_reductions(std::int64_t rows, std::int64_t columns, int rounds) {
  using spec::CompressKind;
  TextTable table({{"a whole reduction, without a network"}, {"ns an element"}});
  const auto add = [&](const char* name, const spec::CompressConfig& config) {
    table.add({name, fmt::format("{:.2f}", reduction_seconds(config, rows, columns, rounds) /
                                               static_cast<double>(rows * columns) * 1e9)});
  };
  add("1-bit SGD", {.kind = CompressKind::kOnebitSgd});
  add("QSGD, 4 bits", {.kind = CompressKind::kQsgd});
  add("QSGD, Elias codes", {.kind = CompressKind::kQsgd, .coding = spec::QsgdCoding::kElias});
  for (const int rank : {1, 4, 16})
    add(fmt::format("PowerSGD, rank {}", rank).c_str(), {.kind = CompressKind::kPowerSgd, .rank = rank});
  add("DGC, 0.1 %", {.kind = CompressKind::kDgc, .momentum = 0.9, .sparsity = 0.999});
  add("CSC, default density", {.kind = CompressKind::kCsc, .momentum = 0.9});
  fmt::print("{}", table.text());
}

/// Encoding and decoding of pseudo-gradients, ns an element; the scratch is made anew each time, outside of the clock.
double delta_seconds(spec::DeltaDtype type, const std::vector<float>& values, int rounds) {
  const auto count = static_cast<std::int64_t>(values.size());
  bench::Times times;
  parallel::Message message;
  message.reserve(2 * values.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> scratch = values;
    message.clear();
    times.seconds.push_back(bench::seconds_of([&] {
      parallel::encode_delta(scratch.data(), count, type, message);
      parallel::MessageReader reader(message);
      parallel::add_delta(reader, count, type, scratch.data());
    }));
  }
  return times.least();
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
      8, "");
  add("signs and a scale, with residual and variance",
      best_of(rounds,
              [&] {
                message.clear();
                parallel::encode_scaled(gradient.data(), residual.data(), residual.data(), variance.data(), elements,
                                        message);
              }),
      16, "");
  add("its decoding",
      best_of(rounds,
              [&] {
                parallel::MessageReader reader(message);
                parallel::add_scaled(reader, variance.data(), elements, 1.0F, sum.data());
              }),
      12, "");
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
        fixed ? 4.5 : 0, "");
    add("its decoding",
        best_of(rounds,
                [&] {
                  parallel::MessageReader reader(message);
                  parallel::add_qsgd(reader, elements, config, sum.data());
                }),
        fixed ? 8.5 : 0, "");
  }
  for (const auto type : {spec::DeltaDtype::kFp16, spec::DeltaDtype::kInt8})
    add(type == spec::DeltaDtype::kFp16 ? "deltas of 16 bits, both ways" : "deltas of 8 bits, both ways",
        delta_seconds(type, gradient, rounds), type == spec::DeltaDtype::kFp16 ? 20 : 18, "");
  add("largest 0.1 %", best_of(rounds, [&] { parallel::top_k(gradient.data(), elements, elements / 1000, 0.01); }), 4,
      "");
  fmt::print("{} elements, memcpy of as many bytes {:.2f} ns an element\n{}", elements,
             copy / static_cast<double>(elements) * 1e9, table.text());
  print_reductions(rows / 4, columns, rounds);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
