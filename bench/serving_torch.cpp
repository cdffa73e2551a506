// bench/serving_torch.cpp -- inference on a CPU: decode and prefill beside memory, llama.cpp and transformers; the
// scheduler; a mixed load beside its prediction.
//
//   build/release/bench/serving_torch --model llama-1b --weights int8 --python PYTHON
//   build/release/bench/serving_torch --model llama-160m --python PYTHON --peer transformers
//   build/release/bench/serving_torch --gemms
//   build/release/bench/serving_torch --host
//   build/release/bench/serving_torch --model llama-tiny --load 256
//   build/release/bench/serving_torch --model llama-1b --save models/random-1b
//
// Random weights of published shapes, bf16 unless --weights says otherwise; with fewer bits the head's matrix has them
// too, as the peer's. Sides take turns. PYTHON has xllamacpp, gguf and numpy (bench/peers/llama_cpp.py), or torch and
// transformers (bench/peers/hf_generate.py). The limit of decode is the bytes of weights that a token reads, at the
// rate at which the same threads read memory.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/arguments.h"
#include "bench/peer.h"
#include "bench/sides.h"
#include "bench/times.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/weight_memory.h"
#include "trireme/kernels/invariant_gemm.h"
#include "trireme/models/published.h"
#include "trireme/serve/engine_cost.h"
#include "trireme/serve/quantise_model.h"

namespace {

using namespace trireme;
using bench::seconds_of;
using kernels::QuantiseWeight;
using kernels::WeightFormat;

struct Options {
  std::string model = "llama-160m", weights = "same", python, peer = "llama.cpp", save;
  std::int64_t prompt = 512, tokens = 128, load = 0, scale = 1;
  int rounds = 5, threads = 2;
  bool gemms = false, host = false, varies = false, fp8_cache = false;
};

struct Size {
  std::int64_t layers, width, heads, kv_heads, ffn, vocab;
};
Size size_of(const std::string& name) {
  if (name == "llama-tiny") return {2, 256, 4, 2, 512, 512};
  if (name == "llama-160m") return {12, 768, 12, 4, 2048, 32000};
  if (name == "llama-1b") return {16, 2048, 32, 8, 8192, 128256};
  throw ConfigError(fmt::format("there is no model {}", name), "give llama-tiny, llama-160m or llama-1b");
}

std::unique_ptr<models::Model> random_model(const std::string& name) {
  const Size size = size_of(name);
  spec::ModelShape shape = spec::family_shape(spec::Family::kLlama);
  shape.num_layers = size.layers, shape.hidden_size = size.width, shape.num_heads = size.heads;
  shape.num_kv_heads = size.kv_heads, shape.head_dim = size.width / size.heads, shape.ffn_size = size.ffn;
  shape.vocab_size = size.vocab, shape.tied = true, shape.max_seq_len = 8192;
  auto model = models::build(shape);
  for (nn::Param& param : model->params) param.has_master = false;
  checkpoint::allocate_in_huge_pages(model->params, nn::Precision::kBf16, at::kCPU);  // as open_model() does
  nn::allocate(model->params, nn::Precision::kBf16, at::kCPU);
  for (nn::Param& param : model->params) param.value.dim() == 1 ? param.value.fill_(1) : param.value.normal_(0, 0.02);
  return model;
}

std::optional<QuantiseWeight> bits_of(const std::string& weights) {
  if (weights == "same") return std::nullopt;
  if (weights == "int8") return QuantiseWeight{.format = WeightFormat::kInt8};
  if (weights == "int4") return QuantiseWeight{.format = WeightFormat::kInt4};
  throw ConfigError(fmt::format("there are no weights of {}", weights), "give same, int8 or int4");
}

/// Bytes of weights that a token of decode reads: a tied table is the head's.
double bytes_read(models::Model& model, const nn::QuantisedWeights& quantised) {
  double bytes = 0;
  for (const nn::Param& param : model.params) {
    const auto found = quantised.find(&param);
    bytes += found == quantised.end() ? static_cast<double>(param.value.nbytes())
                                      : static_cast<double>(found->second.bytes());
  }
  return bytes;
}

/// Bytes a second that the threads read together, of far more than caches hold.
double read_rate() {
  static const at::Tensor buffer = at::empty({std::int64_t{1} << 28}, at::kInt).fill_(1);  // 1 GiB
  const auto* numbers = buffer.const_data_ptr<std::int32_t>();
  std::vector<std::int64_t> sums(64);
  const double seconds = seconds_of([&] {
    at::parallel_for(0, buffer.numel(), std::int64_t{1} << 20, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t sum = 0;
      for (std::int64_t i = begin; i < end; ++i) sum += numbers[i];
      sums[static_cast<std::size_t>(at::get_thread_num())] += sum;
    });
  });
  std::int64_t sum = 0;
  for (const std::int64_t of_thread : sums) sum += of_thread;
  if (sum != buffer.numel()) throw InternalError("the sum is wrong");
  return static_cast<double>(buffer.nbytes()) / seconds;
}

