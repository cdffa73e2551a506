// train/run/convert.h -- a model from one kind of folder to another, a few megabytes at a time: it may be larger than
// memory.
//
// Depends on: checkpoint, formats, models.
#pragma once

#include "trireme/train/commands.h"

namespace trireme::train {

/// Writes `request.to`, which appears whole or not at all. ConfigError when it exists.
ConvertResult convert(const ConvertRequest& request);

}  // namespace trireme::train
