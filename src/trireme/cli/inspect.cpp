// trireme inspect: what is in a checkpoint, a run, a shard, a tokenizer or a published model.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/token_file.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/hf_directory.h"
#include "trireme/formats/safetensors.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct InspectOptions {
  fs::path path;
  bool verify = false, entropy = false;
  std::size_t tensors = 20;
};

std::string bytes_text(std::uint64_t bytes) { return short_bytes(static_cast<double>(bytes)); }

void print_tensors(const formats::SafetensorsHeader& header, std::size_t most, std::ostream& out) {
  TextTable table({{"tensor"}, {"type and shape"}, {"size"}});
  for (std::size_t i = 0; i < std::min(most, header.tensors.size()); ++i) {
    const formats::TensorInfo& tensor = header.tensors[header.by_name[i]];
    table.add({formats::shown(tensor.name), formats::to_text(static_cast<const formats::TensorSpec&>(tensor)),
               bytes_text(tensor.bytes())});
  }
  fmt::print(out, "{}", table.text());
  if (header.tensors.size() > most) {
    fmt::print(out, "and {} more (--tensors 0 lists all)\n", header.tensors.size() - most);
  }
}

void print_stored(const formats::CheckpointManifest& manifest, std::size_t most, std::ostream& out) {
  TextTable table({{"tensor"}, {"type and shape"}, {"size"}, {"slices"}});
  std::size_t listed = 0;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (listed++ == most) break;
    std::vector<std::string> slices;
    for (const formats::StoredSlice& slice : tensor.slices) {
      if (slices.size() == 4 && tensor.slices.size() > 5) {
        slices.push_back(fmt::format("and {} more", tensor.slices.size() - 4));
        break;
      }
      slices.push_back(fmt::format("{} in {}", formats::slice_text(tensor, slice), slice.part));
    }
    table.add({formats::shown(name), formats::to_text({name, tensor.dtype, tensor.shape}), bytes_text(tensor.bytes()),
               manifest.parts.size() > 1 ? fmt::format("{}", fmt::join(slices, ", ")) : std::string("whole")});
  }
  fmt::print(out, "{}", table.text());
  if (manifest.tensors.size() > most) {
    fmt::print(out, "and {} more (--tensors 0 lists all)\n", manifest.tensors.size() - most);
  }
}

void inspect_checkpoint(const InspectOptions& options, std::ostream& out) {
  const formats::CheckpointFolder checkpoint(options.path);
  const formats::CheckpointManifest& manifest = checkpoint.manifest();
  fmt::print(out, "checkpoint {}\n", options.path.string());
  fmt::print(out, "  format  {}{}\n", manifest.version,
             manifest.program.empty() ? std::string() : fmt::format(", written by trireme {}", manifest.program));
  fmt::print(out, "  step    {}, after {} tokens\n", manifest.step, manifest.tokens);
  fmt::print(out, "  state   {} in {}, {}, hash {}\n", counted(manifest.tensors.size(), "tensor"),
             counted(manifest.parts.size(), "file"), bytes_text(manifest.bytes()), formats::hex(manifest.hash));
  if (manifest.metric) fmt::print(out, "  metric  {}\n", *manifest.metric);
  for (const auto& [name, value] : manifest.values->items()) {
    std::string text = value.dump();
    if (text.size() > 100) text.replace(97, std::string::npos, "...");
    fmt::print(out, "  value   {} = {}\n", name, text);
  }
  for (std::size_t part = 0; part < manifest.parts.size(); ++part) {
    fmt::print(out, "  file {:2} {}, {}\n", part, manifest.parts[part].name, bytes_text(manifest.parts[part].bytes));
  }
  if (options.verify) {
    checkpoint.verify();
    fmt::print(out, "  every tensor has its checksum\n");
  }
  print_stored(manifest, options.tensors, out);
}

/// False: a checkpoint is damaged.
bool inspect_run(const InspectOptions& options, std::ostream& out) {
  bool whole = true;
  const fs::path folder = options.path / "checkpoints";
  fmt::print(out, "run {}\n", options.path.string());
  for (const std::int64_t step : formats::list_checkpoints(folder)) {
    const fs::path path = folder / formats::checkpoint_name(step);
    try {
      const formats::CheckpointFolder checkpoint(path);
      if (options.verify) checkpoint.verify();
      fmt::print(out, "  {}: {}, hash {}{}\n", path.string(), bytes_text(checkpoint.manifest().bytes()),
                 formats::hex(checkpoint.manifest().hash), options.verify ? ", whole" : "");
    } catch (const IoError& error) {
      fmt::print(out, "  {}: damaged: {}\n", path.string(), error.message());
      whole = false;
    }
  }
  fmt::print(out, "  see also: trireme report {}\n", options.path.string());
  return whole;
}

void inspect_published(const InspectOptions& options, std::ostream& out) {
  const formats::HfDirectory directory(options.path);
  std::uint64_t bytes = 0;
  for (const formats::SafetensorsFile& file : directory.files()) bytes += file.header().data_bytes();
  fmt::print(out, "published model {}: {}, {} in {}, {}\n", options.path.string(),
             directory.config().get<std::string>("model_type"), counted(directory.tensors().size(), "tensor"),
             counted(directory.files().size(), "file"), bytes_text(bytes));
  for (const formats::SafetensorsFile& file : directory.files()) print_tensors(file.header(), options.tensors, out);
}

