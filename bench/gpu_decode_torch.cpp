// bench/gpu_decode_torch.cpp -- inference on a GPU: decode and prefill beside the bandwidth's limit, kernels beside a
// copy.
//
//   build/release/bench/gpu_decode_torch --model llama-8b --batch 1 --batch 16 --batch 128
//   build/release/bench/gpu_decode_torch --model llama-1b --prefill 2048
//   build/release/bench/gpu_decode_torch --model llama-8b --weights int4 --batch 1
//   build/release/bench/gpu_decode_torch --kernels
//
// Random weights of the published shapes, bf16. A decode step is one token of each sequence over a paged KV cache:
// inputs to the device, the captured kernels, the likeliest tokens back on the host. "engine" is the same with
// scheduling and sampling. The limit is batch x copy bandwidth / (bytes of weights + bytes of keys and values that a
// step reads); --ragged draws lengths, and computes it from them. A row is a line of JSON.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/arguments.h"
#include "bench/gpu_measure.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/kernels/gemm.h"
#include "trireme/kernels/paged_attention.h"
#include "trireme/kernels/skinny_gemm.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/quantise_model.h"

namespace {

using namespace trireme;
using bench::bf16;
using bench::Clock;
using bench::gpu;
using bench::seconds_since;

struct Options {
  std::vector<std::string> models;
  std::vector<std::int64_t> batches, prefills;
  std::string weights = "same";
  std::int64_t context = 1024, steps = 30;
  bool kernels = false, ragged = false, engine = false;
};

spec::ModelShape shape_of(const std::string& name) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kLlama);
  if (name == "llama-8b") {
    shape.num_layers = 32, shape.hidden_size = 4096, shape.num_heads = 32, shape.num_kv_heads = 8;
    shape.head_dim = 128, shape.ffn_size = 14336, shape.vocab_size = 128256, shape.tied = false;
  } else if (name == "llama-1b") {
    shape.num_layers = 16, shape.hidden_size = 2048, shape.num_heads = 32, shape.num_kv_heads = 8;
    shape.head_dim = 64, shape.ffn_size = 8192, shape.vocab_size = 128256, shape.tied = true;
  } else {
    throw ConfigError(fmt::format("there is no model {}", name), "give llama-8b or llama-1b");
  }
  shape.max_seq_len = 16384;
  return shape;
}

std::unique_ptr<models::Model> random_model(const std::string& name) {
  auto model = models::build(shape_of(name));
  for (nn::Param& param : model->params) param.has_master = false;
  nn::allocate(model->params, nn::Precision::kBf16, gpu());
  for (nn::Param& param : model->params) {
    param.value.dim() == 1 ? param.value.fill_(1) : param.value.normal_(0, 0.02);
  }
  return model;
}

/// Bytes of weights that a decode step reads: all but the token table, of which it reads a row a sequence; a tied one
/// is the head.
double weight_bytes(models::Model& model, const nn::QuantisedWeights& quantised) {
  double bytes = 0;
  for (const nn::Param& param : model.params) {
    const bool table = param.name == "embedding.tokens.weight" && !model.shape.tied;
    if (!table) bytes += static_cast<double>(param.value.nbytes());
  }
  for (const auto& [param, weight] : quantised) bytes += static_cast<double>(weight.bytes());
  return bytes;
}

void emit(nlohmann::ordered_json row) {
  fmt::print("{}\n", row.dump());
  std::fflush(stdout);
}

double median_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

struct Served {
  models::Model& model;
  const nn::QuantisedWeights& quantised;
  std::string name;
  double copy_rate;
};

