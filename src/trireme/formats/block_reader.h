// formats/block_reader.h -- reads checked blocks of a checkpoint's parts, several at a time.
//
// A block that goes to one place as a whole is read straight to it; others pass through a buffer of the thread.
// Depends on: base, formats/checkpoint_folder.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "trireme/formats/checkpoint_folder.h"

namespace trireme::formats {

struct BlockRead {
  std::size_t part = 0;
  Checked check;
  std::span<const Fetch> fetches;  ///< that touch the block; none: it is only checked
};

/// `refuse` throws for a block whose bytes do not have their checksum or cannot be read.
void read_blocks(const CheckpointFolder& checkpoint, std::span<const BlockRead> reads, int threads,
                 const std::function<void(std::size_t part, const Checked& check, std::string_view why)>& refuse);

}  // namespace trireme::formats
