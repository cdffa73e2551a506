// base/config/read_value.h -- one value of a file or of --set, read as its field says.
//
// Depends on: node, schema.
#pragma once

#include <string>

#include "trireme/base/config/node.h"
#include "trireme/base/config/schema.h"

namespace trireme::config {

/// A value, or why there is none.
struct Reading {
  Value value = {};
  std::string reason = {}, hint = {};  // of a refusal; a reason is never empty

  bool refused() const { return !reason.empty(); }
};

/// The value, within the field's limits, or why not. Pure.
Reading read_value(const Field& field, const Node& node);

}  // namespace trireme::config
