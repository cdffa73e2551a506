// science/tasks/tasks/yaml.h -- the part of YAML that task files use, as JSON.
//
// Block mappings and sequences by indentation, flow sequences of scalars, plain and quoted scalars, block scalars (|
// and
// >), comments. Tags (!function), anchors, aliases, merge keys, flow mappings and several documents are refused by
// name.
// Depends on: base.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trireme::science {

/// ConfigError with the line of what is not understood; `source` names the file.
nlohmann::ordered_json parse_yaml(std::string_view text, const std::string& source);

}  // namespace trireme::science
