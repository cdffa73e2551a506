#include "trireme/cli/plan/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/data_files.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/cli/plan/recipe.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/schedule/builders.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

/// Tokens of a step where no batch is given: what models of today start with.
constexpr std::int64_t kUsualTokens = std::int64_t{4} << 20;

template <typename Enum>
Enum parse_name(const char* flag, const std::string& text) {
  std::vector<std::string> names;
  for (const auto& entry : enum_names(std::type_identity<Enum>{})) {
    if (entry.name == text) return entry.value;
    names.emplace_back(entry.name);
  }
  throw ConfigError(fmt::format("{} \"{}\" is unknown{}", flag, text, did_you_mean(text, names)),
                    fmt::format("it is one of {}", listed(names)));
}

bool is_path(const std::string& named) { return named.ends_with(".toml") || named.find('/') != std::string::npos; }

template <typename T>
void add_number(Command& command, const char* flag, std::optional<T>& value, const char* meaning) {
  command.add_option(flag, value, meaning).type_name("N");
}

void require_present(const cost::Cluster& cluster, int gpus) {
  if (gpus <= cluster.gpus) return;
  throw ConfigError(fmt::format("{} devices are asked for, but cluster {} has {}", gpus, cluster.name, cluster.gpus),
                    fmt::format("use --gpus {}, or a cluster file with gpus = {}", cluster.gpus, gpus));
}

void require_positive(const char* flag, const std::optional<std::int64_t>& value) {
  if (value && *value < 1) throw ConfigError(fmt::format("{} must be at least 1, but is {}", flag, *value));
}

}  // namespace

void PlanOptions::add_to(Command& command, Positional positional) {
  positional_ = positional;
  if (positional == Positional::kRecipe)
    command.add_option("RECIPE", recipe_, "A recipe with a [model] section, whose layout is meant; or a model by name");
  else
    command.add_option("MODEL", recipe_, "A model, as --model takes it");
  command
      .add_option("--model", model_,
                  "A model by name (llama3-405b, gpt3-175b, ...), the path of a recipe, or a Hugging Face folder or "
                  "config.json")
      .type_name("NAME");
  command.add_option("--cluster", cluster_, "A cluster by name (selene, dgx-h100, ...) or the path of a file")
      .type_name("NAME");
  add_number(command, "--gpus", gpus_, "Devices to use; default: those of the layout, else of the cluster");
  command.add_option("--family", family_, "Family of a model given by its sizes: gpt or llama").type_name("NAME");
  add_number(command, "--num-layers", sizes_.num_layers, "Transformer layers");
  add_number(command, "--hidden-size", sizes_.hidden_size, "Hidden size (d_model)");
  add_number(command, "--num-heads", sizes_.num_heads, "Attention heads");
  add_number(command, "--num-kv-heads", sizes_.num_kv_heads, "Key and value heads (GQA); default: --num-heads");
  add_number(command, "--ffn-size", sizes_.ffn_size, "Hidden size of the MLP; default for gpt: 4 x --hidden-size");
  add_number(command, "--vocab-size", sizes_.vocab_size, "Vocabulary size");
  add_number(command, "--seq-len", seq_, "Sequence length in tokens; default: the model's longest");
  add_number(command, "--global-batch-size", global_batch_, "Global batch size in sequences; default: about 4M tokens");
  add_number(command, "--tp", given_.tp, "Tensor-parallel size");
  add_number(command, "--pp", given_.pp, "Pipeline-parallel size: stages");
  add_number(command, "--dp", given_.dp, "Data-parallel size");
  add_number(command, "--cp", given_.cp, "Context-parallel size");
  add_number(command, "--ep", given_.ep,
             "Expert-parallel size: ranks of dp x cp that the experts of a mixture are sharded over");
  add_number(command, "--virtual-stages", given_.virtual_stages, "Virtual pipeline stages (chunks) of each rank");
  add_number(command, "--micro-batch-size", given_.micro_batch_size, "Micro-batch size in sequences");
  command.add_option("--schedule", schedule_, "1f1b, interleaved, gpipe, zb-h1, ...: see trireme schedule list")
      .type_name("NAME");
  command
      .add_option("--recompute", recompute_,
                  "Activation recomputation: none, selective (the attention core) or full (whole layers)")
      .type_name("MODE");
  add_number(command, "--zero", given_.zero, "ZeRO stage, 0 to 3");
  add_number(command, "--zero-group", given_.zero_group,
             "Data-parallel ranks in one ZeRO sharding group (HSDP); 0: all");
  command.add_option("--offload", offload_, "What is offloaded to host memory: none or optimizer").type_name("WHAT");
  command.add_option("--cp-kind", cp_kind_, "Context-parallel attention: gather, ring or ulysses; default gather")
      .type_name("KIND");
  command.add_option("--precision", precision_, "Data type of the GEMMs: fp32, fp16, bf16 or fp8; default bf16")
      .type_name("NAME");
  command.add_option("--sequence-parallel", sequence_parallel_, "Sequence parallelism over --tp: on or off")
      .type_name("on|off");
  command
      .add_option("--software", software_,
                  "Whose layers and buffers memory is counted for: trireme, or megatron for published runs")
      .type_name("NAME");
  command.add_option("--attention", attention_, "Attention kernel: flash or unfused; default flash").type_name("KIND");
}

