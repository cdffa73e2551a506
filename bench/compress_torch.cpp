// bench/compress_torch.cpp -- how fast gradients are packed on one core, beside what copying as many bytes takes.
//
//   build/release/bench/compress_torch [--elements 16777216]
//
// Packing with a residual reads the gradient and the residual and writes the residual: 12 bytes an element. The limit
// is the time in which memcpy reads and writes as many. Other codes are told in nanoseconds an element, both ways,
// which is what plan/compress_price.cpp counts with.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/parallel/compress/onebit_code.h"
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

}  // namespace

int main(int count, char** words) try {
  std::int64_t elements = 1 << 24;
  int rounds = 7;
  bench::Arguments app("Packing of gradients on one core, beside memcpy");
  app.add_option("--elements", elements).show_default();
  app.add_option("--rounds", rounds, "the best counts").show_default();
  if (const std::optional<int> status = app.parse(count, words)) return *status;
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
