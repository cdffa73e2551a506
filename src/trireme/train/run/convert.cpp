#include "trireme/train/run/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/formats/checkpoint_rewrite.h"
#include "trireme/formats/hf_directory.h"
#include "trireme/layout/hash.h"
#include "trireme/models/matrix_codec.h"
#include "trireme/models/published.h"
#include "trireme/nn/state.h"
#include "trireme/train/run/run_writer.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTextBytes = 1'000'000'000;        // tokenizers have been seen with tens of megabytes
constexpr std::uint64_t kPartBytes = std::uint64_t{4} << 30;  // of a checkpoint's files

formats::Dtype dtype_of(const std::string& name) {
  const auto dtype = formats::parse_dtype(name);
  for (const auto known :
       {formats::Dtype::kF32, formats::Dtype::kBF16, formats::Dtype::kF16, formats::Dtype::kF8E4M3}) {
    if (dtype == known) return known;
  }
  throw ConfigError(fmt::format("\"{}\" is no type that weights are published in", name),
                    "use F32, BF16, F16 or F8_E4M3");
}

/// What `transformers` needs of a run of ours: which tokens begin and end a text, and its tokenizer.
models::PublishedTexts own_texts(const std::optional<std::string>& named, const spec::ModelShape& shape) {
  models::PublishedTexts texts;
  if (!named) return texts;
  const auto tokenizer = data::load_tokenizer(*named);
  const data::TokenRoles& roles = tokenizer->roles();
  nlohmann::ordered_json config = nlohmann::ordered_json::object(), generation = config, about = config;
  about["tokenizer_class"] = "PreTrainedTokenizerFast";
  about["clean_up_tokenization_spaces"] = false;
  about["model_max_length"] = shape.max_seq_len;
  // The class names token types unless it is told otherwise, and generate() refuses what its model does not take.
  about["model_input_names"] = {"input_ids", "attention_mask"};
  if (shape.family == spec::Family::kBert) about["model_input_names"].push_back("token_type_ids");
  const auto role = [&](const std::string& name, const std::optional<std::int32_t>& id) {
    if (!id) return;
    config[name + "_token_id"] = generation[name + "_token_id"] = *id;
    if (!tokenizer->is_bytes()) {
      about[name + "_token"] = tokenizer->decode(std::span(&*id, 1), {.skip_special = false});
    }
  };
  role("bos", roles.bos);
  role("eos", roles.eos);
  role("pad", roles.eos);  // as GPT-2 and Llama are padded: it is masked, but batches need some token
  texts.config = config.dump();
  texts.files["generation_config.json"] = generation.dump(2) + "\n";
  if (!tokenizer->is_bytes()) texts.files["tokenizer_config.json"] = about.dump(2) + "\n";
  return texts;
}

/// The tokenizer of the run beats that of the model which it began from.
void add_tokenizer(const std::optional<std::string>& named, models::PublishedTexts& texts) {
  if (!named || *named == "bytes" || !fs::exists(*named)) return;
  for (const std::string_view name : kTokenizerFiles) {
    const fs::path file = fs::path(*named).parent_path() / name;
    if (fs::exists(file)) texts.files[std::string(name)] = read_text_file(file, kMaxTextBytes);
  }
  texts.files["tokenizer.json"] = read_text_file(*named, kMaxTextBytes);
}

/// Null: plain matrices.
std::unique_ptr<models::MatrixCodec> codec_of(const ConvertRequest& request) {
  using Bits = ConvertRequest::Bits;
  using kernels::WeightFormat;
  if (request.bits == Bits::kPlain) return nullptr;
  const bool awq = request.int4_layout == ConvertRequest::Int4Layout::kAwq;
  return models::make_codec({.format = request.bits == Bits::kInt8   ? WeightFormat::kInt8
                                       : request.bits == Bits::kInt4 ? WeightFormat::kInt4
                                                                     : WeightFormat::kE4m3,
                             .group = request.group,
                             .symmetric = request.symmetric,
                             .layout = awq ? models::QuantisedLayout::kAwq : models::QuantisedLayout::kGptq});
}

std::int64_t write_published(const checkpoint::StoredWeights& weights, const ConvertRequest& request) {
  const auto published = weights.published();
  models::PublishedTexts texts = published ? *published : own_texts(weights.tokenizer(), weights.model().shape);
  add_tokenizer(weights.tokenizer(), texts);
  weights.fill(weights.model().balance);
  models::save_published(
      weights.model(), request.to, dtype_of(request.dtype),
      [&](const nn::Param& param, std::int64_t begin, std::int64_t end) { return weights.read(param, begin, end); },
      texts, codec_of(request).get());
  return static_cast<std::int64_t>(formats::HfDirectory(request.to).tensors().size());
}