void bench_decode(const Served& served, std::int64_t batch, const Options& options) {
  const spec::ModelShape& shape = served.model.shape;
  const Random random(1, "lengths");
  std::vector<std::int64_t> lengths;
  std::int64_t total = 0, blocks = 0;
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t less =
        options.ragged ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(options.context / 7 * 2), i))
                       : 0;
    lengths.push_back(options.context - less);
    total += lengths.back();
    blocks += nn::blocks_for(lengths.back());
  }
  nn::KvCache cache{.groups = {{.window = 0, .num_blocks = blocks}}};
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const auto make = [&] {
      return at::empty({blocks, nn::kKvBlockSize, shape.num_kv_heads, shape.head_dim}, bf16()).normal_();
    };
    cache.layers.push_back({.keys = make(), .values = make()});
  }
  // Blocks in the order in which a pool that has been in use gives them: none.
  std::vector<nn::BlockId> ids(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<nn::BlockId>(i);
  for (std::size_t i = ids.size(); i-- > 1;) std::swap(ids[i], ids[random.below(i + 1, 1000 + i)]);
  std::vector<nn::BlockTable> tables;
  std::vector<nn::SequenceStep> steps;
  auto next = ids.begin();
  for (const std::int64_t length : lengths) {
    const auto end = next + nn::blocks_for(length);
    tables.push_back({.blocks = {next, end}});
    next = end;
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    steps.push_back({.context_len = lengths[i] - 1, .query_len = 1, .tables = {&tables[i], 1}});
  }
  const auto quantised = served.quantised.empty() ? nullptr : &served.quantised;
  serve::DecodeGraphs graphs(served.model, cache, gpu(),
                             {.max_sequences = batch, .max_len = options.context + 16, .quantised = quantised});
  std::vector<std::int64_t> tokens(lengths.size(), 7);
  std::vector<double> seconds;
  for (std::int64_t step = -6; step < options.steps; ++step) {
    const auto begin = Clock::now();
    const auto out = graphs.run(steps, tokens);
    if (step >= 0) seconds.push_back(seconds_since(begin));
    tokens.assign(out.tokens.begin(), out.tokens.end());  // fed back, as in decode
  }
  const double kv = static_cast<double>(total * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 2);
  const double limit =
      static_cast<double>(batch) * served.copy_rate / (weight_bytes(served.model, served.quantised) + kv);
  const double rate = static_cast<double>(batch) / median_of(seconds);
  emit({{"model", served.name},
        {"what", "decode"},
        {"weights", options.weights},
        {"batch", batch},
        {"context", options.context},
        {"ragged", options.ragged},
        {"ms", median_of(seconds) * 1e3},
        {"tokens_per_s", rate},
        {"limit", limit},
        {"of_limit", rate / limit}});
}

/// Requests of an engine: a prompt each, and `added` tokens.
void bench_engine(const Served& served, std::int64_t batch, std::int64_t prompt, std::int64_t added, const char* what,
                  const Options& options) {
  const auto quantised = served.quantised.empty() ? nullptr : &served.quantised;
  serve::InferenceEngine engine(served.model, {.max_batch_tokens = std::max<std::int64_t>(batch * prompt, 8192),
                                               .max_sequences = batch,
                                               .prefill_chunk = std::max<std::int64_t>(prompt, 2048),
                                               .kv_tokens = batch * (prompt + added + 16),
                                               .prefix_cache = false,
                                               .quantised = quantised});
  const Random random(2, "prompts");
  std::vector<double> firsts, nexts;
  for (int round = 0; round < (added == 1 ? 8 : 2); ++round) {
    for (std::int64_t i = 0; i < batch; ++i) {
      serve::EngineRequest request{.id = static_cast<serve::RequestId>(1000 * round + i), .max_new_tokens = added};
      for (std::int64_t at = 0; at < prompt; ++at) {
        request.prompt.push_back(
            static_cast<std::int64_t>(random.below(128000, static_cast<std::uint64_t>(i * prompt + at))));
      }
      const auto why = engine.add(std::move(request));
      TRIREME_CHECK(!why, "{}", *why);
    }
    for (bool first = true; !engine.idle(); first = false) {
      const auto begin = Clock::now();
      engine.step();
      if (round > 0 || added > 1) (first ? firsts : nexts).push_back(seconds_since(begin));
    }
  }
  if (added == 1) {
    const spec::ModelShape& shape = served.model.shape;
    const double head = static_cast<double>(shape.vocab_size * shape.hidden_size);
    const double matrices = static_cast<double>(served.model.params.elements()) - head * (shape.tied ? 1 : 2);
    const double per_token =
        2 * matrices + 2.0 * static_cast<double>(shape.num_layers * prompt * shape.num_heads * shape.head_dim);
    const double rate = static_cast<double>(batch * prompt) / median_of(firsts);
    emit({{"model", served.name},
          {"what", what},
          {"batch", batch},
          {"prompt", prompt},
          {"ms", median_of(firsts) * 1e3},
          {"tokens_per_s", rate},
          {"tflops", rate * per_token * 1e-12},
          {"mfu_989", rate * per_token / 989e12}});
    return;
  }
  emit({{"model", served.name},
        {"what", what},
        {"weights", options.weights},
        {"batch", batch},
        {"context", prompt},
        {"ms", median_of(nexts) * 1e3},
        {"tokens_per_s", static_cast<double>(batch) / median_of(nexts)}});
}

