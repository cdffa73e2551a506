#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/formats/format_error.h"
#include "trireme/models/families/families.h"

namespace trireme::models {
namespace {

struct PublishedActivation {
  std::string_view name;
  spec::Activation activation;
};
// The first of a kind is the name that is written.
constexpr PublishedActivation kActivations[] = {
    {"gelu_new", spec::Activation::kGeluTanh},  {"gelu_pytorch_tanh", spec::Activation::kGeluTanh},
    {"gelu_fast", spec::Activation::kGeluTanh}, {"gelu", spec::Activation::kGelu},
    {"relu", spec::Activation::kRelu},          {"silu", spec::Activation::kSilu},
    {"swish", spec::Activation::kSilu},
};

}  // namespace

void unsupported(const formats::HfConfig& config, std::string_view key, const std::string& value,
                 const std::string& supported) {
  throw formats::FormatError(
      fmt::format("{}: {} is {}, which this family does not compute", config.source(), key, value), supported);
}

spec::Activation activation_named(const formats::HfConfig& config, std::string_view key, std::string_view otherwise) {
  const auto name = config.get_or<std::string>(key, std::string(otherwise));
  for (const auto& entry : kActivations) {
    if (entry.name == name) return entry.activation;
  }
  std::string names;
  for (const auto& entry : kActivations) names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  unsupported(config, key, formats::shown(name), "supported are " + names);
}

std::string_view published_name(spec::Activation activation) {
  for (const auto& entry : kActivations) {
    if (entry.activation == activation) return entry.name;
  }
  return "relu";
}

void read_rotary(const formats::HfConfig& config, spec::ModelShape& shape, double base) {
  spec::Rotary& rotary = shape.rotary;
  // Newer files keep everything about RoPE in rope_parameters, older ones beside and in rope_scaling.
  const bool newer = config.json().contains("rope_parameters") && config.json()["rope_parameters"].is_object();
  const std::string in = newer ? "rope_parameters." : "rope_scaling.";
  for (const std::string& key : {std::string("partial_rotary_factor"), in + "partial_rotary_factor"}) {
    if (const auto share = config.find<double>(key); share && *share != 1) {
      unsupported(config, key, fmt::format("{}", *share),
                  "partial rotary embeddings are not supported: leave the key out");
    }
  }
  rotary.base = config.find<double>(newer ? "rope_parameters.rope_theta" : "rope_theta").value_or(base);
  const auto type =
      config.find<std::string>(in + "rope_type").value_or(config.get_or<std::string>(in + "type", "default"));
  rotary.original_positions = config.get_or<std::int64_t>(in + "original_max_position_embeddings", shape.max_seq_len);
  if (type == "default") {
    rotary.scaling = spec::RotaryScaling::kNone;
    return;
  }
  rotary.factor = config.get<double>(in + "factor");
  if (type == "linear") {
    rotary.scaling = spec::RotaryScaling::kLinear;
  } else if (type == "llama3") {
    rotary.scaling = spec::RotaryScaling::kLlama3;
    rotary.low_frequency = config.get<double>(in + "low_freq_factor");
    rotary.high_frequency = config.get<double>(in + "high_freq_factor");
    rotary.original_positions = config.get<std::int64_t>(in + "original_max_position_embeddings");
  } else if (type == "yarn") {
    rotary.scaling = spec::RotaryScaling::kYarn;
    rotary.beta_fast = config.get_or<double>(in + "beta_fast", 32);
    rotary.beta_slow = config.get_or<double>(in + "beta_slow", 1);
    rotary.attention_factor = config.get_or<double>(in + "attention_factor", 0);
    rotary.truncate = config.get_or<bool>(in + "truncate", true);
    rotary.mscale = config.get_or<double>(in + "mscale", 0);
    rotary.mscale_all_dim = config.get_or<double>(in + "mscale_all_dim", 0);
    if (shape.family != spec::Family::kDeepseekV3) {
      // Elsewhere the reference takes cosines and sines times what both say, and leaves scores as they are.
      if (rotary.mscale > 0 && rotary.mscale_all_dim > 0) rotary.attention_factor = spec::yarn_magnitude(rotary);
      rotary.mscale = rotary.mscale_all_dim = 0;
    }
  } else if (type == "dynamic") {
    rotary.scaling = spec::RotaryScaling::kDynamic;
    rotary.original_positions = shape.max_seq_len;  // the reference stretches what is longer than that
  } else {
    unsupported(config, in + "rope_type", formats::shown(type),
                "supported are default, linear, dynamic, llama3 and yarn");
  }
}

void write_rotary(const spec::Rotary& rotary, formats::HfConfig& config) {
  config.set("rope_theta", rotary.base);
  nlohmann::ordered_json scaling;
  switch (rotary.scaling) {
    case spec::RotaryScaling::kNone:
      config.set("rope_scaling", nullptr);
      return;
    case spec::RotaryScaling::kLinear:
      scaling = {{"factor", rotary.factor}, {"rope_type", "linear"}};
      break;
    case spec::RotaryScaling::kDynamic:
      scaling = {{"factor", rotary.factor}, {"rope_type", "dynamic"}};
      break;
    case spec::RotaryScaling::kLlama3:
      scaling = {{"factor", rotary.factor},
                 {"high_freq_factor", rotary.high_frequency},
                 {"low_freq_factor", rotary.low_frequency},
                 {"original_max_position_embeddings", rotary.original_positions},
                 {"rope_type", "llama3"}};
      break;
    case spec::RotaryScaling::kYarn:
      scaling = {{"beta_fast", rotary.beta_fast}, {"beta_slow", rotary.beta_slow},
                 {"factor", rotary.factor},       {"original_max_position_embeddings", rotary.original_positions},
                 {"rope_type", "yarn"},           {"truncate", rotary.truncate}};
      if (rotary.attention_factor > 0) scaling["attention_factor"] = rotary.attention_factor;
      if (rotary.mscale > 0) scaling["mscale"] = rotary.mscale;
      if (rotary.mscale_all_dim > 0) scaling["mscale_all_dim"] = rotary.mscale_all_dim;
      break;
  }
  config.set("rope_scaling", scaling);
}

void TensorList::add(std::string name, const std::string& param, bool transposed, bool optional) {
  nn::Param& found = model_.params.at(param);
  tensors_.push_back({.name = std::move(name),
                      .param = &found,
                      .rows = found.placement.shape.at(0),
                      .transposed = transposed,
                      .optional = optional});
}

void TensorList::add_copy(std::string name, const std::string& param) {
  add(std::move(name), param, /*transposed=*/false, /*optional=*/true);
  tensors_.back().repeated = true;
}

void TensorList::add_head() {
  const bool tied = model_.shape.tied;
  add("lm_head.weight", tied ? "embedding.tokens.weight" : "head.weight", false, /*optional=*/tied);
}

void TensorList::add_rows(std::string name, const std::string& param, std::int64_t first_row, std::int64_t rows) {
  tensors_.push_back(
      {.name = std::move(name), .param = &model_.params.at(param), .first_row = first_row, .rows = rows});
}

}  // namespace trireme::models
