// dashboard/json_numbers.h -- numbers and curves for the page: six digits are more than a screen shows.
//
// Depends on: observe (JSON, curve).
#pragma once

#include "trireme/observe/json_values.h"
#include "trireme/observe/report/curve.h"

namespace trireme::dashboard {

/// Six significant digits; null where it is NaN or Inf, which a script would otherwise have to spell.
observe::Json short_number(double value);
/// {"x":[...],"y":[...]}.
observe::Json curve_json(const observe::Curve& curve);

}  // namespace trireme::dashboard