/// The GEMMs of a decode step, each over several weights in turn so that none of them waits in the L2 cache.
void bench_kernels(double copy_rate) {
  struct Case {
    const char* name;
    std::int64_t n, k;
  };
  for (const Case& c : {Case{"8b qkv", 6144, 4096},
                        {"8b out", 4096, 4096},
                        {"8b mlp in", 28672, 4096},
                        {"8b mlp out", 4096, 14336},
                        {"1b out", 2048, 2048},
                        {"1b mlp in", 16384, 2048},
                        {"1b mlp out", 2048, 8192},
                        {"head", 128256, 4096}}) {
    const auto copies = std::max<std::int64_t>(2, 400'000'000 / (c.n * c.k * 2));
    std::vector<at::Tensor> weights;
    for (std::int64_t i = 0; i < copies; ++i) weights.push_back(at::randn({c.n, c.k}, bf16()).mul_(0.02));
    for (const std::int64_t m : {1, 8, 16, 128}) {
      const at::Tensor x = at::randn({m, c.k}, bf16());
      const double least = static_cast<double>(c.n * c.k * 2) / copy_rate;
      const auto all = [&](auto&& one) {
        return bench::graph_times(
                   [&] {
                     for (const at::Tensor& weight : weights) one(weight);
                   },
                   5, 2)
                   .median() /
               static_cast<double>(copies);
      };
      nlohmann::ordered_json row{{"gemm", c.name}, {"m", m}};
      if (m <= kernels::kMostSkinnyRows) {
        row["skinny_of_limit"] = least / all([&](const at::Tensor& w) { kernels::skinny_gemm({.x = x, .weight = w}); });
      }
      row["cublaslt_of_limit"] =
          least / all([&](const at::Tensor& w) { kernels::gemm({.a = x, .b = w, .transpose_b = true}); });
      if (m <= 16 && c.n < 100000) {
        for (const auto& [name, format] :
             std::map<std::string, kernels::WeightFormat>{{"int8", kernels::WeightFormat::kInt8},
                                                          {"int4", kernels::WeightFormat::kInt4},
                                                          {"e4m3", kernels::WeightFormat::kE4m3}}) {
          std::vector<kernels::QuantisedWeight> few;
          for (const at::Tensor& weight : weights) few.push_back(kernels::quantise_weight(weight, {.format = format}));
          const double bound = static_cast<double>(few[0].bytes()) / copy_rate;
          const auto of_limit = [&](auto&& one) {
            const double seconds = bench::graph_times(
                                       [&] {
                                         for (const auto& weight : few) one(weight);
                                       },
                                       5, 2)
                                       .median() /
                                   static_cast<double>(copies);
            return bound / seconds;
          };
          row[name + "_of_limit"] =
              of_limit([&](const auto& weight) { kernels::skinny_gemm({.x = x, .quantised = &weight}); });
          if (kernels::runs_stream_gemm({.x = x, .quantised = &few[0]})) {
            row[name + "_stream_of_limit"] =
                of_limit([&](const auto& weight) { kernels::stream_gemm({.x = x, .quantised = &weight}); });
          }
        }
      }
      emit(std::move(row));
    }
  }
  for (const auto& [head_dim, batch, length] : {std::tuple{128, 1, 1024},
                                                {128, 16, 1024},
                                                {128, 128, 1024},
                                                {128, 16, 8192},
                                                {64, 1, 1024},
                                                {64, 16, 1024},
                                                {64, 128, 1024}}) {
    const std::int64_t blocks = batch * length / 16,
                       sets = std::max<std::int64_t>(1, 100'000'000 / (blocks * 16 * 8 * head_dim * 4));
    std::vector<std::pair<at::Tensor, at::Tensor>> caches;
    for (std::int64_t i = 0; i < sets; ++i) {
      caches.emplace_back(at::randn({blocks, 16, 8, head_dim}, bf16()), at::randn({blocks, 16, 8, head_dim}, bf16()));
    }
    const at::Tensor q = at::randn({batch, 32, head_dim}, bf16());
    at::Tensor out = at::empty_like(q);
    const auto numbers = bf16().dtype(at::kInt);
    const kernels::PagedRows rows{at::randperm(blocks, numbers).view({batch, length / 16}), at::arange(batch, numbers),
                                  at::full({batch}, length, numbers)};
    const double seconds = bench::graph_times(
                               [&] {
                                 for (const auto& [keys, values] : caches)
                                   kernels::paged_attention(out, q, keys, values, rows, {.scale = 0.1});
                               },
                               5, 2)
                               .median() /
                           static_cast<double>(sets);
    const double least = static_cast<double>(2 * caches[0].first.nbytes()) / copy_rate;
    emit({{"attention", head_dim},
          {"batch", batch},
          {"context", length},
          {"us", seconds * 1e6},
          {"of_limit", least / seconds}});
  }
}

}  // namespace

