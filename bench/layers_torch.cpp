// bench/layers_torch.cpp -- every layer of the tests at the size of a real one, beside the same mathematics under
// autograd.
//
//   build/release/bench/layers_torch [--precision bf16] [--only attention]
//
// The cases are those of tests/nn/layer_cases.cpp: what is tested is what is timed. The peer's attention holds the
// whole score matrix; bench/attention_torch sets ours beside ATen's flash kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/arguments.h"
#include "tests/nn/layer_cases.h"
#include "trireme/base/text.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/nn/autograd_layer.h"

namespace {

using namespace trireme;
using namespace trireme::nn;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string precision = "bf16", only;
  int threads = 2, rounds = 9;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// One forward and backward pass, in milliseconds.
double pass(Layer& layer, const Tensors& inputs, const LayerCase& layer_case) {
  Context context = case_context(layer_case);
  Tape tape;
  const auto begin = Clock::now();
  const Tensors out = layer.forward(inputs, context, &tape);
  layer.backward({at::ones_like(out[0])}, context, tape);
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void measure(const LayerCase& layer_case, Precision precision, const Options& options, TextTable& table) {
  Params params, same;
  const auto layer = layer_case.build(params);
  layer_case.build(same);
  fill_weights(params, precision);
  fill_weights(same, precision);
  std::vector<Param*> list;
  for (Param& param : same) list.push_back(&param);
  const Context context = case_context(layer_case);
  AutogradLayer peer(list, [&](const Tensors& inputs, const Tensors& values) {
    NamedWeights weights;
    for (std::size_t i = 0; i < list.size(); ++i) weights[list[i]->name] = values[i];
    return Tensors{layer_case.oracle(inputs, weights, context)};
  });
  const Tensors inputs = case_inputs(layer_case, compute_type(precision));
  std::vector<double> ours, theirs;
  for (int round = -1; round < options.rounds; ++round) {  // the first is for warming up
    const double a = pass(*layer, inputs, layer_case), b = pass(peer, inputs, layer_case);
    if (round < 0) continue;
    ours.push_back(a);
    theirs.push_back(b);
  }
  table.add({layer_case.name, fmt::format("{:.2f}", median(ours)), fmt::format("{:.2f}", median(theirs)),
             fmt::format("{:.2f}x", median(theirs) / median(ours))});
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("Layers, forward and backward, beside autograd on the same mathematics");
  app.add_option("--precision", options.precision, "fp32 or bf16").show_default().one_of({"fp32", "bf16"});
  app.add_option("--only", options.only, "cases whose names contain this");
  app.add_option("--threads", options.threads).show_default();
  app.add_option("--rounds", options.rounds).show_default();
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  at::set_num_threads(options.threads);
  device::keep_host_memory();
  const CaseSizes sizes{.batch = 8,
                        .sequence = 256,
                        .hidden_size = 384,
                        .num_heads = 6,
                        .num_kv_heads = 2,
                        .head_dim = 64,
                        .ffn_size = 1536};
  const auto precision = options.precision == "bf16" ? Precision::kBf16 : Precision::kFp32;
  using Align = TextTable::Align;
  TextTable table({{"layer"}, {"ours ms", Align::kRight}, {"autograd ms", Align::kRight}, {"ours is", Align::kRight}});
  for (const LayerCase& layer_case : layer_cases(sizes)) {
    if (layer_case.name.find(options.only) != std::string::npos) measure(layer_case, precision, options, table);
  }
  fmt::print("8 x 256 tokens, width 384, {}, {} threads\n{}", options.precision, options.threads, table.text());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
