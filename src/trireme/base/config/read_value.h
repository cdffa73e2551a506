// base/config/read_value.h -- one value of a file or of --set, read as its field says.
//
// Depends on: node, schema.
#pragma once

#include <string>
#include <variant>

#include "trireme/base/config/node.h"
#include "trireme/base/config/schema.h"

namespace trireme::config {

/// Why a value will not do.
struct Refusal {
  std::string reason, hint;
};

/// The value, within the field's limits, or why not. Pure.
std::variant<Value, Refusal> read_value(const Field& field, const Node& node);

}  // namespace trireme::config
