// trireme generate: continues token lists with a published model.
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "trireme/cli/commands.h"
#include "trireme/cli/serve_commands.h"

namespace trireme::cli {

void add_generate_command(CLI::App& app, Context& context) {
  auto* command = app.add_subcommand("generate", "Continue token lists with a published model");
  command->footer(
      "Prints one JSON list of new tokens for each list that was given. The same seed gives the same tokens, whatever\n"
      "else is generated beside.\n"
      "\n"
      "Example:\n"
      "  echo '[[15496, 11]]' > ids.json\n"
      "  trireme generate --hf models/gpt2 --ids ids.json --tokens 20 --temperature 0.8 --top-p 0.95 --seed 1");
  auto request = std::make_shared<serve::GenerateRequest>();
  auto ids = std::make_shared<std::filesystem::path>();
  command->add_option("--hf", request->model, "Hugging Face directory: config.json and safetensors")->required();
  command->add_option("--ids", *ids, "JSON file: a list of lists of token numbers, one a prompt")->required();
  command->add_option("--tokens", request->tokens, "new tokens for each prompt")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--temperature", request->temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", request->top_k, "draw among this many likeliest tokens only; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-p", request->top_p, "draw among the fewest tokens that together have this probability")
      ->capture_default_str();
  command->add_option("--seed", request->seed, "from which every draw follows")->capture_default_str();
  command->add_option("--stop", request->stop, "end a sequence after this token; may be given several times");
  command->add_option("--precision", request->precision, "fp32 or bf16")
      ->transform(CLI::CheckedTransformer(std::map<std::string, serve::GeneratePrecision>{
          {"fp32", serve::GeneratePrecision::kFp32}, {"bf16", serve::GeneratePrecision::kBf16}}));
  command->callback([request, ids, &context] {
    context.run = [request, ids, &context] {
      request->prompts = formats::read_token_lists(*ids, /*equal=*/false);
      for (const auto& added : load_serve().generate(*request)) {
        fmt::print(context.out, "[{}]\n", fmt::join(added, ", "));
      }
      return 0;
    };
  });
}

}  // namespace trireme::cli
