#include "trireme/serve/run_server.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <optional>
#include <thread>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/version.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/rank_model.h"
#include "trireme/serve/stream_batch.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::atomic<int> stop_signals = 0;  // by signals, which are the process's
void on_stop_signal(int) { ++stop_signals; }

/// SIGINT and SIGTERM are counted while it lives.
class StopSignals {
 public:
  StopSignals() {
    stop_signals = 0;
    struct sigaction action {};
    action.sa_handler = &on_stop_signal;
    sigaction(SIGINT, &action, &before_int_);
    sigaction(SIGTERM, &action, &before_term_);
  }
  ~StopSignals() {
    sigaction(SIGINT, &before_int_, nullptr);
    sigaction(SIGTERM, &before_term_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction before_int_ {
  }, before_term_{};
};

std::int64_t kv_tokens_for(const ServeRequest& request, const RankModel& opened, std::int64_t max_len,
                           std::int64_t max_sequences) {
  if (request.kv_tokens > 0) {
    if (request.kv_tokens >= max_len) return request.kv_tokens;
    throw ConfigError(
        fmt::format("a KV cache of {} tokens is smaller than one request of {}", request.kv_tokens, max_len),
        fmt::format("say --kv-tokens {} or more, or --max-model-len {}", max_len, request.kv_tokens));
  }
  return std::max(max_len, std::min(max_sequences * max_len, opened.most_kv_tokens()));
}

/// Ranks are to plan alike.
std::int64_t agreed_kv_tokens(std::int64_t mine, comm::Group& world) {
  if (world.size() > 1) world.all_reduce({&mine, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
  return mine;
}

double seconds_of(InferenceEngine& engine) {
  const auto begin = Clock::now();
  engine.step();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string default_name(const fs::path& model) {
  fs::path path = fs::absolute(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

InvariantPrice measure_invariant_price(models::Model& model) {
  constexpr std::int64_t kPrompt = 32, kDecodes = 3;
  const std::int64_t prompt = std::min(kPrompt, std::max<std::int64_t>(1, model.shape.max_seq_len - kDecodes - 1));
  double prefill[2] = {}, decode[2] = {};
  const auto begin = Clock::now();
  // The first round pays for memory that is touched first; of the others the best counts, a few where they are short.
  for (int round = 0; round < 3 || (round < 12 && Clock::now() - begin < std::chrono::milliseconds(500)); ++round) {
    for (const bool invariant : {false, true}) {
      InferenceEngine engine(model,
                             {.kv_tokens = prompt + kDecodes + 1, .prefix_cache = false, .invariant = invariant});
      std::vector<std::int64_t> tokens(static_cast<std::size_t>(prompt));
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i) % model.shape.vocab_size;
      const auto why = engine.add({.id = 0, .prompt = tokens, .max_new_tokens = kDecodes + 1});
      TRIREME_CHECK(!why, "{}", *why);
      const double first = seconds_of(engine);
      double next = 0;
      while (!engine.idle()) next += seconds_of(engine);
      if (round == 0) continue;
      const auto keep = [&](double& best, double now) { best = best == 0 ? now : std::min(best, now); };
      keep(prefill[invariant], first);
      keep(decode[invariant], next);
    }
  }
  return {.prefill = prefill[1] / prefill[0], .decode = decode[1] / decode[0]};
}

bool run_server(const ServeRequest& request, comm::Group& world) {
  if (request.model.layout.dp > 1) {
    throw ConfigError("a server is one replica",
                      "start a server for each, or batches with trireme generate --input --dp");
  }
  const bool leads = world.rank() == 0;
  // Ranks that are processes all hear the terminal; rank 0 says when it is over.
  std::optional<StopSignals> signals;
  if (leads || world.has_processes()) signals.emplace();
  const auto opened = open_rank_model(request.model, world);
  models::Model& model = opened->model();
  const std::int64_t max_len = request.max_len > 0 ? request.max_len : model.shape.max_seq_len;
  if (max_len > model.shape.max_seq_len) {
    throw ConfigError(
        fmt::format("--max-model-len {} is beyond the model's context of {} tokens", max_len, model.shape.max_seq_len),
        fmt::format("say --max-model-len {} or less", model.shape.max_seq_len));
  }
  ModelText text = find_model_text(request.model.model,
                                   request.tokenizer.empty() ? opened->tokenizer().value_or("") : request.tokenizer,
                                   request.chat_template);
  std::ofstream log;
  if (leads && !request.schedule_log.empty()) {
    log.open(request.schedule_log);
    if (!log) throw IoError(fmt::format("{} cannot be written", request.schedule_log.string()));
  }
  const bool gpu = request.model.device == spec::DeviceKind::kCuda;
  const auto given_or = [](std::int64_t given, std::int64_t otherwise) { return given > 0 ? given : otherwise; };
  const std::int64_t max_sequences =
      batch_of(request.max_sequences, *opened, static_cast<std::int64_t>(request.max_requests), max_len, opened->about);
  EngineOptions options{
      .max_batch_tokens = std::max(given_or(request.max_batch_tokens, gpu ? 8192 : 512), max_sequences),
      .max_sequences = max_sequences,
      .prefill_chunk = given_or(request.prefill_chunk, gpu ? 2048 : 256),
      .kv_tokens = agreed_kv_tokens(kv_tokens_for(request, *opened, max_len, max_sequences), world),
      .kv_offload_tokens = request.kv_offload_tokens,
      .prefix_cache = request.prefix_cache,
      .invariant = request.invariant,
      .cuda_graphs = request.cuda_graphs,
      .speculation = rule_of(request.speculation),
      .schedule_log = log.is_open() ? &log : nullptr};
  opened->set_up(options);
  RankDrafter drafter;
  const auto make_engine = [&] {
    auto engine = std::make_unique<InferenceEngine>(model, options);
    drafter = make_drafter(request.speculation, request.model, *opened, *engine);
    if (drafter.drafter) engine->set_drafter(std::move(drafter.drafter));
    return engine;
  };
  if (!leads) {
    follow(*make_engine(), world);
    return true;
  }
  std::string about =
      fmt::format("KV cache of {} tokens{}, {} sequences a step, prefix cache {}, chat template: {}", options.kv_tokens,
                  opened->kv_cache == nn::KvCacheType::kE4m3 ? " in FP8" : "", options.max_sequences,
                  options.prefix_cache ? "on" : "off", text.chat ? text.chat->origin() : "none");
  if (!opened->about.empty()) about += "\n" + opened->about;
  const bool measures = world.size() == 1 && opened->stream == nullptr && opened->quantised() == nullptr;
  if (request.invariant && !gpu && measures) {
    const InvariantPrice price = measure_invariant_price(model);
    about += fmt::format("\nbatch-invariant: prefill takes {:.2f}, decode {:.2f} of the time without", price.prefill,
                         price.decode);
  }
  auto engine = make_engine();

  InferenceServerOptions server_options;
  server_options.http.address = request.host;
  server_options.http.port = request.port;
  server_options.http.access.keys = request.keys;
  server_options.http.access.allowed_hosts = request.allowed_hosts;
  server_options.model_name = request.name.empty() ? default_name(request.model.model) : request.name;
  server_options.fingerprint = fmt::format("trireme-{}", trireme::kVersion);
  server_options.max_len = max_len;
  server_options.max_requests = request.max_requests;
  server_options.seed = request.seed;
  const int cores = std::max(1, usable_cores() / std::max(1, request.local_ranks));
  if (world.size() > 1) {
    server_options.tell = [&world](const EngineOrders& orders) { tell_followers(world, orders); };
  }
  server_options.on_engine_start = [cores] { at::set_num_threads(cores); };
  InferenceServer server(std::move(engine), std::move(text), std::move(server_options));
  server.start();
  if (request.on_ready) request.on_ready(server.url(), about);
  while (stop_signals == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (const std::string failure = server.engine().failure(); !failure.empty()) {
      throw InternalError(fmt::format("the engine has failed: {}", failure));
    }
  }
  log_info("serve: no new requests; {} run or wait", server.engine().state().running + server.engine().state().waiting);
  signals.reset();  // the signal again ends the process at once
  return server.drain(std::chrono::milliseconds(static_cast<std::int64_t>(request.drain_seconds * 1000)));
}

}  // namespace trireme::serve
