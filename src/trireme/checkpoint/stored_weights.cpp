#include "trireme/checkpoint/stored_weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/store.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;

at::ScalarType type_of(formats::Dtype dtype, const std::string& name) {
  switch (dtype) {
    case formats::Dtype::kF32:
      return at::kFloat;
    case formats::Dtype::kF64:
      return at::kDouble;
    case formats::Dtype::kBF16:
      return at::kBFloat16;
    case formats::Dtype::kF16:
      return at::kHalf;
    default:
      throw ConfigError(fmt::format("{} is {}, and weights are F32, BF16, F16 or F64", name, formats::name_of(dtype)));
  }
}

/// The run that a checkpoint is of.
RunFolder run_of(const formats::CheckpointFolder& stored) {
  return {fs::absolute(stored.path()).lexically_normal().parent_path().parent_path()};
}

}  // namespace

StoredWeights::StoredWeights(const fs::path& path, const std::optional<spec::ModelShape>& shape) {
  const spec::ModelShape stored_as = stored_shape(path);  // and says what `path` could be where it is nothing
  model_ = models::build(shape.value_or(stored_as), {});
  what_ = path.string();
  if (fs::exists(path / "config.json")) {
    directory_.emplace(path);
    auto all =
        models::published_tensors(*model_, [&](std::string_view name) { return directory_->find(name) != nullptr; });
    for (const models::PublishedTensor& tensor : all) models::find_published(*directory_, tensor, all);
    models::log_unused(*directory_, all);
    std::erase_if(all, [](const models::PublishedTensor& tensor) { return tensor.optional; });
    std::ranges::stable_sort(all, {}, &models::PublishedTensor::first_row);
    tensors_ = std::move(all);
    if (fs::exists(path / "tokenizer.json")) tokenizer_ = (path / "tokenizer.json").string();
    return;
  }
  stored_.emplace(open_checkpoint(path));
  what_ = fmt::format("step {} of {}", stored_->manifest().step, path.string());
  recipe_ = read_run_recipe(stored_->path());
  if (recipe_->optim.kind == spec::OptimizerKind::kScheduleFree) average_ = StoredAverage::kScheduleFree;
  if (recipe_->optim.ema_decay && recipe_->eval.weights == spec::EvalWeights::kEma) average_ = StoredAverage::kEma;
  const RunFolder run = run_of(*stored_);
  tokenizer_ = fs::exists(run.tokenizer()) ? std::optional(run.tokenizer().string()) : recipe_->data.tokenizer;
  for (const nn::Param& param : model_->params) {
    const formats::StoredTensor& tensor = stored_->tensor("param/" + param.name);
    if (tensor.shape == param.placement.shape) continue;
    throw ConfigError(
        fmt::format("{}: {} is {} there and [{}] here", stored_->path().string(), param.name,
                    formats::to_text({param.name, tensor.dtype, tensor.shape}), fmt::join(param.placement.shape, ", ")),
        "the model must be the one that was stored");
  }
}

std::optional<models::PublishedTexts> StoredWeights::published() const {
  if (directory_) return models::texts_of(directory_->path());
  // A checkpoint that was made of a published model has them among its small files, a run in a folder.
  models::PublishedTexts texts{.config = {}, .files = {}};
  for (const auto& [name, sum] : stored_->manifest().files) {
    if (!name.starts_with(kPublishedPrefix)) continue;
    const std::string theirs = name.substr(kPublishedPrefix.size());
    (theirs == "config.json" ? texts.config : texts.files[theirs]) = stored_->text(name);
  }
  if (!texts.config.empty()) return texts;
  const fs::path folder = run_of(*stored_).published();
  if (!fs::exists(folder / "config.json")) return std::nullopt;
  return models::texts_of(folder);
}

at::Tensor StoredWeights::read(const nn::Param& param, std::int64_t begin, std::int64_t end) const {
  if (directory_) return read_published(param, begin, end);
  // Frozen parameters have neither an average nor moments.
  const auto has = [&](const std::string& name) { return stored_->manifest().tensors.contains(name); };
  const std::string ema = "ema/" + param.name, z = "optim/z/" + param.name;
  if (average_ == StoredAverage::kEma && has(ema)) return read_stored(ema, begin, end);
  at::Tensor weights = read_stored("param/" + param.name, begin, end);
  if (average_ == StoredAverage::kScheduleFree && has(z) && stored_->manifest().step > 0)
    weights.lerp_(read_stored(z, begin, end).to(weights.scalar_type()), 1 - 1 / recipe_->optim.beta1);
  return weights;
}

