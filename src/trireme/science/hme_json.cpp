#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/formats/json_text.h"
#include "trireme/science/hme.h"

namespace trireme::science {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "trireme hierarchical mixture of experts 1";

ordered_json rows_of(const Matrix& matrix) {
  ordered_json rows = ordered_json::array();
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    rows.push_back(std::vector<double>(matrix.row(i).begin(), matrix.row(i).end()));
  }
  return rows;
}

void read_rows(const ordered_json& rows, Matrix& matrix, const std::string& what, std::string_view source) {
  const auto values = rows.get<std::vector<std::vector<double>>>();
  bool fits = values.size() == matrix.rows;
  for (const auto& row : values) fits = fits && row.size() == matrix.columns;
  if (!fits) {
    throw ConfigError(fmt::format("{}: {} should be {} rows of {} numbers", source, what, matrix.rows, matrix.columns),
                      "fit the model again: `trireme hme fit DATA.csv --save MODEL.json`");
  }
  for (std::size_t i = 0; i < matrix.rows; ++i) std::ranges::copy(values[i], matrix.row(i).begin());
}

}  // namespace

std::string to_json(const Hme& model) {
  ordered_json json;
  json["format"] = kFormat;
  json["family"] = model.columns.family == Family::kGaussian ? "gaussian" : "multinomial";
  json["inputs"] = model.columns.inputs;
  json["targets"] = model.columns.targets;
  json["classes"] = model.columns.classes;
  json["input_means"] = model.columns.means;
  json["input_scales"] = model.columns.scales;
  json["branching"] = model.branching;
  json["gates"] = ordered_json::array();
  for (const Matrix& gate : model.gates) json["gates"].push_back(rows_of(gate));
  json["experts"] = ordered_json::array();
  for (const Expert& expert : model.experts) {
    json["experts"].push_back({{"weights", rows_of(expert.weights)}, {"variances", expert.variances}});
  }
  return formats::python_json(json, formats::Keys::kAsTheyAre) + "\n";
}

Hme hme_from_json(std::string_view text, std::string_view source) {
  const ordered_json json = formats::parse_json(text, source);
  const std::string hint = "it is written by `trireme hme fit DATA.csv --save MODEL.json`";
  if (!json.is_object() || json.value("format", "") != kFormat) {
    throw ConfigError(fmt::format("{} is no hierarchical mixture of experts", source), hint);
  }
  try {
    Columns columns;
    columns.family = json.at("family") == "multinomial" ? Family::kMultinomial : Family::kGaussian;
    columns.inputs = json.at("inputs").get<std::vector<std::string>>();
    columns.targets = json.at("targets").get<std::vector<std::string>>();
    columns.classes = json.at("classes").get<std::vector<std::string>>();
    columns.means = json.at("input_means").get<std::vector<double>>();
    columns.scales = json.at("input_scales").get<std::vector<double>>();
    if (columns.means.size() != columns.inputs.size() || columns.scales.size() != columns.inputs.size()) {
      throw ConfigError(fmt::format("{}: every input needs a mean and a scale", source), hint);
    }
    Hme model = Hme::make(std::move(columns), json.at("branching").get<std::vector<int>>());
    if (json.at("gates").size() != model.gates.size() || json.at("experts").size() != model.experts.size()) {
      throw ConfigError(
          fmt::format("{}: this tree has {} gates and {} experts, not {} and {}", source, model.gates.size(),
                      model.experts.size(), json.at("gates").size(), json.at("experts").size()),
          hint);
    }
    for (std::size_t i = 0; i < model.gates.size(); ++i) {
      read_rows(json.at("gates")[i], model.gates[i], fmt::format("gate {}", i), source);
    }
    for (std::size_t i = 0; i < model.experts.size(); ++i) {
      Expert& expert = model.experts[i];
      read_rows(json.at("experts")[i].at("weights"), expert.weights, fmt::format("expert {}", i), source);
      const auto variances = json.at("experts")[i].at("variances").get<std::vector<double>>();
      bool good = variances.size() == expert.variances.size();
      for (const double variance : variances) good = good && variance > 0;
      if (!good) {
        throw ConfigError(
            fmt::format("{}: expert {} should have {} positive variances", source, i, expert.variances.size()), hint);
      }
      expert.variances = variances;
    }
    return model;
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: {}", source, error.what()), hint);
  }
}

}  // namespace trireme::science