std::vector<std::int64_t> random_prompt(std::int64_t tokens, std::int64_t vocab, std::uint64_t seed) {
  const Random random(seed, "prompt");
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < tokens; ++i)
    out.push_back(
        static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(vocab), static_cast<std::uint64_t>(i))));
  return out;
}

struct Taken {
  double prefill = 0, decode = 0;  // seconds: of the prompt and its token; of the tokens after it
  double processor = 0;            // seconds of all threads, for both
};

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Taken run_ours(models::Model& model, const nn::QuantisedWeights& quantised, const Options& options, int round,
               std::int64_t prompt, std::int64_t tokens) {
  serve::InferenceEngine engine(model, {.max_batch_tokens = prompt,
                                        .max_sequences = 1,
                                        .prefill_chunk = prompt,
                                        .kv_tokens = prompt + tokens + 16,
                                        .kv_cache = options.fp8_cache ? nn::KvCacheType::kE4m3 : nn::KvCacheType::kSame,
                                        .prefix_cache = false,
                                        .invariant = !options.varies,
                                        .quantised = quantised.empty() ? nullptr : &quantised});
  serve::EngineRequest request;
  request.prompt = random_prompt(prompt, model.shape.vocab_size, static_cast<std::uint64_t>(round));
  request.max_new_tokens = tokens;
  const auto why = engine.add(std::move(request));
  if (why) throw InternalError(*why);
  Taken taken;
  const double began = processor_seconds();
  taken.prefill = seconds_of([&] { engine.step(); });
  taken.decode = seconds_of([&] {
    while (!engine.idle()) engine.step();
  });
  taken.processor = processor_seconds() - began;
  return taken;
}

