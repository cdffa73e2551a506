#include "trireme/models/published.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Float8_e4m3fn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/hf_writer.h"
#include "trireme/models/families/families.h"
#include "trireme/models/matrix_codec.h"
#include "trireme/spec/model_config.h"

namespace trireme::models {
namespace {

using formats::Dtype;
using formats::FormatError;

constexpr const FamilyFormat* kFormats[] = {&kGpt2Format,  &kLlamaFormat,      &kMistralFormat, &kMixtralFormat,
                                            &kQwen2Format, &kQwen2MoeFormat,   &kQwen3Format,   &kQwen3MoeFormat,
                                            &kBertFormat,  &kDeepseekV3Format, &kT5Format,      &kSwitchFormat};

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;
constexpr std::uint64_t kMaxCompanionBytes = 1'000'000'000;  // tokenizers have been seen with tens of megabytes

at::ScalarType scalar_type(const formats::TensorInfo& info, std::string_view file) {
  switch (info.dtype) {
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF64:
      return at::kDouble;
    case Dtype::kBF16:
      return at::kBFloat16;
    case Dtype::kF16:
      return at::kHalf;
    default:
      throw FormatError(fmt::format("{}: tensor {} is {}, and a model's weights are F32, BF16, F16 or F64", file,
                                    formats::shown(info.name), formats::to_text(info)));
  }
}

std::vector<std::int64_t> published_shape(const PublishedTensor& tensor) {
  if (!tensor.shape.empty()) return tensor.shape;
  std::vector<std::int64_t> shape = tensor.param->placement.shape;
  shape[0] = tensor.rows;
  if (tensor.transposed) std::swap(shape[0], shape[1]);
  return shape;
}

std::int64_t elements_of(const formats::HfTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.info->shape) elements *= size;
  return elements;
}

/// As they lie there.
at::Tensor raw_elements(const formats::HfTensor& tensor, std::int64_t begin, std::int64_t end) {
  at::Tensor out = at::empty({end - begin}, scalar_type(*tensor.info, tensor.file->path().string()));
  const auto element = static_cast<std::size_t>(out.element_size());
  const auto bytes = tensor.bytes().subspan(static_cast<std::size_t>(begin) * element, out.nbytes());
  std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
  return out;
}

at::Tensor stored(const formats::HfDirectory& directory, const formats::HfTensor& tensor) {
  return stored_elements(directory, tensor, 0, elements_of(tensor)).view(tensor.info->shape);
}

constexpr std::string_view kScaleSuffix = "_scale_inv";

bool is_fp8(const formats::HfTensor& tensor) { return tensor.info->dtype == Dtype::kF8E4M3; }

/// The scales of an FP8 matrix, one for each block: float [rows / 128, columns / 128], rounded up.
const formats::HfTensor& block_scales(const formats::HfDirectory& directory, const formats::HfTensor& tensor) {
  const auto& shape = tensor.info->shape;
  const std::string name = fmt::format("{}{}", tensor.info->name, kScaleSuffix);
  const formats::HfTensor* scales = directory.find(name);
  if (scales == nullptr || shape.size() != 2) {
    throw FormatError(
        fmt::format("{}: tensor {} is {}, and FP8 weights are matrices with scales {}", tensor.file->path().string(),
                    formats::shown(tensor.info->name), formats::to_text(*tensor.info), formats::shown(name)),
        "weights without block scales are read as F32, BF16, F16 or F64");
  }
  const std::vector<std::int64_t> expected{fp8_blocks(shape[0]), fp8_blocks(shape[1])};
  if (scales->info->shape != expected || scales->info->dtype != Dtype::kF32) {
    throw FormatError(fmt::format("{}: tensor {} is {}, but scales of {} are F32 [{}], one for 128 x 128 values",
                                  scales->file->path().string(), formats::shown(name), formats::to_text(*scales->info),
                                  formats::shown(tensor.info->name), fmt::join(expected, ", ")));
  }
  return *scales;
}

/// A tied weight may lie in the directory twice. Its second copy is part of the model only where it says the same.
bool is_same(const formats::HfDirectory& directory, const formats::HfTensor& copy, const formats::HfTensor& of) {
  if (copy.info->dtype == of.info->dtype && !is_fp8(copy)) return std::ranges::equal(copy.bytes(), of.bytes());
  return at::equal(stored(directory, copy).to(at::kDouble), stored(directory, of).to(at::kDouble));
}

/// The tensor that `copy` is a second copy of.
const PublishedTensor& original_of(const PublishedTensor& copy, const std::vector<PublishedTensor>& tensors) {
  for (const PublishedTensor& tensor : tensors) {
    if (!tensor.optional && tensor.param == copy.param) return tensor;
  }
  throw InternalError(fmt::format("{} is a copy of nothing", copy.name));
}

/// Where a tied weight is stored under its second name only, that is its name.
void name_as_stored(std::vector<PublishedTensor>& tensors, const std::function<bool(std::string_view)>& known) {
  for (PublishedTensor& copy : tensors) {
    if (!copy.optional || !known(copy.name)) continue;
    for (PublishedTensor& tensor : tensors) {
      if (tensor.optional || tensor.param != copy.param || known(tensor.name)) continue;
      tensor.optional = true;
      copy.optional = false;
      break;
    }
  }
}

void check_shape(const formats::HfTensor& found, const PublishedTensor& tensor) {
  const auto shape = published_shape(tensor);
  if (found.info->shape == shape) return;
  throw FormatError(fmt::format("{}: tensor {} has shape [{}], but by config.json it has [{}]",
                                found.file->path().string(), formats::shown(tensor.name),
                                fmt::join(found.info->shape, ", "), fmt::join(shape, ", ")));
}

void load_tensor(const formats::HfDirectory& directory, const PublishedTensor& tensor,
                 const std::vector<PublishedTensor>& tensors) {
  const formats::HfTensor* found = find_published(directory, tensor, tensors);
  if (found == nullptr || tensor.optional) return;
  if (find_codes(directory, tensor.name) != nullptr) {
    tensor.param->master.narrow(0, tensor.first_row, tensor.rows).copy_(dequantise(read_codes(directory, tensor)));
    return;
  }
  published_view(tensor, tensor.param->master).copy_(stored(directory, *found));
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

/// What whoever reads the configuration would compute otherwise.
std::vector<std::string> lost_features(const FamilyFormat& format, const formats::HfConfig& config,
                                       spec::ModelShape shape) {
  const spec::ModelShape read = format.read_config(config);
  // These matter in training only, and no published format has them.
  shape.mtp_loss_weight = read.mtp_loss_weight;
  if (format.module_tensor == nullptr) shape.mtp_depth = read.mtp_depth;  // modules are left out
  shape.label_smoothing = read.label_smoothing, shape.z_loss = read.z_loss;
  shape.scaled_residual_init = read.scaled_residual_init;
  if (shape.experts.used()) {  // what balances experts, and how a layer computes them
    spec::Experts& ours = shape.experts;
    const spec::Experts& theirs = read.experts;
    ours.aux_loss_weight = theirs.aux_loss_weight, ours.z_loss_weight = theirs.z_loss_weight;
    ours.bias_update_rate = theirs.bias_update_rate, ours.bias_centered = theirs.bias_centered;
    ours.balance_group = theirs.balance_group, ours.arena = theirs.arena, ours.jitter = theirs.jitter;
    ours.expert_dropout = theirs.expert_dropout;
    ours.node_ranks = theirs.node_ranks, ours.slice_over_tp = theirs.slice_over_tp;
    ours.dispatch_precision = theirs.dispatch_precision;
    ours.redundant_experts = theirs.redundant_experts, ours.move_experts = theirs.move_experts;
    ours.rebalance_every = theirs.rebalance_every;
    if (ours.router == spec::RouterKind::kSwitch) ours.capacity_factor = theirs.capacity_factor;  // families/t5.cpp
    if (spec::expert_ffn_size(shape) == spec::expert_ffn_size(read)) ours.ffn_size = theirs.ffn_size;
    if (ours.num_groups == 1) ours.group_score = theirs.group_score;
  }
  if (shape.window == 0) shape.window_layers = read.window_layers, shape.window_from = read.window_from;
  if (shape.rotary.scaling == spec::RotaryScaling::kNone) shape.rotary = {.base = shape.rotary.base};
  spec::ModelShape theirs = read;
  if (theirs.rotary.scaling == spec::RotaryScaling::kNone) theirs.rotary = {.base = theirs.rotary.base};
  return spec::differences(shape, theirs);
}

/// Then its bytes stay: also how it says it, where there are several ways.
bool says_the_same(const FamilyFormat& format, const formats::HfConfig& config, const spec::ModelShape& shape) {
  const auto says = [&](const char* size) { return config.json().contains(size); };
  if (!says("hidden_size") && !says("n_embd") && !says("d_model")) return false;  // it is new
  return lost_features(format, config, shape).empty();
}

/// A published configuration has no word for some features; whoever read it would compute something else.
void check_says_all(const FamilyFormat& format, const formats::HfConfig& config, const spec::ModelShape& shape) {
  const auto lost = lost_features(format, config, shape);
  if (lost.empty()) return;
  throw ConfigError(fmt::format("the published format of {} cannot say {}", format.model_type, fmt::join(lost, ", ")),
                    "keep this model in a checkpoint of our own");
}

/// What FP8 is for: matrices of layers, but for routers, whose choices would flip.
bool is_layer_matrix(const PublishedTensor& tensor) {
  const std::string& name = tensor.param->name;
  const bool of_module = name.starts_with("mtp.") && !name.ends_with(".projection.weight");
  return (of_module || name.find("layers.") != std::string::npos) && published_shape(tensor).size() == 2 &&
         !name.ends_with("router.weight");
}

/// Modules of multi-token prediction may be missing as a whole.
void leave_out_missing_modules(std::vector<PublishedTensor>& tensors, std::int64_t depth,
                               const std::function<bool(std::string_view)>& known) {
  for (std::int64_t module = 0; module < depth; ++module) {
    const auto is_its = [ours = fmt::format("mtp.{}.", module)](const PublishedTensor& tensor) {
      return tensor.param->name.starts_with(ours);
    };
    const bool there =
        std::ranges::any_of(tensors, [&](const auto& tensor) { return is_its(tensor) && known(tensor.name); });
    if (!there) std::erase_if(tensors, is_its);
  }
}

/// "model.layers.1.mlp.experts." of one of its tensors; empty: it is of no expert.
std::string_view place_of_experts(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  return at == std::string_view::npos ? std::string_view() : name.substr(0, at + kExperts.size());
}

/// Routers choose by differences that a narrower type does not have.
void warn_of_narrow_routers(const formats::HfDirectory& directory, const std::vector<PublishedTensor>& tensors) {
  for (const PublishedTensor& tensor : tensors) {
    const formats::HfTensor* found = directory.find(tensor.name);
    if (!tensor.param->name.ends_with("router.weight") || found == nullptr || found->info->dtype == Dtype::kF32)
      continue;
    log_warn("{}: {} is stored as {}: if it was trained in F32, what was cut off may choose other experts",
             directory.path().string(), formats::shown(tensor.name), formats::to_text(*found->info));
    return;  // one says it for all
  }
}

at::ScalarType to_scalar_type(Dtype dtype) {
  formats::TensorInfo info;
  info.dtype = dtype;
  return scalar_type(info, "the model");
}

}  // namespace

std::span<const FamilyFormat* const> family_formats() { return kFormats; }

const FamilyFormat& format_of(const formats::HfConfig& config) {
  const auto type = config.get<std::string>("model_type");
  std::string names;
  for (const FamilyFormat* format : kFormats) {
    if (format->model_type == type) return *format;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format->model_type);
  }
  throw ConfigError(fmt::format("{}: model_type {} is no family of ours", config.source(), formats::shown(type)),
                    "supported are " + names);
}

