#include "trireme/train/commands.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/progress.h"
#include "trireme/checkpoint/init_weights.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/formats/hf_config.h"
#include "trireme/models/published.h"
#include "trireme/spec/batch_split.h"
#include "trireme/spec/parameters.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/diagnose/verify.h"
#include "trireme/train/engine/freeze.h"
#include "trireme/train/engine/teacher.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/run/convert.h"
#include "trireme/train/run/evaluate.h"
#include "trireme/train/run/model_on_ranks.h"
#include "trireme/train/run/run.h"

namespace trireme::train {
namespace {

/// How many bytes each token stands for; empty where no tokenizer says.
std::vector<std::int32_t> token_bytes(const std::optional<std::string>& tokenizer) {
  std::vector<std::int32_t> bytes;
  if (!tokenizer) return bytes;
  const auto read = data::load_tokenizer(*tokenizer);
  for (std::int32_t token = 0; token < read->vocab_size(); ++token) {
    bytes.push_back(static_cast<std::int32_t>(read->token_bytes(token).size()));
  }
  return bytes;
}

constexpr std::int64_t kUsualLength = 1024;

void check_context(std::int64_t length, const spec::ModelShape& shape, bool beyond) {
  const bool ends = shape.position_kind == spec::PositionKind::kLearned;
  if (length <= shape.max_seq_len || (beyond && !ends)) return;
  throw ConfigError(
      fmt::format("sequences of {} tokens do not fit into the model's context of {}", length, shape.max_seq_len),
      fmt::format("give --seq-len {}{}", shape.max_seq_len,
                  ends ? "" : ", or allow more than it was made for with --beyond-context"));
}

EvalResult evaluate_model(const EvalRequest& request, comm::Rank& rank) {
  at::set_num_threads(std::max(1, usable_cores() / std::max(1, request.local_ranks)));
  comm::Group& world = rank.world();
  ModelOnRanks model = open_on_ranks(request.model, request.tp, request.precision, request.device, world);
  checkpoint::OpenedModel& opened = model.opened;
  const parallel::ParallelGroups* const groups = model.groups.get();
  if (!request.data_of.empty()) opened.recipe = checkpoint::read_run_recipe(request.data_of);
  spec::Recipe recipe = opened.recipe.value_or(spec::Recipe{});
  recipe.model = spec::resolved(spec::config_of(opened.model->shape));
  data::Split split = data::Split::kValidation;
  if (request.data) {
    const std::int64_t trained =
        opened.recipe ? opened.recipe->data.seq_len : std::min(opened.model->shape.max_seq_len, kUsualLength);
    recipe.data = *request.data;
    recipe.data.seq_len = request.seq_len.value_or(trained);
    recipe.data.validation_fraction = 0;
    check_context(recipe.data.seq_len, opened.model->shape, request.beyond_context);
    if (opened.recipe && recipe.data.seq_len > trained && world.rank() == 0) {
      log_warn("sequences of {} tokens are longer than the {} that the run was trained with", recipe.data.seq_len,
               trained);
    }
    split = data::Split::kTrain;  // of which nothing is kept back: all there is
  } else if (!opened.recipe) {
    throw ConfigError(fmt::format("{} is a published model, which says nothing of data", request.model.string()),
                      "say what to evaluate on: --data FILE --tokenizer TOKENIZER");
  }
  if (!recipe.data.tokenizer) recipe.data.tokenizer = opened.tokenizer;
  const auto samples = data::open_samples(recipe, split);
  if (!samples) {
    throw ConfigError("the run has no validation data", "say what to evaluate on: --data FILE");
  }
  const std::int64_t all = samples->epoch() > 0 ? samples->epoch() : kMostSamples;
  const std::int64_t count = std::min(all, request.samples.value_or(all));
  const auto bytes = token_bytes(recipe.data.tokenizer);
  std::unique_ptr<Progress> progress;
  if (world.rank() == 0) {
    log_info("{} on {} samples of {} tokens", opened.what, count, samples->length());
    if (!request.data && recipe.eval.every > 0 && count > recipe.eval.samples) {
      log_info("validation during the run took the first {} of them (eval.samples), so that its loss is another one",
               recipe.eval.samples);
    }
    progress = std::make_unique<Progress>("eval", spec::share_of_rows(0, count, 0, groups->dp_size).count, "sample");
  }
  const auto forward = [&](nn::Tensors inputs, nn::Context& context) {
    opened.model->forward(std::move(inputs), context, nullptr);
  };
  const Evaluation found =
      evaluate(forward, *samples,
               {.all = world,
                .rank = groups->dp_rank,
                .ranks = groups->dp_size,
                .counts = [&](const nn::LossTerm& term) { return groups->counts(term); },
                .counts_rows = groups->counts_rows(),
                .device = groups->device,
                .shape = &opened.model->shape},
               {.count = count, .rows = request.rows, .token_bytes = bytes, .progress = [&](auto done) {
                  if (progress) progress->update(done);
                }});
  if (found.counts.targets <= 0) throw ConfigError("no token of these samples has a loss");
  EvalResult result{
      .loss = found.loss(), .perplexity = found.perplexity(), .samples = count, .targets = found.counts.targets};
  for (const nn::LossTerm& term : found.terms) {
    if (found.terms.size() < 2) break;
    result.losses.push_back({.name = term.name, .mean = nn::mean_of(term, found.counts), .weight = term.weight});
  }
  if (found.bytes > 0) result.bits_per_byte = found.bits_per_byte();
  result.best_loss = samples->best_loss();
  return result;
}

spec::ModelShape open_shape(const spec::Recipe& recipe) {
  spec::ModelShape shape = model_shape(recipe);
  const bool whole = !recipe.model.init_partial && !recipe.model.init_resize_vocab && !recipe.model.init_dense;
  if (recipe.model.init_from && whole) {  // a tensor that is missing is found here
    [[maybe_unused]] const checkpoint::StoredWeights weights(*recipe.model.init_from, shape);
  }
  if (recipe.model.init_from) {
    if (const auto warning = checkpoint::longer_context(shape, *recipe.model.init_from); !warning.empty())
      log_warn("{}", warning);
  }
  if (recipe.distill.used()) require_teacher(recipe, shape);
  std::vector<std::string> names;
  for (const spec::ParameterShape& parameter : spec::list_parameters(shape)) names.push_back(parameter.name);
  frozen_params(recipe.train.freeze, shape, names);
  return shape;
}

spec::ModelShape published_shape(const std::filesystem::path& path) {
  const formats::HfConfig config = formats::read_hf_config(path);
  return models::format_of(config).read_config(config);
}

constexpr Commands kCommands{.version = kVersion,
                             .run = &run,
                             .evaluate = &evaluate_model,
                             .convert = &convert,
                             .verify = &verify,
                             .memory = &tell_memory,
                             .shape = &open_shape,
                             .published_shape = &published_shape};

}  // namespace

extern "C" const Commands* trireme_train() {
  device::keep_host_memory();
  return &kCommands;
}

}  // namespace trireme::train