int main(int count, char** words) try {
  Options options;
  bench::Arguments app("Decode and prefill on a GPU beside the limit of its memory");
  app.add_option("--model", options.models, "llama-8b, llama-1b; several may be given");
  app.add_option("--batch", options.batches, "sequences of a decode step; several may be given");
  app.add_option("--prefill", options.prefills, "tokens of prompts, of 1 and 8 sequences; several may be given");
  app.add_option("--context", options.context, "tokens that a decode step sees").show_default();
  app.add_option("--steps", options.steps, "that are timed").show_default();
  app.add_option("--weights", options.weights, "of attention and MLPs")
      .one_of({"same", "int8", "int4", "fp8"})
      .show_default();
  app.add_flag("--ragged", options.ragged, "sequences of different lengths");
  app.add_flag("--engine", options.engine, "also with scheduling and sampling around");
  app.add_flag("--kernels", options.kernels, "the kernels of a step alone");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (const std::optional<int> status = bench::lacks_gpu()) return *status;
  const double copy_rate = bench::copy_rate();
  emit({{"copy_gb_per_s", copy_rate * 1e-9}});
  if (options.kernels) bench_kernels(copy_rate);
  for (const std::string& name : options.models) {
    const auto model = random_model(name);
    nn::QuantisedWeights quantised;
    const std::map<std::string, kernels::WeightFormat> formats{{"int8", kernels::WeightFormat::kInt8},
                                                               {"int4", kernels::WeightFormat::kInt4},
                                                               {"fp8", kernels::WeightFormat::kE4m3}};
    if (options.weights != "same") quantised = serve::quantise_model(*model, {.format = formats.at(options.weights)});
    const Served served{*model, quantised, name, copy_rate};
    for (const std::int64_t batch : options.batches) {
      bench_decode(served, batch, options);
      if (options.engine) bench_engine(served, batch, options.context, 24, "engine", options);
    }
    for (const std::int64_t prompt : options.prefills) {
      for (const std::int64_t batch : {1, 8}) bench_engine(served, batch, prompt, 1, "prefill", options);
    }
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
