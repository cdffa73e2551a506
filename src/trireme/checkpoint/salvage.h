// checkpoint/salvage.h -- what can still be read of a damaged checkpoint, for the person who has to decide.
//
// Depends on: base, formats.
#pragma once

#include <span>
#include <string>

#include "trireme/formats/checkpoint_folder.h"

namespace trireme::checkpoint {

/// A line or two for each: what is damaged, how many tensors are whole, and, where all weights are, the command that
/// saves them. Reads every tensor once.
std::string salvage_text(std::span<const formats::DamagedCheckpoint> damaged);

}  // namespace trireme::checkpoint
