// trireme recipe import: a recipe from a configuration of DeepSpeed, Megatron-LM or torchtitan.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/formats/json_text.h"
#include "trireme/spec/import/import.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using config::Node;

struct RecipeImportOptions {
  fs::path deepspeed, torchtitan, out;
  std::string megatron;
  std::vector<std::string> sets, leave_out;
};

constexpr std::uint64_t kMostConfigBytes = 64 << 20;

Node node_of(const nlohmann::ordered_json& json) {
  Node node;
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::object:
      for (const auto& [name, value] : json.items()) node.members.push_back({.name = name, .value = node_of(value)});
      break;
    case Type::array:
      node.kind = Node::Kind::kList;
      for (const auto& value : json) node.items.push_back(node_of(value));
      break;
    case Type::boolean:
      node.kind = Node::Kind::kBool;
      node.boolean = json.get<bool>();
      break;
    case Type::number_integer:
    case Type::number_unsigned:
      node.kind = Node::Kind::kWhole;
      node.whole = json.get<std::int64_t>();
      break;
    case Type::number_float:
      node.kind = Node::Kind::kReal;
      node.real = json.get<double>();
      break;
    default:
      node.kind = Node::Kind::kText;
      node.text = json.is_string() ? json.get<std::string>() : "null";
  }
  return node;
}

/// A file of arguments where there is one by that name, else the arguments themselves.
std::string megatron_text(const std::string& given) {
  std::error_code none;
  return !given.starts_with("--") && fs::is_regular_file(given, none) ? read_text_file(given, kMostConfigBytes) : given;
}

std::string imported(const RecipeImportOptions& options) {
  spec::ImportOptions import{.file = {}, .sets = options.sets, .leave_out = options.leave_out};
  if (!options.deepspeed.empty()) {
    import.file = options.deepspeed.filename().string();
    const auto json = formats::parse_json(read_text_file(options.deepspeed, kMostConfigBytes), import.file);
    if (!json.is_object())
      throw ConfigError(fmt::format("{} is no JSON object", import.file), "give DeepSpeed's configuration");
    return import_recipe(spec::deepspeed_source(), node_of(json), import);
  }
  if (!options.torchtitan.empty()) {
    import.file = options.torchtitan.filename().string();
    try {
      return import_recipe(spec::torchtitan_source(),
                           config::parse_toml(read_text_file(options.torchtitan, kMostConfigBytes)), import);
    } catch (const config::SyntaxError& error) {
      throw ConfigError(fmt::format("{}:{}: {}", import.file, error.line, error.reason), "is it a TOML file?");
    }
  }
  import.file = "arguments";
  return import_recipe(spec::megatron_source(), spec::parse_arguments(megatron_text(options.megatron)), import);
}

}  // namespace

void add_recipe_import(Command& recipe, Context& context) {
  Command& command = recipe.add_subcommand(
      "import",
      "Write a recipe from a configuration of DeepSpeed, Megatron-LM or torchtitan; no key is dropped in silence");
  command.footer(
      "Each key becomes recipe keys, is listed at the end as without effect, or is refused.\n\nExamples:\n"
      "  trireme recipe import --deepspeed ds_config.json --set model.family=gpt2 --set data.seq_len=2048 -o run.toml\n"
      "  trireme recipe import --megatron \"--num-layers 24 --hidden-size 1024 ...\" -o run.toml\n"
      "  trireme recipe import --torchtitan llama3_8b.toml --leave-out metrics.enable_wandb");
  const auto options =
      std::make_shared<RecipeImportOptions>();  // shared with the callback, which outlives this function
  const Option deepspeed = command.add_option("--deepspeed", options->deepspeed, "DeepSpeed's JSON").type_name("FILE");
  Option megatron =
      command.add_option("--megatron", options->megatron, "Megatron-LM's arguments in one text, or a file of them");
  megatron.type_name("ARGS").excludes(deepspeed);
  Option torchtitan = command.add_option("--torchtitan", options->torchtitan, "torchtitan's TOML");
  torchtitan.type_name("FILE").excludes(deepspeed).excludes(megatron);
  command
      .add_option("--set", options->sets, "A key of the recipe that the configuration does not have, or has otherwise")
      .type_name("KEY=VALUE")
      .take_all()
      .one_at_a_time();
  command.add_option("--leave-out", options->leave_out, "A key of the configuration that is left out knowingly")
      .type_name("KEY")
      .take_all()
      .one_at_a_time();
  command.add_option("-o,--out", options->out, "The recipe to write [default: print it]").type_name("FILE");
  command.callback([&context, options] {
    context.run = [&context, options] {
      if (options->deepspeed.empty() && options->megatron.empty() && options->torchtitan.empty()) {
        throw ConfigError("nothing to import is given", "give --deepspeed, --megatron or --torchtitan");
      }
      if (!options->out.empty() && fs::exists(options->out)) {
        throw ConfigError(fmt::format("{} is already there", options->out.string()),
                          "give another --out, or remove it");
      }
      const std::string text = imported(*options);
      // What is written can be read; what is refused now would be refused by every command.
      spec::load_recipe({.file = options->out.empty() ? "the imported recipe" : options->out.string(), .text = text});
      if (options->out.empty()) {
        context.out << text;
      } else {
        write_text_file(options->out, text);
        fmt::print(context.out, "{} is written; check it with: trireme check {}\n", options->out.string(),
                   options->out.string());
      }
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
