// trireme generate: continues a text, or lists of tokens.
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <memory>
#include <ostream>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/serving_options.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/formats/checkpoint_folder.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct GenerateOptions {
  serve::GenerateRequest request;
  fs::path ids, input, output;
  std::string model, prompt, tokenizer;
  ServingOptions serving;
  bool has_prompt = false, varies = false;
};

/// The tokenizer of a run, a checkpoint at RUN/checkpoints/step-N, or a published model.
std::string tokenizer_of(const fs::path& model) {
  const fs::path run = fs::absolute(model).lexically_normal().parent_path().parent_path();
  for (const fs::path& folder : {model, run}) {
    if (fs::exists(folder / "tokenizer.json")) return (folder / "tokenizer.json").string();
  }
  if (fs::exists(model / formats::kRecipeFile)) {
    const auto recipe = spec::load_recipe({.file = (model / formats::kRecipeFile).string()}).value;
    if (recipe.data.tokenizer) return *recipe.data.tokenizer;
  }
  throw ConfigError(fmt::format("{} does not say which tokenizer its tokens are of", model.string()),
                    "give --tokenizer FILE, or tokens with --ids FILE");
}

/// On as many ranks as --tp says, or as a launcher has started; what rank 0 has.
formats::TokenLists generate(GenerateOptions& options) {
  spec::Recipe recipe;
  recipe.comm.ranks = options.serving.ranks();
  options.request.layout = options.serving.layout;
  options.request.weight_arena_bytes = options.serving.weight_arena_bytes();
  options.request.lm_head = options.serving.lm_head;
  options.request.kv_cache = options.serving.kv_cache;
  options.request.experts = options.serving.experts;
  options.request.speculation = options.serving.speculation();
  options.request.local_ranks = local_ranks(recipe);
  const serve::Commands& commands = load_serve();
  formats::TokenLists added;
  start_ranks(recipe, [&](comm::Rank& rank) {
    auto mine = commands.generate(options.request, rank);
    if (rank.rank() == 0) added = std::move(mine);
  });
  return added;
}

int continue_text(GenerateOptions& options, Context& context) {
  const auto tokenizer =
      data::load_tokenizer(options.tokenizer.empty() ? tokenizer_of(options.request.model) : options.tokenizer);
  std::vector<std::int32_t> ids = tokenizer->encode(options.prompt);
  if (ids.empty()) {
    const auto first = tokenizer->roles().bos ? tokenizer->roles().bos : tokenizer->roles().eos;
    if (!first)
      throw ConfigError("the prompt is empty, and the tokenizer has no token that begins a text", "give --prompt");
    ids.push_back(*first);
  }
  if (tokenizer->roles().eos && options.request.stop.empty()) options.request.stop.push_back(*tokenizer->roles().eos);
  options.request.prompts = {std::vector<std::int64_t>(ids.begin(), ids.end())};
  data::StreamDecoder decoder(*tokenizer);
  context.out << options.prompt << std::flush;
  // What a first token would lose at the beginning of a text, it does not lose after a prompt.
  for (const std::int32_t id : ids) decoder.push(id);
  options.request.on_token = [&](std::size_t, std::int64_t token) {
    context.out << decoder.push(static_cast<std::int32_t>(token)) << std::flush;
  };
  generate(options);
  context.out << decoder.finish() << "\n";
  return kExitFine;
}

/// Prompts from a JSONL file; each answer is written as soon as it is there.
int run_batch(const GenerateOptions& options, Context& context) {
  if (options.has_prompt || !options.ids.empty()) {
    throw ConfigError("--input and another option both say what to continue", "give --input alone");
  }
  if (options.output.empty()) throw ConfigError("--input needs a file for the answers", "give --output FILE");
  const serve::GenerateRequest& of = options.request;
  spec::Recipe recipe;
  recipe.comm.ranks = options.serving.ranks();
  const serve::BatchRequest request{.model = {.model = of.model,
                                              .precision = of.precision,
                                              .device = of.device,
                                              .weights = of.weights,
                                              .lm_head = options.serving.lm_head,
                                              .kv_cache = options.serving.kv_cache,
                                              .experts = options.serving.experts,
                                              .layout = options.serving.layout,
                                              .weight_arena_bytes = options.serving.weight_arena_bytes()},
                                    .input = options.input,
                                    .output = options.output,
                                    .tokenizer = options.tokenizer,
                                    .tokens = of.tokens,
                                    .sampling = of.sampling,
                                    .beyond_context = of.beyond_context,
                                    .local_ranks = local_ranks(recipe),
                                    .batch = of.batch,
                                    .invariant = of.invariant,
                                    .cuda_graphs = of.cuda_graphs,
                                    .speculation = options.serving.speculation()};
  const serve::Commands& commands = load_serve();
  serve::BatchResult result;
  start_ranks(recipe, [&](comm::Rank& rank) {
    const auto mine = commands.generate_batch(request, rank);
    if (rank.rank() == 0) result = mine;
  });
  fmt::print(context.out,
             "{} lines, {} of them there already, {} refused; {} tokens read, {} of them from the prefix "
             "cache; {} new tokens in {} steps\n",
             result.lines, result.skipped, result.failed, result.prompt_tokens, result.cached_tokens, result.new_tokens,
             result.steps);
  return result.failed == 0 ? kExitFine : kExitFailed;
}

