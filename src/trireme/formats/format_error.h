// formats/format_error.h -- a file that is not what its format says, and where.
//
// Depends on: base.
#pragma once

#include <string>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme::formats {

/// The bytes of a file break the rules of its format: reading them again will not help.
class FormatError : public IoError {
 public:
  using IoError::IoError;
  const char* kind() const noexcept override { return "malformed file"; }
  bool retry_may_help() const noexcept override { return false; }
};

/// A name from a file for a message: in quotes, control characters escaped, cut when it is very long. Names come from
/// files that nobody has checked, so they are never printed as they are.
std::string shown(std::string_view name);

}  // namespace trireme::formats
