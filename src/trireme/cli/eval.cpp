// trireme eval: the loss of a model on data it was not trained on, or how it answers tasks.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/print.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/cli/tasks/eval_tasks.h"

namespace trireme::cli {
namespace {

struct EvalOptions {
  train::EvalRequest request;
  std::vector<std::string> data;
  std::optional<std::string> tokenizer;
  std::optional<std::int64_t> sequence;
  std::optional<int> ranks;
  bool json = false;
  EvalTasks tasks;
};

void print(const train::EvalResult& result, bool json, std::ostream& out) {
  if (json) {
    nlohmann::ordered_json object{{"loss", result.loss},
                                  {"perplexity", result.perplexity},
                                  {"bits_per_byte", nullptr},
                                  {"samples", result.samples},
                                  {"targets", result.targets}};
    if (result.bits_per_byte) object["bits_per_byte"] = *result.bits_per_byte;
    if (result.best_loss) object["best_loss"] = *result.best_loss;
    for (const observe::NamedLoss& term : result.losses) {
      object["losses"][term.name] = {{"mean", term.mean}, {"weight", term.weight}};
    }
    fmt::print(out, "{}\n", object.dump());
    return;
  }
  fmt::print(out, "loss           {:.4f} nats a token, over {:.0f} tokens of {} samples\n", result.loss, result.targets,
             result.samples);
  fmt::print(out, "perplexity     {:.4g}\n", result.perplexity);
  if (result.bits_per_byte) fmt::print(out, "bits per byte  {:.4f}\n", *result.bits_per_byte);
  if (result.best_loss) fmt::print(out, "best possible  {:.4f} nats a token\n", *result.best_loss);
  for (const observe::NamedLoss& term : result.losses) {
    fmt::print(out, "{:<13}  {:.6g}, weight {} in the total\n", term.name, term.mean, term.weight);
  }
}

int run_eval(EvalOptions& options, Context& context) {
  if (!options.tasks.tasks.empty()) {
    if (!options.data.empty() || options.sequence || options.request.samples)
      throw ConfigError("--data, --seq-len and --samples are for losses, not for --tasks", "leave them out");
    options.tasks.json = options.json;
    return run_eval_tasks(options.tasks,
                          {.model = options.request.model,
                           .questions = {},
                           .tokenizer = options.tokenizer,
                           .rows = std::max<std::int64_t>(options.request.rows, 8),
                           .precision = options.request.precision,
                           .device = options.request.device,
                           .tp = options.request.tp},
                          options.ranks, context);
  }
  if (options.tasks.shots) throw ConfigError("--num-fewshot is for --tasks", "give --tasks TASK, or leave it out");
  if (!options.data.empty()) {
    spec::DataConfig data;
    data.tokenizer = options.tokenizer;
    options.request.seq_len = options.sequence;
    data.shuffle = false;
    for (const std::string& path : options.data) data.sources.push_back({.path = path});
    options.request.data = data;
  } else if (options.tokenizer || options.sequence) {
    throw ConfigError("--tokenizer and --seq-len are for data given with --data or --tasks",
                      "give --data FILE, or leave them out");
  }
  spec::Recipe recipe;
  recipe.comm.ranks = options.ranks;
  options.request.local_ranks = local_ranks(recipe);
  const train::Commands& commands = load_train();
  start_ranks(recipe, [&](comm::Rank& rank) {
    const train::EvalResult result = commands.evaluate(options.request, rank);
    if (rank.rank() == 0) print(result, options.json, context.out);
  });
  return kExitFine;
}

}  // namespace

void add_eval_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("eval", "Loss, perplexity and bits per byte of a model on data, or its answers to tasks");
  command.footer(
      "Without --data: on the run's validation data. Bits per byte need the tokenizer, which a run knows.\n"
      "Tasks (--tasks) are files (.jsonl, .toml, lm-evaluation-harness .yaml) or made from a seed: addition, modular,\n"
      "copy, reverse, cloze. Metrics come with chance level, resolution floor and 95 % intervals.\n"
      "\n"
      "Examples:\n"
      "  trireme eval runs/tiny\n"
      "  trireme eval runs/tiny/checkpoints/step-00000200 --samples 100\n"
      "  trireme eval models/gpt2 --data held-out.shard --seq-len 1024\n"
      "  trireme eval runs/adder --tasks addition:digits=3,count=500,split=test --num-fewshot 2 --json");
  const auto options = std::make_shared<EvalOptions>();  // shared with the callback
  command.add_option("MODEL", options->request.model, "a run, one of its checkpoints, or a Hugging Face directory")
      .required();
  command.add_option("--data", options->data, "shards, folders of shards, or with the tokenizer \"bytes\" text files");
  command.add_option("--tasks", options->tasks.tasks, "task files or generated tasks, such as addition:digits=3")
      .type_name("TASK");
  command.add_option("--num-fewshot", options->tasks.shots, "examples before each question; default: as the task says")
      .not_negative();
  command.add_option("--task-seed", options->tasks.seed, "which examples stand before which question").show_default();
  command.add_option("--tokenizer", options->tokenizer,
                     "of --data or --tasks: a tokenizer.json, its folder, or \"bytes\"");
  command
      .add_option("--seq-len", options->sequence,
                  "sequence length of --data, in tokens; default: the run's, or of a published model at most 1024")
      .positive();
  command.add_flag("--beyond-context", options->request.beyond_context,
                   "allow sequences longer than the model's max_seq_len, where it was not trained");
  command.add_option("--samples", options->request.samples, "at most this many samples").positive();
  command.add_option("--micro-batch-size", options->request.rows, "sequences that go through the model at once")
      .show_default()
      .positive();
  add_choice<spec::Precision>(command, "--precision", options->request.precision,
                              {{"fp32", spec::Precision::kFp32}, {"bf16", spec::Precision::kBf16}}, "to compute with");
  add_choice<spec::DeviceKind>(command, "--device", options->request.device,
                               {{"cpu", spec::DeviceKind::kCpu}, {"cuda", spec::DeviceKind::kCuda}}, "to compute on");
  command.add_option("--tp", options->request.tp, "of them, ranks that split each matrix (tensor parallelism)")
      .show_default()
      .positive();
  command.add_option("--ranks", options->ranks, "ranks that share the samples").positive();
  command.add_flag("--json", options->json, "as one line of JSON");
  command.callback([options, &context] { context.run = [options, &context] { return run_eval(*options, context); }; });
}

}  // namespace trireme::cli
