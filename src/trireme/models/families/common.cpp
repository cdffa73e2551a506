#include <fmt/format.h>

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

void TensorList::add(std::string name, const std::string& param, bool transposed, bool optional) {
  nn::Param& found = model_.params.at(param);
  tensors_.push_back({.name = std::move(name),
                      .param = &found,
                      .rows = found.placement.shape.at(0),
                      .transposed = transposed,
                      .optional = optional});
}

void TensorList::add_rows(std::string name, const std::string& param, std::int64_t first_row, std::int64_t rows) {
  tensors_.push_back(
      {.name = std::move(name), .param = &model_.params.at(param), .first_row = first_row, .rows = rows});
}

}  // namespace trireme::models