namespace {

/// The folder of ready recipes that has a model of this name.
const char* folder_of(const std::string& named) {
  return !is_path(named) && std::ranges::count(data_names("mixtures"), named) > 0 ? "mixtures" : "models";
}

/// The config.json that a Hugging Face folder, or its path, names; nothing where it is neither.
std::optional<std::filesystem::path> published_config(const std::string& named) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(named, ignored) && fs::is_regular_file(fs::path(named) / "config.json", ignored))
    return fs::path(named) / "config.json";
  if (named.ends_with(".json") && fs::is_regular_file(named, ignored)) return named;
  return std::nullopt;
}

/// find_data_file() knows names of one kind; people do not know which kind a model is of.
void require_model(const std::string& named) {
  if (is_path(named)) return;
  std::vector<std::string> names = data_names("models");
  for (std::string& mixture : data_names("mixtures")) names.push_back(std::move(mixture));
  if (std::ranges::count(names, named) == 0)
    throw ConfigError(fmt::format("there is no model \"{}\"{}", named, did_you_mean(named, names)),
                      fmt::format("it is one of {}, or the path of a file or a Hugging Face folder", listed(names)));
}

}  // namespace

std::string PlanOptions::named() const { return !recipe_.empty() ? recipe_ : model_; }

spec::ModelShape PlanOptions::shape(spec::Recipe& recipe) const {
  const bool by_sizes = sizes_.num_layers || sizes_.hidden_size || sizes_.num_heads;
  const std::string named = this->named();
  if (!recipe_.empty() && !model_.empty())
    throw ConfigError(fmt::format("both \"{}\" and --model are given", recipe_), "give one of them");
  if (named.empty() && !by_sizes)
    throw ConfigError(
        "no model is given",
        "give --model NAME, or --family, --num-layers, --hidden-size, --num-heads, --vocab-size and --seq-len");
  if (named.empty()) {
    plan::ModelSizes sizes = sizes_;
    sizes.family = family_.empty() ? plan::ModelFamily::kGpt : parse_name<plan::ModelFamily>("--family", family_);
    return plan::shape_of(sizes);
  }
  if (by_sizes || !family_.empty())
    throw ConfigError(fmt::format("the model \"{}\" and sizes of another one are given", named),
                      "leave out --family, --num-layers, --hidden-size and --num-heads, or the model's name");
  if (const auto config = published_config(named)) return load_train().published_shape(*config);
  require_model(named);
  recipe = spec::load_recipe({.file = find_data_file(folder_of(named), named).string()}).value;
  const auto shape = spec::shape_of(recipe.model);
  if (!shape)
    throw ConfigError(fmt::format("\"{}\" has no [model] section with a family", named), "add one, or give --model");
  return *shape;
}

int PlanOptions::device_count(const cost::Hardware& hardware, const plan::Choices& given,
                              const std::optional<int>& recipe_ranks) const {
  if (gpus_) {
    if (*gpus_ < 1) throw ConfigError(fmt::format("--gpus must be at least 1, but is {}", *gpus_));
    require_present(hardware.cluster, *gpus_);
    return *gpus_;
  }
  if (recipe_ranks) {
    require_present(hardware.cluster, *recipe_ranks);
    return *recipe_ranks;
  }
  // Three of the four say how many there are; cp alone is rarely meant when it is left out.
  if (given.tp && given.pp && given.dp) return *given.tp * *given.pp * *given.dp * given.cp.value_or(1);
  return hardware.cluster.gpus;
}