void inspect_tokenizer(const InspectOptions& options, std::ostream& out) {
  const auto tokenizer = data::load_tokenizer(options.path.string());
  fmt::print(out, "tokenizer {}: {} tokens, hash {}\n", options.path.string(), tokenizer->vocab_size(),
             tokenizer->hash());
  const auto role = [&](const char* name, const std::optional<std::int32_t>& id) {
    if (id) fmt::print(out, "  {} is {}\n", name, *id);
  };
  role("begin of text", tokenizer->roles().bos);
  role("end of text", tokenizer->roles().eos);
  role("mask", tokenizer->roles().mask);
  role("cls", tokenizer->roles().cls);
  role("sep", tokenizer->roles().sep);
  role("pad", tokenizer->roles().pad);
  constexpr std::string_view kExample = "The quick brown fox counts to 1,024; \xc3\xa9t\xc3\xa9 \xe2\x82\xac.";
  const auto ids = tokenizer->encode(kExample);
  fmt::print(out, "  \"{}\" becomes {}: {}\n", kExample, counted(ids.size(), "token"), fmt::join(ids, " "));
}

void inspect_shard(const InspectOptions& options, std::ostream& out) {
  const data::TokenFile file(options.path);
  if (options.verify) file.verify();
  for (const std::string& line : data::describe(file, options.verify)) fmt::print(out, "{}\n", line);
  if (options.entropy) {
    fmt::print(out,
               "unigram entropy {:.4f} nats a token: the loss of a model that knows only how frequent tokens are\n",
               data::unigram_entropy(file));
  }
}

void inspect_shards(const InspectOptions& options, std::ostream& out) {
  for (const std::string& line : data::describe_folder(options.path, options.verify, options.tensors))
    fmt::print(out, "{}\n", line);
}

/// A folder that `trireme tokenize` made, or that holds files of tokens under another roof.
bool holds_tokens(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".shard" || entry.path().extension() == ".bin";
  });
}

int inspect(const InspectOptions& options, std::ostream& out) {
  const fs::path& path = options.path;
  if (!fs::exists(path)) {
    throw ConfigError(fmt::format("{} does not exist", path.string()),
                      "give a run, a checkpoint, a shard, a tokenizer.json or a Hugging Face folder");
  }
  if (fs::is_directory(path)) {
    if (fs::exists(path / formats::kManifestFile)) {
      inspect_checkpoint(options, out);
    } else if (formats::checkpoint_step(fs::absolute(path).lexically_normal().filename().string())) {
      throw formats::FormatError(
          fmt::format("{}: is damaged: a checkpoint without its {}", path.string(), formats::kManifestFile));
    } else if (fs::exists(path / "config.json")) {
      inspect_published(options, out);
    } else if (fs::exists(path / formats::kRecipeFile) || fs::exists(path / "checkpoints")) {
      if (!inspect_run(options, out)) return kExitFailed;
    } else if (fs::exists(path / "tokenizer.json")) {
      inspect_tokenizer(options, out);
    } else if (holds_tokens(path)) {
      inspect_shards(options, out);
    } else {
      throw ConfigError(
          fmt::format("{} holds nothing that is known", path.string()),
          "known are runs, checkpoints, Hugging Face folders, folders of shards and folders with a tokenizer.json");
    }
  } else if (path.extension() == ".json") {
    inspect_tokenizer(options, out);
  } else if (path.extension() == ".safetensors") {
    const formats::SafetensorsFile file(path);
    fmt::print(out, "{}: {}, {}\n", path.string(), counted(file.header().tensors.size(), "tensor"),
               bytes_text(file.header().data_bytes()));
    print_tensors(file.header(), options.tensors, out);
  } else {
    inspect_shard(options, out);
  }
  return kExitFine;
}

}  // namespace

void add_inspect_command(Command& app, Context& context) {
  Command& command = app.add_subcommand(
      "inspect", "Look into a checkpoint, run, shard, tokenizer or published model; exit code 1 when it is damaged");
  command.footer(
      "Examples:\n"
      "  trireme inspect runs/tiny\n"
      "  trireme inspect runs/tiny/checkpoints/step-00000200 --verify\n"
      "  trireme inspect shards/\n"
      "  trireme inspect shards/00000.shard\n"
      "  trireme inspect tokenizer.json");
  const auto options = std::make_shared<InspectOptions>();  // shared with the callback
  command.add_option("PATH", options->path, "what to look into").required();
  command.add_flag("--verify", options->verify, "read every byte and compare the checksums");
  command.add_flag("--entropy", options->entropy, "of a shard: the entropy of its tokens, each by itself");
  command.add_option("--tensors", options->tensors, "list at most this many tensors or shards; 0: all").show_default();
  command.callback([options, &context] {
    if (options->tensors == 0) options->tensors = static_cast<std::size_t>(-1);
    context.run = [options, &context] { return inspect(*options, context.out); };
  });
}

}  // namespace trireme::cli