const FamilyFormat& format_of(const spec::ModelShape& shape) {
  for (const FamilyFormat* format : kFormats) {
    if (is_format_of(*format, shape)) return *format;
  }
  if (shape.experts.used()) {
    throw ConfigError(
        fmt::format("no published format has a {} with experts",
                    name_in(spec::enum_names(std::type_identity<spec::Family>()), shape.family)),
        "Mistral, Qwen 2, Qwen 3, T5 and DeepSeek-V3 have one; others are kept in checkpoints of our own");
  }
  throw ConfigError("the original Transformer has no published format: its weights are kept in checkpoints of our own");
}

std::vector<PublishedTensor> published_tensors(Model& model, const std::function<bool(std::string_view)>& known) {
  const FamilyFormat& format = format_of(model.shape);
  std::vector<PublishedTensor> best;
  double most = -1;
  for (const std::string_view prefix : format.prefixes) {
    for (const bool fused : {false, true}) {
      if (fused && !model.shape.experts.used()) continue;
      auto tensors = format.tensors(model, {.prefix = std::string(prefix), .fused_experts = fused});
      const auto there =
          !known ? 0 : std::ranges::count_if(tensors, [&](const auto& tensor) { return known(tensor.name); });
      // Lists of experts one by one are longer: what counts is how much of a list is there.
      const double share = static_cast<double>(there) / static_cast<double>(tensors.size());
      if (share <= most) continue;
      most = share;
      best = std::move(tensors);
    }
  }
  if (!known) return best;
  leave_out_missing_modules(best, model.shape.mtp_depth, known);
  name_as_stored(best, known);
  return best;
}