void compare_with_peer(const Options& options) {
  const bool llama = options.peer == "llama.cpp";
  auto model = random_model(options.model);
  nn::QuantisedWeights quantised;
  if (const auto how = bits_of(options.weights)) {
    quantised = serve::quantise_model(*model, *how);
    serve::quantise_head(*model, *how, quantised);
    std::vector<at::Tensor*> codes;
    for (auto& [param, weight] : quantised) codes.push_back(&weight.values);
    checkpoint::move_to_huge_pages(codes);
  }
  const double bytes = bytes_read(*model, quantised);
  std::unique_ptr<bench::PeerProcess> peer;
  if (!options.python.empty()) {
    const std::string script = llama ? "/peers/llama_cpp.py" : "/peers/hf_generate.py";
    const std::string type = options.weights == "int8" ? "q8_0" : options.weights == "int4" ? "q4_0" : "bf16";
    peer = std::make_unique<bench::PeerProcess>(std::vector<std::string>{options.python, TRIREME_BENCH_DIR + script,
                                                                         "--model", options.model, "--type", type,
                                                                         "--threads", std::to_string(options.threads)});
  }
  const auto ask = [&](std::int64_t prompt, std::int64_t tokens) {
    const auto answer = peer->ask(fmt::format("run {} {}", prompt, tokens));
    return Taken{answer.at("prefill_s"), answer.at("decode_s"), answer.at("processor_s")};
  };
  run_ours(*model, quantised, options, 0, 64, 4);
  if (peer) {
    const auto about = peer->ask("about");
    fmt::print("peer: {}\n", about.dump());
    ask(64, 4);
  }
  bench::Sides decode, prefill, processor;
  bench::Times limit, share;
  const auto tokens = static_cast<double>(options.tokens - 1);
  for (int round = 1; round <= options.rounds; ++round) {
    const Taken ours = run_ours(*model, quantised, options, round, 8, options.tokens);
    decode.add("ours", tokens, ours.decode);
    processor.add("ours", tokens, ours.processor);
    if (peer) {
      const Taken theirs = ask(8, options.tokens);
      decode.add("peer", tokens, theirs.decode);
      processor.add("peer", tokens, theirs.processor);
    }
    const double rate = read_rate();
    limit.seconds.push_back(rate / bytes);
    share.seconds.push_back(tokens / ours.decode * bytes / rate);
    const Taken whole = run_ours(*model, quantised, options, round, options.prompt, 1);
    const auto prompt = static_cast<double>(options.prompt);
    prefill.add("ours", prompt, whole.prefill);
    prefill.add("ours, processor", prompt, whole.processor);
    if (peer) {
      const Taken theirs = ask(options.prompt, 1);
      prefill.add("peer", prompt, theirs.prefill);
      prefill.add("peer, processor", prompt, theirs.processor);
    }
  }
  const double wanted = !llama ? 3 : options.weights == "same" ? 1.0 : 0.9;
  decode.compare("decode, ours / peer", "ours", "peer", wanted);
  processor.compare("decode and 8 tokens of prompt, by processor time", "ours", "peer", wanted);
  const double of_prompt = llama && options.weights == "same" ? 1.2 : 0;
  prefill.compare("prefill, ours / peer", "ours", "peer", of_prompt);
  prefill.compare("prefill, by processor time", "ours, processor", "peer, processor", of_prompt);
  fmt::print("{} {}: decode of {} tokens, {:.3f} GB of weights a token; limit {:.1f} tokens/s, ours {:.2f} of it\n{}",
             options.model, options.weights, options.tokens, bytes / 1e9, limit.median(), share.median(),
             decode.text("tokens/s") + processor.text("tokens/s"));
  fmt::print("prefill of {} tokens\n{}", options.prompt, prefill.text("tokens/s"));
}

/// GEMMs of a few rows beside reading memory: weights in turn, so that none waits in a cache.
void bench_gemms(const Options& options) {
  TextTable table({{"n x k"}, {"rows"}, {"weight"}, {"GB/s"}, {"of reading"}, {"GFLOP/s"}});
  const double rate = read_rate();
  for (const auto& [n, k] : {std::pair{std::int64_t{2048}, std::int64_t{2048}}, {16384, 2048}, {2048, 8192}}) {
    for (const std::string weights : {"same", "int8", "int4"}) {
      const auto how = bits_of(weights);
      std::vector<at::Tensor> plain;
      std::vector<kernels::QuantisedWeight> few;
      std::int64_t bytes = 0;
      while (bytes < std::int64_t{300} << 20) {
        plain.push_back(at::randn({n, k}, at::TensorOptions(at::kFloat)).to(at::kBFloat16));
        if (how) few.push_back(kernels::quantise_weight(plain.back(), *how));
        bytes += how ? few.back().bytes() : static_cast<std::int64_t>(plain.back().nbytes());
        if (how) plain.back() = at::Tensor();
      }
      for (const std::int64_t rows : {1, 2, 4, 16, 256}) {
        const at::Tensor x = at::randn({rows, k}, at::TensorOptions(at::kFloat)).to(at::kBFloat16);
        at::Tensor out = at::empty({rows, n}, x.options());
        const auto all = [&] {
          for (std::size_t i = 0; i < plain.size(); ++i) {
            if (how) {
              kernels::invariant_gemm(out, x, few[i], at::Tensor());
            } else {
              kernels::invariant_gemm(out, x, plain[i], at::Tensor());
            }
          }
        };
        all();
        bench::Times times;
        for (int round = 0; round < options.rounds; ++round) times.seconds.push_back(seconds_of(all));
        const double seconds = times.median(), count = static_cast<double>(plain.size());
        table.add({fmt::format("{} x {}", n, k), std::to_string(rows), how ? weights : "bf16",
                   fmt::format("{:.1f}", static_cast<double>(bytes) / seconds / 1e9),
                   fmt::format("{:.2f}", static_cast<double>(bytes) / seconds / rate),
                   fmt::format("{:.0f}", 2 * count * static_cast<double>(rows * n * k) / seconds / 1e9)});
      }
    }
  }
  fmt::print("reading: {:.1f} GB/s\n{}", rate / 1e9, table.text("  "));
}

