// trireme convert: models between our folders and Hugging Face's.

#include <map>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/formats/checkpoint_rewrite.h"

namespace trireme::cli {
namespace {

/// The newest whole checkpoint of a run, or the checkpoint itself.
formats::CheckpointFolder open_stored(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / formats::kManifestFile)) return formats::CheckpointFolder(path);
  std::vector<formats::DamagedCheckpoint> damaged;
  auto found = formats::newest_checkpoint(path / "checkpoints", damaged);
  for (const auto& [where, why] : damaged) log_warn("{} is damaged and not used: {}", where.string(), why);
  if (!found) {
    throw ConfigError(fmt::format("{} is no checkpoint and no run with a complete one", path.string()),
                      "give a run, or a folder such as RUN/checkpoints/step-00000020");
  }
  return std::move(*found);
}

struct RewriteOptions {
  std::filesystem::path from, to;
  int parts = 1;
  bool weights = false;
};

void add_reshard(Command& convert, Context& context) {
  Command& command = convert.add_subcommand("reshard", "The same checkpoint in another number of files");
  command.footer(
      "Training never needs this: any number of ranks reads any checkpoint. Streams, so memory does not limit it.\n"
      "\n"
      "Examples:\n"
      "  trireme convert reshard runs/tiny/checkpoints/step-00000200 moved --parts 4");
  const auto options = std::make_shared<RewriteOptions>();  // shared with the callback
  command.add_option("FROM", options->from, "a checkpoint, or a run: its newest complete one").required();
  command.add_option("INTO", options->to, "the folder to make").required();
  command.add_option("--parts", options->parts, "how many files").within(1, 99999).show_default();
  command.callback([options, &context] {
    context.run = [options, &context] {
      formats::reshard_checkpoint(open_stored(options->from), options->to, options->parts);
      fmt::print(context.out, "{}: {}\n", options->to.string(),
                 counted(formats::CheckpointFolder(options->to).manifest().parts.size(), "file"));
      return kExitFine;
    };
  });
}

void add_single(Command& convert, Context& context) {
  Command& command = convert.add_subcommand("single", "A checkpoint's tensors, whole, as one safetensors file");
  command.footer(
      "Examples:\n"
      "  trireme convert single runs/tiny state.safetensors\n"
      "  trireme convert single runs/tiny weights.safetensors --weights");
  const auto options = std::make_shared<RewriteOptions>();  // shared with the callback
  command.add_option("FROM", options->from, "a checkpoint, or a run: its newest complete one").required();
  command.add_option("INTO", options->to, "the file to write").required();
  command.add_flag("--weights", options->weights, "parameters only, by their own names");
  command.callback([options, &context] {
    context.run = [options, &context] {
      const auto count =
          formats::export_checkpoint(open_stored(options->from), options->to,
                                     options->weights ? formats::Export::kWeights : formats::Export::kEverything);
      fmt::print(context.out, "{}: {}\n", options->to.string(), counted(static_cast<std::size_t>(count), "tensor"));
      return kExitFine;
    };
  });
}

}  // namespace

void add_convert_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("convert", "A model from our folders to Hugging Face's, or back");
  command.footer(
      "The new folder appears whole or not at all. A Hugging Face folder is written with config.json, safetensors and\n"
      "the run's tokenizer; a checkpoint of ours holds the weights, to start from with model.init_from.\n"
      "\n"
      "Examples:\n"
      "  trireme convert runs/tiny exported\n"
      "  trireme convert runs/tiny exported --dtype BF16\n"
      "  trireme convert models/gpt2 imported --to checkpoint\n"
      "  trireme convert reshard runs/tiny moved --parts 4\n"
      "  trireme convert single runs/tiny weights.safetensors --weights");
  const auto request = std::make_shared<train::ConvertRequest>();  // shared with the callback
  command.add_option("FROM", request->from, "a run, one of its checkpoints, or a Hugging Face directory");
  command.add_option("INTO", request->to, "the folder to make");
  using Kind = train::ConvertRequest::Kind;
  add_choice<Kind>(command, "--to", request->kind,
                   {{"huggingface", Kind::kHuggingFace}, {"checkpoint", Kind::kCheckpoint}},
                   "what to make; default huggingface");
  command
      .add_option(
          "--dtype", request->dtype,
          "of published tensors: F32, BF16, F16, or F8_E4M3: matrices of layers with a scale for each 128 x 128")
      .show_default();
  add_reshard(command, context);
  add_single(command, context);
  command.require_subcommand(0, 1);
  command.callback([request, &command, &context] {
    if (command.has_chosen_subcommand()) return;
    if (request->from.empty() || request->to.empty()) {
      throw ConfigError(fmt::format("{} is required", request->from.empty() ? "FROM" : "INTO"),
                        "see trireme convert --help");
    }
    context.run = [request, &context] {
      const train::ConvertResult result = load_train().convert(*request);
      fmt::print(context.out, "{}: {} parameters in {} tensors\n", request->to.string(), result.parameters,
                 result.tensors);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