spec::ModelShape read_shape(const formats::HfDirectory& directory) {
  const FamilyFormat& format = format_of(directory.config());
  spec::ModelShape shape = format.read_config(directory.config());
  if (format.module_tensor == nullptr) return shape;
  const auto has = [&](std::int64_t module) {
    return std::ranges::any_of(format.prefixes, [&](std::string_view prefix) {
      return directory.find(format.module_tensor(shape, std::string(prefix), module)) != nullptr;
    });
  };
  const std::int64_t said = shape.mtp_depth;
  std::int64_t there = 0;
  while (there < said && has(there)) ++there;
  if (there < said)
    log_info("{}: config.json says {} modules of multi-token prediction, the folder has {}", directory.path().string(),
             said, there);
  shape.mtp_depth = there;
  return shape;
}

std::int64_t row_elements(const nn::Param& param) {
  return param.placement.shape.size() < 2 ? 1 : param.placement.shape.back();
}

std::vector<PublishedBias> published_biases(const spec::ModelShape& shape, const formats::HfDirectory& directory) {
  const FamilyFormat& format = format_of(shape);
  if (format.biases == nullptr || !shape.experts.used()) return {};
  for (const std::string_view prefix : format.prefixes) {
    auto biases = format.biases(shape, std::string(prefix));
    std::erase_if(biases, [&](const PublishedBias& bias) {  // a module may be missing as a whole
      return bias.layer.starts_with("mtp.") && directory.find(bias.name) == nullptr;
    });
    const bool there = std::ranges::all_of(biases, [&](const auto& bias) { return directory.find(bias.name); });
    if (there) return biases;
  }
  for (const PublishedBias& bias : format.biases(shape, std::string(format.prefixes.front()))) {
    if (directory.find(bias.name) != nullptr || bias.layer.starts_with("mtp.")) continue;
    throw FormatError(fmt::format("{} has no tensor {}", directory.path().string(), formats::shown(bias.name)),
                      "routers of this family choose experts with it");
  }
  return {};
}