at::Tensor StoredWeights::read_stored(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const formats::StoredTensor& tensor = stored_->tensor(name);
  at::Tensor out = at::empty({end - begin}, type_of(tensor.dtype, name));
  std::vector<formats::Fetch> fetches;
  formats::add_fetches(tensor, begin, end, static_cast<std::byte*>(out.mutable_data_ptr()), fetches);
  stored_->fetch(std::move(fetches));
  return out;
}

at::Tensor StoredWeights::read_published(const nn::Param& param, std::int64_t begin, std::int64_t end) const {
  const std::int64_t row = models::row_elements(param);
  std::vector<at::Tensor> parts;
  for (const models::PublishedTensor& tensor : tensors_) {
    if (tensor.param->name != param.name) continue;
    const std::int64_t first = tensor.first_row * row;
    const std::int64_t from = std::max(begin, first), until = std::min(end, first + tensor.rows * row);
    if (from >= until) continue;
    if (models::find_codes(*directory_, tensor.name) != nullptr) {
      if (whole_.tensor != &tensor) {
        whole_ = {};  // one at a time
        whole_ = {&tensor, models::dequantise(models::read_codes(*directory_, tensor))};
      }
      parts.push_back(whole_.rows.view({-1}).narrow(0, from - first, until - from));
      continue;
    }
    const formats::HfTensor& found = directory_->tensor(tensor.name);
    if (!tensor.transposed) {
      parts.push_back(models::stored_elements(*directory_, found, from - first, until - first));
      const auto element = found.bytes().size() / static_cast<std::size_t>(tensor.rows * row);
      found.file->forget(found.bytes().subspan(static_cast<std::size_t>(from - first) * element,
                                               static_cast<std::size_t>(until - from) * element));
      continue;
    }
    if (whole_.tensor != &tensor) {
      whole_ = {};  // one at a time
      whole_ = {
          &tensor,
          models::stored_elements(*directory_, found, 0, tensor.rows * row).view({row, tensor.rows}).t().contiguous()};
      found.file->forget(found.bytes());
    }
    parts.push_back(whole_.rows.view({-1}).narrow(0, from - first, until - from));
  }
  // Matrices in fewer bits are float, whatever those beside them are.
  const bool mixed =
      std::ranges::any_of(parts, [&](auto& part) { return part.scalar_type() != parts[0].scalar_type(); });
  for (at::Tensor& part : parts) {
    if (mixed) part = part.to(at::kFloat);
  }
  at::Tensor out = parts.size() == 1 ? parts[0] : at::cat(parts);
  TRIREME_CHECK(out.numel() == end - begin, "elements {} to {} of {} are {} stored ones", begin, end, param.name,
                out.numel());
  return out;
}

void StoredWeights::fill(nn::moe::Balance& balance) const {
  if (directory_) return models::load_biases(model_->shape, *directory_, balance);
  nn::State state;
  balance.add_state(state);
  if (!state.tensors().empty()) load(*stored_, state, LoadScope::kWeights);
}

void StoredWeights::read_into(const nn::Param& param, at::Tensor& to) const {
  at::Tensor flat = to.view({-1});
  for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
    for (layout::Index at = 0; at < run.count; at += kElementsAtOnce) {
      const layout::Index count = std::min(kElementsAtOnce, run.count - at);
      flat.narrow(0, run.local + at, count).copy_(read(param, run.global + at, run.global + at + count));
    }
  }
}

std::optional<kernels::QuantisedWeight> StoredWeights::quantised(const nn::Param& param) const {
  if (!directory_) return std::nullopt;
  std::vector<const models::PublishedTensor*> parts;
  for (const models::PublishedTensor& tensor : tensors_) {
    if (tensor.param->name == param.name) parts.push_back(&tensor);
  }
  auto whole = models::read_quantised(*directory_, parts);
  if (whole) return models::part_of(*whole, param.placement);
  return std::nullopt;
}

bool StoredWeights::is_quantised() const { return directory_ && models::quantised_format(directory_->config()); }

void StoredWeights::fill(nn::Params& params) const {
  const auto has_memory = [](const nn::Param& param) { return param.master.numel() > 0; };
  const bool whole = std::ranges::all_of(params, has_memory);
  if (stored_ && average_ == StoredAverage::kNone && whole) {
    nn::State state;
    nn::add_params(state, params);
    load(*stored_, state, LoadScope::kWeights);
  } else {
    for (nn::Param& param : params) {
      if (has_memory(param)) read_into(param, param.master);
    }
  }
  for (nn::Param& param : params) {
    if (has_memory(param)) nn::publish(param);
  }
}

}  // namespace trireme::checkpoint