int run_generate(GenerateOptions& options, Context& context) {
  if (options.model.empty())
    throw ConfigError("there is no model", "give the folder of a run, of a checkpoint, or of a Hugging Face model");
  options.request.model = options.model;
  options.request.invariant = !options.varies;
  options.request.cuda_graphs = !options.serving.no_cuda_graphs;
  if (!options.input.empty()) return run_batch(options, context);
  if (!options.output.empty()) throw ConfigError("--output is for --input", "give --input FILE");
  if (options.ids.empty()) return continue_text(options, context);
  if (options.has_prompt) throw ConfigError("--prompt and --ids both say what to continue", "give one of them");
  options.request.prompts = formats::read_token_lists(options.ids, /*equal=*/false);
  for (const auto& added : generate(options)) {
    fmt::print(context.out, "[{}]\n", fmt::join(added, ", "));
  }
  return kExitFine;
}

}  // namespace

void add_generate_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("generate", "Continue a text with a trained or published model");
  command.footer(
      "The text appears as it is generated. The same seed gives the same tokens, whatever else is generated beside.\n"
      "With --ids: one JSON list of new tokens for each list that was given.\n"
      "With --input: a line of JSON for each line that was given. The same command again goes on where it was cut.\n"
      "\n"
      "Examples:\n"
      "  trireme generate runs/quickstart --prompt \"In the beginning\" --temperature 0.8\n"
      "  echo '[[15496, 11]]' > ids.json\n"
      "  trireme generate models/gpt2 --ids ids.json --max-new-tokens 20 --temperature 0.8 --top-p 0.95 --seed 1\n"
      "  echo '{\"prompt\": \"In the\", \"max_tokens\": 8}' > prompts.jsonl\n"
      "  trireme generate runs/quickstart --input prompts.jsonl --output answers.jsonl");
  const auto options = std::make_shared<GenerateOptions>();  // shared with the callback
  serve::GenerateRequest& request = options->request;
  command.add_option("MODEL", options->model, "a run, one of its checkpoints, or a Hugging Face directory");
  const Option prompt = command.add_option("--prompt", options->prompt, "the text to continue");
  command.add_option("--tokenizer", options->tokenizer,
                     "a tokenizer.json, its folder, or \"bytes\"; default: the model's own");
  command.add_option("--input", options->input,
                     "JSONL file: a prompt (or messages) a line, with settings of its own where it has some");
  command.add_option("--output", options->output,
                     "with --input: where answers go, a line each; lines that it has already are left out");
  command.add_option("--ids", options->ids, "JSON file: a list of lists of token ids, one a prompt");
  command.add_option("--max-new-tokens", request.tokens, "new tokens for each prompt").show_default().not_negative();
  command.add_option("--temperature", request.sampling.temperature, "sampling temperature; 0: greedy")
      .show_default()
      .not_negative();
  command.add_option("--top-k", request.sampling.top_k, "sample from this many likeliest tokens only; 0: all")
      .show_default()
      .not_negative();
  command
      .add_option("--top-p", request.sampling.top_p,
                  "nucleus sampling: sample from the fewest tokens that together have this probability")
      .show_default();
  command
      .add_option("--min-p", request.sampling.min_p,
                  "sample from tokens with at least this share of the likeliest one's probability")
      .show_default();
  command
      .add_option("--repetition-penalty", request.sampling.repetition_penalty,
                  "divide the logits of tokens that stood in the text before; 1: off")
      .show_default();
  request.batch = 0;
  command
      .add_option("--batch-size", request.batch,
                  "sequences that are continued at once; default: 16, with --weight-arena as many as compute for as "
                  "long as layers load, which is measured")
      .positive();
  command.add_flag("--no-invariant", options->varies,
                   "CPU: faster GEMMs for prompts, by which logits may differ in their last bits with the batch");
  command.add_flag("--beyond-context", request.beyond_context,
                   "let a text get longer than the model's max_seq_len, where it was not trained");
  command.add_option("--seed", request.sampling.seed, "from which every draw follows").show_default();
  command.add_option("--stop", request.stop, "end a sequence after this token; may be given several times");
  add_compute_options(command, request.precision, request.device, request.weights, options->serving);
  add_serving_options(command, options->serving, /*replicas=*/true);
  command.callback([options, prompt, &context] {
    options->has_prompt = prompt.given();
    context.run = [options, &context] { return run_generate(*options, context); };
  });
}

}  // namespace trireme::cli