void load_biases(const spec::ModelShape& shape, const formats::HfDirectory& directory, nn::moe::Balance& balance) {
  if (shape.experts.bias_update_rate == 0) return;
  for (const PublishedBias& bias : published_biases(shape, directory)) {
    const at::Tensor numbers = stored(directory, directory.tensor(bias.name)).to(at::kFloat);
    if (numbers.numel() != shape.experts.num_experts) {
      throw FormatError(fmt::format("{}: tensor {} has {} elements for {} experts", directory.path().string(),
                                    formats::shown(bias.name), numbers.numel(), shape.experts.num_experts));
    }
    for (const nn::moe::ExpertLoads& layer : balance) {
      if (layer.layer == bias.layer && layer.bias.defined()) at::Tensor(layer.bias).copy_(numbers);
    }
  }
}

at::Tensor published_view(const PublishedTensor& tensor, const at::Tensor& of_param) {
  if (!tensor.shape.empty())
    return of_param.view({-1, of_param.size(-1)}).narrow(0, tensor.first_row, tensor.rows).view(tensor.shape);
  at::Tensor view = of_param.narrow(0, tensor.first_row, tensor.rows);
  return tensor.transposed ? view.t() : view;
}

const formats::HfTensor* find_published(const formats::HfDirectory& directory, const PublishedTensor& tensor,
                                        const std::vector<PublishedTensor>& tensors) {
  if (const formats::HfTensor* codes = find_codes(directory, tensor.name)) return codes;  // checked when they are read
  const formats::HfTensor* found = directory.find(tensor.name);
  if (!found) {
    if (tensor.optional) return nullptr;
    throw FormatError(fmt::format("{} has no tensor {}", directory.path().string(), formats::shown(tensor.name)),
                      "the model that config.json describes needs it; check model_type and num_hidden_layers");
  }
  check_shape(*found, tensor);
  if (is_fp8(*found)) {
    block_scales(directory, *found);
  } else {
    scalar_type(*found->info, found->file->path().string());
  }
  if (tensor.optional) {
    const PublishedTensor& original = original_of(tensor, tensors);
    const formats::HfTensor* other = directory.find(original.name);  // null: an error of its own
    if (other && !is_same(directory, *found, *other)) {
      log_warn("{}: config.json ties {} to {}, but their values differ; the model uses those of {}",
               directory.path().string(), formats::shown(tensor.name), formats::shown(original.name),
               formats::shown(original.name));
    }
  }
  return found;
}

