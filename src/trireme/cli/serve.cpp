// trireme serve: an OpenAI-compatible server for a trained or published model.
#include <memory>
#include <ostream>
#include <random>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/serving_options.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/http/access.h"

namespace trireme::cli {
namespace {

struct ServeOptions {
  serve::ServeRequest request;
  ServingOptions serving;
  std::string key, key_file;
  bool varies = false, forgets = false, has_seed = false;
};

int run_serve(ServeOptions& options, Context& context) {
  serve::ServeRequest& request = options.request;
  if (!options.key.empty()) request.keys.push_back(options.key);
  if (!options.key_file.empty()) {
    for (std::string& key : http::read_keys(options.key_file)) request.keys.push_back(std::move(key));
  }
  request.invariant = !options.varies;
  request.cuda_graphs = !options.serving.no_cuda_graphs;
  request.prefix_cache = !options.forgets;
  if (!options.has_seed) request.seed = std::random_device{}();  // requests that name none differ from start to start
  request.on_ready = [&](const std::string& url, const std::string& about) {
    fmt::print(context.out, "{}\n{}  (chat in a browser; the API is at {}/v1)\n", about, url, url);
    context.out << std::flush;
  };
  spec::Recipe recipe;
  recipe.comm.ranks = options.serving.ranks();
  request.model.layout = options.serving.layout;
  request.model.weight_arena_bytes = options.serving.weight_arena_bytes();
  request.model.lm_head = options.serving.lm_head;
  request.model.kv_cache = options.serving.kv_cache;
  request.model.experts = options.serving.experts;
  request.speculation = options.serving.speculation();
  request.local_ranks = local_ranks(recipe);
  const serve::Commands& commands = load_serve();
  bool whole = true;
  start_ranks(recipe, [&](comm::Rank& rank) {
    const bool mine = commands.serve(request, rank);
    if (rank.rank() == 0) whole = mine;
  });
  return whole ? kExitFine : kExitFailed;
}

}  // namespace

void add_serve_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("serve", "Serve a trained or published model over HTTP, as OpenAI's API does");
  command.footer(
      "/v1/models, /v1/completions, /v1/chat/completions (with streams), /tokenize, /health, /ready, /metrics; a chat\n"
      "page at /. Ends with SIGINT or SIGTERM, after what runs is answered.\n"
      "\n"
      "Examples:\n"
      "  trireme serve models/qwen3 --port 8000\n"
      "  trireme serve runs/quickstart --api-key secret --max-num-seqs 32");
  const auto options = std::make_shared<ServeOptions>();  // shared with the callback
  serve::ServeRequest& request = options->request;
  command.add_option("MODEL", request.model.model, "a run, one of its checkpoints, or a Hugging Face directory")
      .required();
  command.add_option("--host", request.host, "address to listen at; others than this machine's need a key")
      .show_default();
  command.add_option("--port", request.port, "port to listen at; 0: a free one").show_default().within(0, 65535);
  command.add_option("--api-key", options->key, "what clients must send as \"Authorization: Bearer KEY\"");
  command.add_option("--api-key-file", options->key_file, "file with such keys, one a line");
  command.add_option("--allowed-host", request.allowed_hosts, "a further name of this server, as clients write it");
  command.add_option("--served-model-name", request.name, "the model's name for clients; default: the folder's");
  command.add_option("--tokenizer", request.tokenizer,
                     "a tokenizer.json, its folder, or \"bytes\"; default: the model's own");
  command.add_option("--chat-template", request.chat_template, "a Jinja chat template; default: the model's own");
  command
      .add_option("--max-model-len", request.max_len, "tokens of prompt and answer; default: the model's max_seq_len")
      .positive();
  request.max_sequences = 0;
  command
      .add_option("--max-num-seqs", request.max_sequences,
                  "sequences in a step; default: 16, with --weight-arena as many as compute for as long as layers "
                  "load, which is measured")
      .positive();
  command.add_option("--max-requests", request.max_requests, "sequences that run or wait; more are answered with 429")
      .show_default()
      .positive();
  command
      .add_option("--max-num-batched-tokens", request.max_batch_tokens,
                  "tokens of a step, over all sequences; default: 512, on a GPU 8192")
      .positive();
  command
      .add_option("--prefill-chunk", request.prefill_chunk,
                  "tokens of one prompt in a step; default: 256, on a GPU 2048")
      .positive();
  command
      .add_option("--kv-tokens", request.kv_tokens,
                  "tokens that the KV cache holds; default: what --max-num-seqs can fill, at most a quarter "
                  "of the memory that is free, of a GPU's 0.8")
      .positive();
  command
      .add_option("--kv-offload-tokens", request.kv_offload_tokens,
                  "tokens of preempted sequences that are copied to the host's memory and back, in place of being "
                  "recomputed; models without sliding windows")
      .positive();
  command.add_flag("--no-prefix-cache", options->forgets, "compute every prompt from its first token");
  command.add_flag("--no-invariant", options->varies,
                   "CPU: faster GEMMs for prompts, by which logits may differ in their last bits with the batch");
  add_serving_options(command, options->serving, /*replicas=*/false);
  const Option seed = command.add_option("--seed", request.seed, "of requests that bring none; default: random");
  command.add_option("--schedule-log", request.schedule_log,
                     "file for the scheduler's events, from which its plans follow");
  command.add_option("--drain-seconds", request.drain_seconds, "for what runs, after SIGINT or SIGTERM")
      .show_default()
      .not_negative();
  add_compute_options(command, request.model.precision, request.model.device, request.model.weights, options->serving);
  command.callback([options, seed, &context] {
    options->has_seed = seed.given();
    context.run = [options, &context] { return run_serve(*options, context); };
  });
}

}  // namespace trireme::cli
