// trireme quantize: a model with quantised matrices, and what that costs.

#include <filesystem>
#include <map>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"

namespace trireme::cli {
namespace {

struct QuantizeOptions {
  train::ConvertRequest convert{.dtype = "BF16"};
  train::EvalRequest eval;
  std::vector<std::string> data;
  std::optional<std::string> tokenizer;
  bool unmeasured = false;
};

std::uintmax_t tensor_bytes(const std::filesystem::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  return bytes;
}

double loss_of(train::EvalRequest request, const std::filesystem::path& model) {
  request.model = model;
  spec::Recipe recipe;
  recipe.comm.ranks = 1;
  request.local_ranks = local_ranks(recipe);
  const train::Commands& commands = load_train();
  double loss = 0;
  start_ranks(recipe, [&](comm::Rank& rank) { loss = commands.evaluate(request, rank).loss; });
  return loss;
}

int run_quantize(QuantizeOptions& options, Context& context) {
  train::ConvertRequest& convert = options.convert;
  const bool is_run = !std::filesystem::exists(convert.from / "config.json");
  if (!options.data.empty()) {
    spec::DataConfig data;
    data.tokenizer = options.tokenizer;
    data.shuffle = false;
    for (const std::string& path : options.data) data.sources.push_back({.path = path});
    options.eval.data = data;
  } else if (options.tokenizer || options.eval.seq_len) {
    throw ConfigError("--tokenizer and --seq-len are for data given with --data", "give --data FILE");
  } else if (is_run) {
    options.eval.data_of = convert.from;
  } else if (!options.unmeasured) {
    throw ConfigError(fmt::format("{} is a published model, which says nothing of data", convert.from.string()),
                      "say what to measure the loss on, --data FILE --tokenizer TOKENIZER, or --no-loss");
  }
  double before = 0;
  if (!options.unmeasured) before = loss_of(options.eval, convert.from);
  const train::ConvertResult result = load_train().convert(convert);
  fmt::print(context.out, "{}: {} parameters in {} tensors, {:.2f} MB\n", convert.to.string(), result.parameters,
             result.tensors, static_cast<double>(tensor_bytes(convert.to)) / 1e6);
  if (options.unmeasured) return kExitFine;
  const double after = loss_of(options.eval, convert.to);
  fmt::print(context.out, "loss before  {:.6f} nats a token\nloss after   {:.6f}  ({:+.3f} %)\n", before, after,
             100 * (after / before - 1));
  return kExitFine;
}

}  // namespace

void add_quantize_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("quantize", "A model's matrices in int8, int4 or FP8, with the loss before and after");
  command.footer(
      "Writes a Hugging Face folder that generate, serve, eval and convert read: int4 in GPTQ's layout or AWQ's, int8 "
      "and\n"
      "FP8 as compressed-tensors has them, a scale an output. Rounds to nearest; no data is used but to measure the "
      "loss.\n"
      "Embeddings, head, norms, routers, experts and latent projections stay plain.\n"
      "\n"
      "Examples:\n"
      "  trireme quantize runs/tiny smaller --weights int8\n"
      "  trireme quantize runs/tiny smallest --weights int4 --group-size 32 --layout awq\n"
      "  trireme quantize models/gpt2 smaller --weights fp8 --no-loss");
  const auto options = std::make_shared<QuantizeOptions>();  // shared with the callback
  train::ConvertRequest& convert = options->convert;
  convert.bits = train::ConvertRequest::Bits::kInt8;
  command.add_option("FROM", convert.from, "a run, one of its checkpoints, or a Hugging Face directory").required();
  command.add_option("INTO", convert.to, "the folder to make").required();
  using Bits = train::ConvertRequest::Bits;
  add_choice<Bits>(command, "--weights", convert.bits,
                   {{"int8", Bits::kInt8}, {"int4", Bits::kInt4}, {"fp8", Bits::kFp8}},
                   "what matrices of attention and MLPs become; default int8");
  command.add_option("--group-size", convert.group, "int4: neighbouring inputs that share a scale")
      .show_default()
      .positive();
  using Layout = train::ConvertRequest::Int4Layout;
  add_choice<Layout>(command, "--layout", convert.int4_layout, {{"gptq", Layout::kGptq}, {"awq", Layout::kAwq}},
                     "int4: whose files it looks like; default gptq");
  command.add_flag("--symmetric", convert.symmetric, "int4: without zero points");
  command.add_option("--dtype", convert.dtype, "of the other tensors: F32, BF16, F16").show_default();
  command.add_option("--data", options->data,
                     "shards, or with the tokenizer \"bytes\" text files, to measure the loss on; default: a run's "
                     "validation data");
  command.add_option("--tokenizer", options->tokenizer, "of --data: a tokenizer.json, its folder, or \"bytes\"");
  command.add_option("--seq-len", options->eval.seq_len, "sequence length of --data, in tokens").positive();
  command.add_option("--samples", options->eval.samples, "at most this many samples").positive();
  command.add_flag("--no-loss", options->unmeasured, "do not measure the loss");
  command.callback(
      [options, &context] { context.run = [options, &context] { return run_quantize(*options, context); }; });
}

}  // namespace trireme::cli