at::Tensor stored_elements(const formats::HfDirectory& directory, const formats::HfTensor& tensor, std::int64_t begin,
                           std::int64_t end) {
  if (!is_fp8(tensor)) return raw_elements(tensor, begin, end);
  const formats::HfTensor& blocks = block_scales(directory, tensor);
  const at::Tensor scales = raw_elements(blocks, 0, elements_of(blocks));
  const auto* scale = scales.const_data_ptr<float>();
  const std::int64_t columns = tensor.info->shape[1], across = blocks.info->shape[1];
  at::Tensor out = at::empty({end - begin}, at::kFloat);
  auto* values = out.mutable_data_ptr<float>();
  for (std::int64_t at = begin; at < end; ++at) {
    const auto code = static_cast<std::uint8_t>(tensor.bytes()[static_cast<std::size_t>(at)]);
    const std::int64_t block = at / columns / kFp8Block * across + at % columns / kFp8Block;
    *values++ = static_cast<float>(c10::Float8_e4m3fn(code, c10::Float8_e4m3fn::from_bits())) * scale[block];
  }
  return out;
}

void log_unused(const formats::HfDirectory& directory, const std::vector<PublishedTensor>& tensors) {
  std::set<std::string_view> used, of_experts;
  for (const PublishedTensor& tensor : tensors) {
    used.insert(tensor.name);
    if (const std::string_view place = place_of_experts(tensor.name); !place.empty()) of_experts.insert(place);
  }
  constexpr std::string_view kBias = ".e_score_correction_bias";  // no parameter: published_biases()
  std::size_t others = 0;
  for (const formats::HfTensor& tensor : directory.tensors()) {
    std::string_view name = tensor.info->name;
    if (name.ends_with(kScaleSuffix)) name.remove_suffix(kScaleSuffix.size());
    if (used.contains(name) || name.ends_with(kBias) || is_part_of_codes(directory, name)) continue;
    if (const std::string_view place = place_of_experts(name); of_experts.contains(place))
      throw ConfigError(
          fmt::format("{} has experts in {} that the model does not have, or has already: {}",
                      directory.path().string(), formats::shown(place), formats::shown(name)),
          "give config.json the number of experts that the tensors have, and each expert one set of tensors");
    if (++others <= 3)
      log_info("{}: tensor {} is no part of the model and stays as it is", directory.path().string(),
               formats::shown(tensor.info->name));
  }
  if (others > 3) log_info("{}: {} more tensors are no part of the model", directory.path().string(), others - 3);
}