void check_quantises(const checkpoint::StoredWeights& weights, const ConvertRequest& request) {
  if (request.dtype == "F8_E4M3")
    throw ConfigError("F8_E4M3 is a way of its own to quantise matrices", "give the other tensors F32, BF16 or F16");
  if (weights.is_quantised())
    throw ConfigError(fmt::format("{} is quantised already", weights.what()),
                      "quantise the folder that it was made of");
  const auto& params = weights.model().params;
  if (std::ranges::none_of(params, [](const nn::Param& param) { return models::is_quantisable(param); }))
    throw ConfigError(
        fmt::format("{} has no matrices to quantise: experts and latent projections stay as they are", weights.what()));
}

/// Weights alone, at step 0, with a recipe that holds the model: what model.init_from, eval and generate take.
std::int64_t write_checkpoint(const checkpoint::StoredWeights& weights, const ConvertRequest& request) {
  models::Model& model = weights.model();
  spec::Recipe recipe = weights.recipe().value_or(spec::Recipe{});
  recipe.model = spec::resolved(spec::config_of(model.shape));
  if (weights.tokenizer()) recipe.data.tokenizer = fs::absolute(*weights.tokenizer()).string();
  formats::CheckpointStream stream;
  stream.files[std::string(formats::kRecipeFile)] = config::to_toml(recipe);
  if (const auto published = weights.published()) {
    const auto name = [](std::string_view theirs) { return fmt::format("{}{}", checkpoint::kPublishedPrefix, theirs); };
    stream.files[name("config.json")] = published->config;
    for (const auto& [file, text] : published->files) stream.files[name(file)] = text;
  }
  stream.manifest.values = nlohmann::ordered_json::object();
  constexpr std::string_view kPrefix = "param/";
  std::map<std::string, std::uint64_t> hashes;
  std::uint64_t bytes = 0;
  for (const nn::Param& param : model.params) {
    const std::string name = fmt::format("{}{}", kPrefix, param.name);
    formats::StoredTensor& tensor = stream.manifest.tensors[name];
    tensor = {.dtype = formats::Dtype::kF32, .shape = param.placement.shape, .slices = {}};
    hashes[name] = 0;
    bytes += tensor.bytes();
  }
  weights.fill(model.balance);
  nn::State biases;
  model.balance.add_state(biases);
  for (const nn::StateTensor& bias : biases.tensors()) {
    stream.manifest.tensors[bias.name] = {.dtype = formats::Dtype::kF32, .shape = bias.placement.shape, .slices = {}};
    hashes[bias.name] = 0;
  }
  stream.read = [&](const std::string& name, std::int64_t begin, std::int64_t end, std::byte* to) {
    const nn::StateTensor* bias = biases.find(name);
    const at::Tensor numbers =
        bias != nullptr
            ? bias->tensor.narrow(0, begin, end - begin)
            : weights.read(model.params.at(std::string_view(name).substr(kPrefix.size())), begin, end).to(at::kFloat);
    std::memcpy(to, numbers.const_data_ptr(), numbers.nbytes());
    const layout::ContiguousRun run{.global = begin, .local = 0, .count = end - begin};
    hashes.at(name) += layout::tensor_hash({&run, 1}, {to, numbers.nbytes()}, sizeof(float));
  };
  stream.hash = [&] {
    std::vector<nn::HashShare> shares;
    for (const auto& [name, hash] : hashes) shares.push_back({name, hash});
    return nn::total_hash(shares);
  };
  const auto parts = static_cast<int>((bytes + kPartBytes - 1) / kPartBytes);
  formats::write_streamed(std::move(stream), fs::absolute(request.to).lexically_normal(), std::max(1, parts));
  return static_cast<std::int64_t>(hashes.size());
}

}  // namespace

ConvertResult convert(const ConvertRequest& request) {
  if (fs::exists(request.to)) {
    throw ConfigError(fmt::format("{} is already there", request.to.string()), "give another name, or remove it");
  }
  dtype_of(request.dtype);
  const checkpoint::StoredWeights weights(request.from);
  if (request.bits != ConvertRequest::Bits::kPlain) check_quantises(weights, request);
  ConvertResult result{.parameters = weights.model().params.elements()};
  result.tensors = request.kind == ConvertRequest::Kind::kHuggingFace ? write_published(weights, request)
                                                                      : write_checkpoint(weights, request);
  return result;
}

}  // namespace trireme::train
