// checkpoint/stream_copy.h -- copies what nobody looks at soon: past the caches.
//
// A copy of the state for a save in the background is read once, by the disk. Stored through the caches it costs a
// third read of memory (a line is fetched before it is overwritten) and throws out what the step beside it computes
// with. Where the processor has no such stores it is a plain copy.
#pragma once

#include <cstddef>

namespace trireme::checkpoint {

/// The stretches do not overlap. When it returns other threads may be told of the copy.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace trireme::checkpoint