PlanTask PlanOptions::resolve() const {
  PlanTask task;
  if (cluster_.empty())
    throw ConfigError("no cluster is given",
                      fmt::format("give --cluster, one of {}, or the path of a file", listed(data_names("clusters"))));
  task.hardware = cost::load_hardware(cluster_);
  std::optional<std::int64_t> batch = global_batch_, length = seq_;
  require_positive("--seq-len", length);
  require_positive("--global-batch-size", batch);
  task.job.shape = shape(task.recipe);
  task.given = given_;
  for (const auto& [flag, value] : {std::pair{"--tp", given_.tp},
                                    {"--pp", given_.pp},
                                    {"--dp", given_.dp},
                                    {"--cp", given_.cp},
                                    {"--ep", given_.ep},
                                    {"--virtual-stages", given_.virtual_stages}}) {
    if (value && *value < 1) throw ConfigError(fmt::format("{} must be at least 1, but is {}", flag, *value));
  }
  if (given_.zero && (*given_.zero < 0 || *given_.zero > 3))
    throw ConfigError(fmt::format("--zero must be from 0 to 3, but is {}", *given_.zero));
  if (given_.zero_group && *given_.zero_group < 0)
    throw ConfigError(fmt::format("--zero-group must be at least 0, but is {}", *given_.zero_group));
  require_positive("--micro-batch-size", given_.micro_batch_size);
  if (!recompute_.empty()) task.given.recompute = parse_name<spec::RecomputeKind>("--recompute", recompute_);
  if (!offload_.empty()) task.given.offload = parse_name<spec::OffloadKind>("--offload", offload_);
  if (task.given.offload.value_or(spec::OffloadKind::kNone) != spec::OffloadKind::kNone &&
      task.hardware.cluster.host.memory_gib <= 0)
    throw ConfigError(
        fmt::format("--offload needs the host memory, which cluster {} does not describe", task.hardware.cluster.name),
        "add [host] with memory_gib, link_gb_per_s and memory_gb_per_s to the cluster's file");
  if (!sequence_parallel_.empty()) {
    if (sequence_parallel_ != "on" && sequence_parallel_ != "off")
      throw ConfigError(fmt::format("--sequence-parallel must be on or off, but is \"{}\"", sequence_parallel_));
    task.given.sequence_parallel = sequence_parallel_ == "on";
  }
  if (!schedule_.empty()) task.given.schedule = std::string(schedule::find_kind(schedule_).name);
  if (!cp_kind_.empty()) task.given.cp_kind = parse_name<spec::ContextKind>("--cp-kind", cp_kind_);
  // A model's file is a recipe too; of a run's, layout, batch, precision and optimizer are meant.
  const bool of_run =
      positional_ == Positional::kRecipe && !recipe_.empty() && is_path(recipe_) && !published_config(recipe_);
  if (of_run) take_from_recipe(task.recipe, task.given, length, batch, task.job);
  task.gpus = device_count(task.hardware, task.given, of_run ? task.recipe.comm.ranks : std::nullopt);

  if (!precision_.empty()) {
    task.job.precision = plan::precision_of(parse_name<cost::Arithmetic>("--precision", precision_));
  } else if (!of_run) {
    task.chosen.emplace_back("precision");
    // bf16 unless the device has no such units, as those before 2020; a CPU's cores have fp32.
    task.job.precision =
        plan::precision_of(task.hardware.peak(cost::Arithmetic::kBf16) > 0   ? cost::Arithmetic::kBf16
                           : task.hardware.peak(cost::Arithmetic::kFp16) > 0 ? cost::Arithmetic::kFp16
                                                                             : cost::Arithmetic::kFp32);
  }
  if (!software_.empty()) task.job.software = parse_name<plan::Software>("--software", software_);
  if (!attention_.empty()) task.job.attention = parse_name<plan::AttentionKind>("--attention", attention_);
  if (attention_.empty()) task.chosen.emplace_back("attention");
  if (!length) task.chosen.emplace_back("seq_len");
  task.job.seq_len = length.value_or(task.job.shape.max_seq_len);
  // Whoever asks for longer sequences asks for the model that takes them.
  task.job.shape.max_seq_len = std::max(task.job.shape.max_seq_len, task.job.seq_len);
  if (!batch) {
    task.chosen.emplace_back("global_batch_size");
    // A multiple of the devices, so that any number of copies divides it.
    const std::int64_t wanted = std::max<std::int64_t>(1, kUsualTokens / task.job.seq_len);
    batch = wanted >= task.gpus ? wanted / task.gpus * task.gpus : wanted;
  }
  task.job.batch = *batch;
  plan::require_arithmetic(task.hardware, task.job);
  return task;
}

}  // namespace trireme::cli
