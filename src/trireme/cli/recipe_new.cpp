// trireme recipe new: a commented recipe for a model of a given size on given data, ready to run.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/token_file.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/data/vocab_size.h"
#include "trireme/spec/size_model.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct NewRecipe {
  std::string family = "llama", parameters = "10M", tokenizer;
  fs::path data, out;
};

spec::Family family_of(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& entry : spec::enum_names(std::type_identity<spec::Family>())) {
    const bool causal = spec::task_of(spec::family_shape(entry.value)) == spec::DataTask::kCausal;
    if (entry.name == name && causal) return entry.value;
    if (causal) names.emplace_back(entry.name);
  }
  throw ConfigError(
      fmt::format("--family: \"{}\" is no family that is trained on plain text{}", name, did_you_mean(name, names)),
      fmt::format("give one of {}", listed(names)));
}

/// The tokenizer.json that lies with the shards, or beside their folder; "bytes" for text.
std::string find_tokenizer(const NewRecipe& options) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const auto paths = data::token_paths(options.data);
  if (data::TokenFile(paths.front()).format() == data::TokenFormat::kBytes) return "bytes";
  const fs::path folder = fs::is_directory(options.data) ? options.data : options.data.parent_path();
  const fs::path above = fs::absolute(folder).lexically_normal().parent_path();
  for (const fs::path& place : {folder / "tokenizer.json", fs::proximate(above) / "tokenizer.json"}) {
    if (fs::exists(place)) return place.string();
  }
  return {};
}

/// As the recipe has to say it: from its own folder.
std::string from_recipe(const fs::path& path, const fs::path& recipe) {
  const fs::path folder = fs::absolute(recipe).lexically_normal().parent_path();
  return fs::absolute(path).lexically_normal().lexically_proximate(folder).string();
}

std::string text_of(const NewRecipe& options) {
  if (!fs::exists(options.data)) {
    throw ConfigError(fmt::format("--data: {} does not exist", options.data.string()),
                      "give a .txt file, a token shard, or a folder of them; `trireme tokenize` makes shards of text");
  }
  const spec::Family family = family_of(options.family);
  const std::int64_t wanted = parse_count(options.parameters);
  spec::Recipe recipe;
  recipe.model.family = family;
  recipe.data.sources = {{.path = options.data.string()}};
  const std::string tokenizer = find_tokenizer(options);
  if (!tokenizer.empty()) recipe.data.tokenizer = tokenizer;
  const auto vocabulary = data::vocab_size_of(recipe);
  const std::int64_t rows = vocabulary ? vocabulary->padded() : spec::family_shape(family).vocab_size;
  const std::int64_t length = wanted < 50'000'000 ? 256 : 1024;
  const spec::ModelConfig model = spec::sized_model(family, wanted, rows, length);
  const auto parameters = static_cast<double>(spec::count_parameters(*spec::shape_of(model)).total());
  const double rate = parameters < 5e6 ? 3e-3 : parameters < 50e6 ? 1e-3 : parameters < 500e6 ? 6e-4 : 3e-4;
  std::int64_t tokens = 0;
  for (const auto& path : data::token_paths(options.data)) tokens += data::TokenFile(path).tokens();

  std::string text = fmt::format(
      "# {} of about {} parameters on {}. Made by `trireme recipe new`; every key: `trireme recipe docs`.\n"
      "#\n"
      "#   trireme train {}\n"
      "[run]\n"
      "name = \"{}\"\n"
      "# device = \"cuda\"\n"
      "seed = 1\n\n"
      "[model]\n"
      "family = \"{}\"\n"
      "hidden_size = {}\n"
      "num_layers = {}\n"
      "num_heads = {}  # of {} dimensions each\n"
      "max_seq_len = {}\n"
      "# vocab_size follows from the tokenizer or the data: {}\n"
      "# num_kv_heads, head_dim and ffn_size follow from the above\n\n",
      options.family, short_count(parameters), options.data.string(), options.out.string(), options.out.stem().string(),
      options.family, *model.hidden_size, *model.num_layers, *model.num_heads, *model.hidden_size / *model.num_heads,
      length, rows);
  const std::string named = tokenizer.empty() || tokenizer == "bytes" ? tokenizer : from_recipe(tokenizer, options.out);
  text += fmt::format(
      "# {} tokens. Paths are those of files beside this one, else of the folder in which the command runs.\n"
      "[data]\n"
      "seq_len = {}\n"
      "{}"
      "validation_fraction = 0.05\n\n"
      "[[data.sources]]\n"
      "path = \"{}\"\n\n",
      exact_count(tokens), length, named.empty() ? std::string() : fmt::format("tokenizer = \"{}\"\n", named),
      from_recipe(options.data, options.out));
  text += fmt::format(
      "[batch]\n"
      "global_batch_tokens = {}  # {} sequences a step\n\n"
      "[train]\n"
      "steps = 1000\n"
      "# micro_batch_size = 4  # sequences at once on each rank: less memory; gradients are accumulated\n\n"
      "[optim]\n"
      "learning_rate = {}\n"
      "weight_decay = 0.1\n"
      "beta2 = 0.95\n"
      "grad_clip_norm = 1.0\n\n"
      "# Ends with the run.\n"
      "[lr_schedule]\n"
      "kind = \"cosine\"\n"
      "warmup = 50\n"
      "minimum = 0.1\n\n"
      "[eval]\n"
      "every = 100\n\n"
      "[checkpoint]\n"
      "every = 200\n",
      16 * length, 16, rate);
  return text;
}

}  // namespace

void add_recipe_new(Command& recipe, Context& context) {
  Command& command = recipe.add_subcommand("new", "Write a commented recipe for a model of a given size on given data");
  command.footer(
      "Examples:\n"
      "  trireme recipe new --family llama --params 10M --data book.txt --out book.toml\n"
      "  trireme recipe new --params 100M --data corpus/shards --tokenizer corpus/tokenizer.json --out mine.toml");
  const auto options = std::make_shared<NewRecipe>();  // shared with the callback
  command.add_option("--family", options->family, "Model family: gpt2, llama, mistral, qwen2 or qwen3");
  command.add_option("--params", options->parameters, "Parameters of the model, about: 10M, 1.5B").type_name("COUNT");
  command.add_option("--data", options->data, "A .txt file, a token shard, or a folder of them")
      .required()
      .type_name("PATH");
  command.add_option("--tokenizer", options->tokenizer,
                     "The tokenizer.json that made the shards, or \"bytes\"; default: the one beside them");
  command.add_option("-o,--out", options->out, "The recipe to write").required().type_name("FILE");
  command.callback([&context, options] {
    context.run = [&context, options] {
      if (fs::exists(options->out)) {
        throw ConfigError(fmt::format("{} is already there", options->out.string()),
                          "give another --out, or remove it");
      }
      const std::string text = text_of(*options);
      spec::load_recipe({.file = options->out.string(), .text = text});  // what is written can be read
      write_text_file(options->out, text);
      fmt::print(context.out, "{} is written; train with: trireme train {}\n", options->out.string(),
                 options->out.string());
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
