// trireme convert: models between our folders and Hugging Face's.
#include <fmt/ostream.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "trireme/cli/choices.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"

namespace trireme::cli {

void add_convert_command(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("convert", "A model from our folders to Hugging Face's, or back");
  command->footer(
      "The new folder appears whole or not at all. A Hugging Face folder is written with config.json, safetensors and\n"
      "the run's tokenizer; a checkpoint of ours holds the weights, to start from with model.init_from.\n"
      "\n"
      "Examples:\n"
      "  trireme convert runs/tiny exported\n"
      "  trireme convert runs/tiny exported --dtype BF16\n"
      "  trireme convert models/gpt2 imported --to checkpoint");
  const auto request = std::make_shared<train::ConvertRequest>();  // shared with CLI11's callback
  command->add_option("FROM", request->from, "a run, one of its checkpoints, or a Hugging Face directory")->required();
  command->add_option("INTO", request->to, "the folder to make")->required();
  using Kind = train::ConvertRequest::Kind;
  add_choice<Kind>(*command, "--to", request->kind,
                   {{"huggingface", Kind::kHuggingFace}, {"checkpoint", Kind::kCheckpoint}},
                   "what to make; default huggingface");
  command->add_option("--dtype", request->dtype, "of published tensors: F32, BF16 or F16")->capture_default_str();
  command->callback([request, &context] {
    context.run = [request, &context] {
      const train::ConvertResult result = load_train().convert(*request);
      fmt::print(context.out, "{}: {} parameters in {} tensors\n", request->to.string(), result.parameters,
                 result.tensors);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