/// Planning steps of 256 sequences, and drawing their tokens, without a model.
void bench_host(const Options& options) {
  constexpr std::int64_t kSequences = 256, kContext = 1024;
  serve::Scheduler scheduler({.groups = {{.window = 0, .num_blocks = kSequences * (kContext / 16 + 40)}},
                              .max_batch_tokens = 8192,
                              .max_sequences = kSequences});
  for (std::int64_t i = 0; i < kSequences; ++i) {
    if (scheduler.add({.id = static_cast<serve::RequestId>(i),
                       .prompt = random_prompt(kContext, 1000, static_cast<std::uint64_t>(i)),
                       .max_new_tokens = 600}))
      throw InternalError("a request is refused");
  }
  bench::Times plan, complete, sample;
  const auto step = [&](bool timed) {
    serve::StepPlan planned;
    const double planning = seconds_of([&] { planned = scheduler.plan(); });
    std::vector<serve::StepResult> results(planned.sequences.size());
    for (std::size_t i = 0; i < results.size(); ++i)
      if (planned.sequences[i].samples) results[i].tokens = {7};
    const double completing = seconds_of([&] { scheduler.complete(planned, results); });
    if (!timed) return;
    plan.seconds.push_back(planning);
    complete.seconds.push_back(completing);
  };
  while (scheduler.progress(kSequences - 1).generated < 2) step(false);
  for (int i = 0; i < 500; ++i) step(true);
  fmt::print("256 sequences of {} tokens and more: plan {:.0f} us, complete {:.0f} us (medians of 500)\n", kContext,
             plan.median() * 1e6, complete.median() * 1e6);
  for (const std::int64_t vocab : {std::int64_t{512}, std::int64_t{32000}, std::int64_t{128256}}) {
    const at::Tensor logits = at::randn({kSequences, vocab}, at::TensorOptions(at::kFloat));
    for (const double temperature : {0.0, 0.8}) {
      bench::Times draws;
      const serve::Draws noise(/*seed=*/1, /*choice=*/0);
      const serve::SamplingParams params{.temperature = temperature, .top_p = temperature > 0 ? 0.95 : 1.0};
      for (int round = 0; round < options.rounds; ++round) {
        std::int64_t sum = 0;
        draws.seconds.push_back(seconds_of([&] {
          for (std::int64_t i = 0; i < kSequences; ++i) {
            const std::span<const float> row(logits.const_data_ptr<float>() + i * vocab,
                                             static_cast<std::size_t>(vocab));
            sum += serve::sample(row, params, noise.noise(static_cast<std::uint64_t>(i)));
          }
        }));
        if (sum < 0) throw InternalError("a token below 0");
      }
      fmt::print("  drawing 256 tokens of {}, temperature {}: {:.0f} us ({:.1f} GB/s of logits)\n", vocab, temperature,
                 draws.median() * 1e6, static_cast<double>(logits.nbytes()) / draws.median() / 1e9);
    }
  }
}

