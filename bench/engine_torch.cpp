// bench/engine_torch.cpp -- steps of the inference engine: batch-invariant and not, beside what memory allows.
//
//   build/release/bench/engine_torch [--rounds 5] [--threads N] [--num-layers 12] [--hidden-size 768] [--precision
//   fp32,bf16]
//
// A model of GPT-2's shape with random weights. Per precision: prefill of 512 tokens of one prompt, and decode of one
// and of 16 sequences after 128 tokens each. Every round runs the engine with ATen's GEMMs and tiled attention, then
// with the batch-invariant ones, in turn; shown are medians in tokens a second, `price` is the time with invariance
// over that without, and `of read` the share of decode's bound: every weight read once a step at the speed of a sum
// over memory, measured in the same run.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/base/error.h"
#include "trireme/serve/engine.h"

namespace {

using namespace trireme;

struct EngineCase {
  std::int64_t sequences, prompt, steps;  // steps behind the prefill
};

/// Seconds of the prefill, and of one step behind it.
std::pair<double, double> run_case(models::Model& model, const EngineCase& of, bool invariant) {
  serve::InferenceEngine engine(model, {.max_batch_tokens = 4096,
                                        .max_sequences = of.sequences,
                                        .kv_tokens = of.sequences * (of.prompt + of.steps + 16),
                                        .prefix_cache = false,
                                        .invariant = invariant});
  for (std::int64_t i = 0; i < of.sequences; ++i) {
    std::vector<std::int64_t> prompt;
    for (std::int64_t at = 0; at < of.prompt; ++at) prompt.push_back((7 * at + 13 * i) % model.shape.vocab_size);
    const auto why =
        engine.add({.id = static_cast<serve::RequestId>(i), .prompt = prompt, .max_new_tokens = of.steps + 1});
    TRIREME_CHECK(!why, "{}", *why);
  }
  const double prefill = bench::seconds_of([&] { engine.step(); });
  double decode = 0;
  while (!engine.idle()) decode += bench::seconds_of([&] { engine.step(); });
  return {prefill, of.steps > 0 ? decode / static_cast<double>(of.steps) : 0};
}

}  // namespace

int main(int count, char** words) {
  bench::Arguments arguments("Steps of the inference engine");
  int rounds = 5, threads = 0;
  std::int64_t layers = 12, hidden = 768;
  std::vector<std::string> precisions{"fp32", "bf16"};
  arguments.add_option("--rounds", rounds).show_default();
  arguments.add_option("--threads", threads, "0: all cores").show_default();
  arguments.add_option("--num-layers", layers).show_default();
  arguments.add_option("--hidden-size", hidden).show_default();
  arguments.add_option("--precision", precisions).delimiter(',');
  if (const auto status = arguments.parse(count, words)) return *status;
  if (threads > 0) at::set_num_threads(threads);

  const at::Tensor memory = at::ones({64 << 20}, at::kFloat);  // 256 MiB
  bench::Times reads;
  for (int i = 0; i < 5; ++i) reads.seconds.push_back(bench::seconds_of([&] { (void)at::sum(memory).item<float>(); }));
  const double read_rate = static_cast<double>(memory.nbytes()) / reads.least();
  fmt::print("{} threads, sums over memory at {:.1f} GB/s\n", at::get_num_threads(), read_rate / 1e9);
  fmt::print("{:<6} {:<22} {:>12} {:>12} {:>7} {:>8}\n", "", "", "ATen tok/s", "ours tok/s", "price", "of read");
  for (const std::string& precision : precisions) {
    spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
    shape.num_layers = layers;
    shape.hidden_size = hidden;
    shape.num_heads = shape.num_kv_heads = hidden / shape.head_dim;
    shape.ffn_size = 4 * hidden;
    auto model = models::build(shape);
    nn::initialise(model->params, precision == "bf16" ? nn::Precision::kBf16 : nn::Precision::kFp32, 1);
    double bytes = 0;
    for (const nn::Param& param : model->params) bytes += static_cast<double>(param.value.nbytes());
    bytes -= static_cast<double>(shape.max_seq_len * hidden * model->params.begin()->value.element_size());
    for (const auto& [name, of] : {std::pair{"prefill 512", EngineCase{1, 512, 0}},
                                   {"decode, 1 sequence", {1, 128, 12}},
                                   {"decode, 16 sequences", {16, 128, 6}}}) {
      bench::Times sides[2];
      for (int round = 0; round <= rounds; ++round) {
        for (const bool invariant : {false, true}) {
          const auto [prefill, decode] = run_case(*model, of, invariant);
          if (round > 0) sides[invariant].seconds.push_back(of.steps > 0 ? decode : prefill);
        }
      }
      const auto tokens = static_cast<double>(of.steps > 0 ? of.sequences : of.prompt);
      const double before = sides[0].median(), now = sides[1].median();
      fmt::print("{:<6} {:<22} {:>12.1f} {:>12.1f} {:>7.2f} {:>8}\n", precision, name, tokens / before, tokens / now,
                 now / before, of.steps > 0 ? fmt::format("{:.2f}", bytes / read_rate / now) : "");
    }
  }
  return 0;
}