std::unique_ptr<Model> load_published(const formats::HfDirectory& directory, const LoadOptions& options) {
  auto model = build(options.shape ? *options.shape : read_shape(directory), options.build);
  nn::allocate(model->params, options.precision);
  const auto tensors =
      published_tensors(*model, [&](std::string_view name) { return directory.find(name) != nullptr; });
  for (const PublishedTensor& tensor : tensors) load_tensor(directory, tensor, tensors);
  for (nn::Param& param : model->params) nn::publish(param);
  load_biases(model->shape, directory, model->balance);
  log_unused(directory, tensors);
  warn_of_narrow_routers(directory, tensors);
  return model;
}

void save_published_like(const formats::HfDirectory& source, Model& model, const std::filesystem::path& path) {
  if (quantised_format(source.config()))
    throw ConfigError(fmt::format("{} has quantised matrices, which are not written again", source.path().string()),
                      "write a plain folder with `trireme convert`, or quantise that with `trireme quantize`");
  const auto tensors = published_tensors(model, [&](std::string_view name) { return source.find(name) != nullptr; });
  std::map<std::string_view, const PublishedTensor*> by_name;
  for (const PublishedTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  std::map<std::string, at::Tensor> biases;
  for (const PublishedBias& bias : published_biases(model.shape, source)) {
    for (const nn::moe::ExpertLoads& layer : model.balance) {
      if (layer.layer == bias.layer && layer.bias.defined()) biases[bias.name] = layer.bias;
    }
  }
  formats::HfWriter writer(path, formats::plan_hf_like(source));
  std::map<std::string, at::Tensor> scales;  // of FP8 matrices that have changed
  const auto scales_of = [&](const formats::HfTensor& of) -> const PublishedTensor* {
    std::string_view name = of.info->name;
    if (!name.ends_with(kScaleSuffix)) return nullptr;
    const auto matrix = by_name.find(name.substr(0, name.size() - kScaleSuffix.size()));
    return matrix == by_name.end() ? nullptr : matrix->second;
  };
  for (const formats::HfTensor& stored_tensor : source.tensors()) {
    if (scales_of(stored_tensor) != nullptr) continue;  // behind their matrices
    if (const auto bias = biases.find(stored_tensor.info->name); bias != biases.end()) {
      const at::ScalarType type = scalar_type(*stored_tensor.info, stored_tensor.file->path().string());
      writer.write(stored_tensor.info->name, bytes_of(bias->second.to(type).contiguous()));
      continue;
    }
    const auto found = by_name.find(stored_tensor.info->name);
    const bool ours = found != by_name.end() &&
                      (!found->second->optional ||
                       is_same(source, stored_tensor, source.tensor(original_of(*found->second, tensors).name)));
    if (!ours) {
      writer.write(stored_tensor.info->name, stored_tensor.bytes());
      continue;
    }
    if (is_fp8(stored_tensor)) {
      const at::Tensor now = published_view(*found->second, found->second->param->master);
      if (at::equal(now.to(at::kFloat), stored(source, stored_tensor))) {  // other scales might say the same
        writer.write(stored_tensor.info->name, stored_tensor.bytes());
        continue;
      }
      const Fp8Blocks matrix = to_fp8_blocks(now);
      writer.write(stored_tensor.info->name, bytes_of(matrix.codes));
      scales[fmt::format("{}{}", stored_tensor.info->name, kScaleSuffix)] = matrix.scales;
      continue;
    }
    const at::ScalarType type = scalar_type(*stored_tensor.info, stored_tensor.file->path().string());
    const at::Tensor numbers = published_view(*found->second, found->second->param->master).to(type).contiguous();
    writer.write(stored_tensor.info->name, bytes_of(numbers));
  }
  for (const formats::HfTensor& stored_tensor : source.tensors()) {
    if (scales_of(stored_tensor) == nullptr) continue;
    const auto changed = scales.find(stored_tensor.info->name);
    if (changed == scales.end()) {
      writer.write(stored_tensor.info->name, stored_tensor.bytes());
    } else {
      writer.write(stored_tensor.info->name, bytes_of(changed->second));
    }
  }
  for (const auto& companion : formats::hf_companions(source.path())) {
    writer.add_file(companion.filename().string(), read_text_file(companion, kMaxCompanionBytes));
  }
  writer.finish();
}

void save_published(Model& model, const std::filesystem::path& path, formats::Dtype dtype) {
  save_published(model, path, dtype, [](const nn::Param& param, std::int64_t begin, std::int64_t end) {
    return param.master.view({-1}).narrow(0, begin, end - begin);
  });
}

PublishedTexts texts_of(const std::filesystem::path& directory) {
  PublishedTexts texts{.config = read_text_file(directory / "config.json", formats::kMaxConfigBytes), .files = {}};
  for (const auto& companion : formats::hf_companions(directory)) {
    texts.files[companion.filename().string()] = read_text_file(companion, kMaxCompanionBytes);
  }
  return texts;
}

void save_published(Model& model, const std::filesystem::path& path, formats::Dtype dtype, const ReadElements& read,
                    const PublishedTexts& texts, const MatrixCodec* codec) {
  const FamilyFormat& format = format_of(model.shape);
  if (model.shape.sparse_attention.used())
    throw ConfigError("published formats have no block-sparse attention (model.sparse_attention)",
                      "keep the run's own checkpoints: trireme convert --to checkpoint");
  if (model.shape.mtp_depth > 0 && format.module_tensor == nullptr)
    log_info("{}: modules of multi-token prediction are left out: the published format of {} has no place for them",
             path.string(), format.model_type);
  formats::HfConfig config(texts.config, "config.json");
  if (!config.json().contains("architectures")) {
    config.set("architectures", nlohmann::ordered_json::array({format.architecture}));
  }
  config.set("model_type", format.model_type);
  // FP8 is for the matrices of layers; the others, and what computes with them, are bfloat16.
  const bool blocks = dtype == Dtype::kF8E4M3;
  if (blocks) {
    dtype = Dtype::kBF16;
    config.set("quantization_config", nlohmann::ordered_json{{"activation_scheme", "dynamic"},
                                                             {"fmt", "e4m3"},
                                                             {"quant_method", "fp8"},
                                                             {"weight_block_size", {kFp8Block, kFp8Block}}});
  } else if (codec != nullptr) {
    config.set("quantization_config", nlohmann::ordered_json::parse(codec->config()));
  } else {
    config.erase("quantization_config");  // of the folder that the texts are of
  }
  // Newer files call it dtype.
  config.set(config.json().contains("dtype") ? "dtype" : "torch_dtype", dtype == Dtype::kBF16  ? "bfloat16"
                                                                        : dtype == Dtype::kF16 ? "float16"
                                                                                               : "float32");
  if (!says_the_same(format, config, model.shape)) format.write_config(model.shape, config);
  check_says_all(format, config, model.shape);
  std::vector<formats::TensorSpec> specs;
  std::vector<PublishedTensor> written;
  for (PublishedTensor& tensor : published_tensors(model, nullptr)) {
    if (tensor.optional && !tensor.repeated) continue;
    const std::vector<std::int64_t> shape = published_shape(tensor);
    if (codec != nullptr && is_quantisable(*tensor.param)) {
      for (formats::TensorSpec& spec : codec->specs(tensor.name, tensor.rows, row_elements(*tensor.param)))
        specs.push_back(std::move(spec));
      written.push_back(std::move(tensor));
      continue;
    }
    const bool coded = blocks && is_layer_matrix(tensor);
    specs.push_back({.name = tensor.name, .dtype = coded ? Dtype::kF8E4M3 : dtype, .shape = shape});
    if (coded)
      specs.push_back({.name = fmt::format("{}{}", tensor.name, kScaleSuffix),
                       .dtype = Dtype::kF32,
                       .shape = {fp8_blocks(shape[0]), fp8_blocks(shape[1])}});
    written.push_back(std::move(tensor));
  }
  std::vector<PublishedBias> biases;
  if (format.biases != nullptr && model.shape.experts.used())
    biases = format.biases(model.shape, std::string(format.prefixes.front()));
  for (const PublishedBias& bias : biases)
    specs.push_back({.name = bias.name, .dtype = Dtype::kF32, .shape = {model.shape.experts.num_experts}});
  formats::HfWriter writer(path, formats::plan_hf(specs, config, {}));
  for (const PublishedTensor& tensor : written) {
    const std::int64_t row = row_elements(*tensor.param);
    const std::int64_t begin = tensor.first_row * row, end = begin + tensor.rows * row;
    if (codec != nullptr && is_quantisable(*tensor.param)) {
      const std::vector<at::Tensor> parts = codec->encode(read(*tensor.param, begin, end).view({tensor.rows, row}));
      const auto names = codec->specs(tensor.name, tensor.rows, row);
      for (std::size_t i = 0; i < parts.size(); ++i) writer.write(names[i].name, bytes_of(parts[i]));
      continue;
    }
    if (blocks && is_layer_matrix(tensor)) {
      const at::Tensor numbers = read(*tensor.param, begin, end).view({tensor.rows, row});
      const Fp8Blocks matrix = to_fp8_blocks(tensor.transposed ? numbers.t() : numbers);
      writer.write(tensor.name, bytes_of(matrix.codes));
      writer.write(fmt::format("{}{}", tensor.name, kScaleSuffix), bytes_of(matrix.scales));
      continue;
    }
    const std::int64_t step = tensor.transposed ? end - begin : kElementsAtOnce;
    for (std::int64_t at = begin; at < end; at += step) {
      at::Tensor numbers = read(*tensor.param, at, std::min(at + step, end)).to(to_scalar_type(dtype));
      if (tensor.transposed) numbers = numbers.view({tensor.rows, row}).t();
      writer.write(tensor.name, bytes_of(numbers.contiguous()));
    }
  }
  for (const PublishedBias& bias : biases) {
    at::Tensor numbers = at::zeros({model.shape.experts.num_experts}, at::kFloat);  // a router without one
    for (const nn::moe::ExpertLoads& layer : model.balance) {
      if (layer.layer == bias.layer && layer.bias.defined()) numbers = layer.bias;
    }
    writer.write(bias.name, bytes_of(numbers));
  }
  for (const auto& [name, text] : texts.files) writer.add_file(name, text);
  writer.finish();
}

}  // namespace trireme::models