/// Requests of 100 to 1,024 tokens in and out (over `scale`), all there at once, beside the sum of predicted steps.
void bench_load(const Options& options) {
  auto model = random_model(options.model);
  const serve::EngineOptions of{.max_batch_tokens = 512,
                                .max_sequences = 64,
                                .prefill_chunk = 256,
                                .kv_tokens = 64 * 2048 / options.scale,
                                .invariant = !options.varies};
  const Random random(5, "load");
  std::vector<serve::SimulatedRequest> requests;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < options.load; ++i) {
    const auto length = [&](std::uint64_t which) {
      return (100 + static_cast<std::int64_t>(random.below(925, static_cast<std::uint64_t>(2 * i) + which))) /
             options.scale;
    };
    const std::int64_t prompt = length(0), more = length(1);
    requests.push_back(
        {.request = {.id = static_cast<serve::RequestId>(i),
                     .prompt = random_prompt(prompt, model->shape.vocab_size, static_cast<std::uint64_t>(100 + i)),
                     .max_new_tokens = more}});
    tokens += prompt + more;
  }
  for (int round = 0; round < options.rounds; ++round) {
    const serve::StepCost cost = serve::measure_step_cost(
        *model, of, {.most_rows = 512, .most_sequences = 64, .context = 1024 / options.scale, .rounds = 5});
    serve::InferenceEngine engine(*model, of);
    std::vector<double> first(requests.size());
    const auto begin = bench::Clock::now();
    for (const serve::SimulatedRequest& one : requests) {
      serve::EngineRequest request;
      request.id = one.request.id;
      request.prompt = one.request.prompt;
      request.max_new_tokens = one.request.max_new_tokens;
      request.on_token = [&](const serve::GeneratedToken& token) {
        double& of_first = first[token.id];
        if (of_first == 0) of_first = bench::seconds_since(begin);
      };
      const auto why = engine.add(std::move(request));
      if (why) throw InternalError(*why);
    }
    while (!engine.idle()) engine.step();
    const double seconds = bench::seconds_since(begin);
    const serve::Simulation predicted = serve::simulate(engine.scheduler().options(), requests, cost);
    std::vector<double> firsts, predicted_firsts;
    for (std::size_t i = 0; i < first.size(); ++i) {
      firsts.push_back(first[i]);
      predicted_firsts.push_back(predicted.requests[i].first_token);
    }
    fmt::print(
        "{} requests, {} tokens: {:.2f} s, predicted {:.2f} s: {:.3f} of it; {} steps, predicted {}; median time to "
        "the first token {:.2f} s, predicted {:.2f} s; {:.0f} tokens/s\n",
        options.load, tokens, seconds, predicted.seconds, seconds / predicted.seconds,
        engine.scheduler().totals().steps, predicted.steps, bench::median(firsts), bench::median(predicted_firsts),
        static_cast<double>(tokens) / seconds);
  }
}

}  // namespace

int main(int count, char** words) {
  Options options;
  bench::Arguments app("Inference on a CPU beside memory, llama.cpp and transformers");
  app.add_option("--model", options.model, "llama-tiny, llama-160m or llama-1b").show_default();
  app.add_option("--weights", options.weights, "same, int8 or int4").show_default();
  app.add_option("--python", options.python, "a Python with the peer; without: ours and the limit only");
  app.add_option("--peer", options.peer, "llama.cpp or transformers").show_default();
  app.add_option("--prompt", options.prompt, "tokens of the prompt that is prefilled").show_default();
  app.add_option("--tokens", options.tokens, "that are decoded after a short one").show_default();
  app.add_option("--rounds", options.rounds, "turns of the sides").show_default();
  app.add_option("--threads", options.threads, "of each side").show_default();
  app.add_flag("--gemms", options.gemms, "GEMMs of few rows beside reading memory");
  app.add_flag("--host", options.host, "the scheduler and the sampler at 256 sequences");
  app.add_flag("--no-invariant", options.varies, "GEMMs of the library for prompts");
  app.add_flag("--fp8-cache", options.fp8_cache, "keys and values in FP8");
  app.add_option("--load", options.load, "so many mixed requests beside their prediction");
  app.add_option("--scale", options.scale, "their lengths over this").show_default();
  app.add_option("--save", options.save, "write the model as a Hugging Face folder, and end");
  if (const auto status = app.parse(count, words)) return *status;
  at::set_num_threads(options.threads);
  try {
    if (!options.save.empty()) {
      auto model = random_model(options.model);
      for (nn::Param& param : model->params) param.master = param.value;
      models::save_published(*model, options.save, formats::Dtype::kBF16);
    } else if (options.gemms) {
      bench_gemms(options);
    } else if (options.host) {
      bench_host(options);
    } else if (options.load > 0) {
      bench_load(options);
    } else {
      compare_with_peer(options);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "serving_torch: {}\n", error.what());
    return 1;
  }
  return 0;
}
