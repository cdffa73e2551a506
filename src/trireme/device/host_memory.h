// device/host_memory.h -- how this process treats memory that tensors give back.
//
// By default large blocks go back to the system at once and come again as zeroed pages, one fault for each 4 KiB: a
// tenth of a training step. A training step asks for the same blocks again and again, so they are kept.
// Depends on: std.
#pragma once

namespace trireme::device {

/// From now on freed memory stays with the process. Call it once, before large tensors are made; again: nothing
/// changes.
void keep_host_memory();

}  // namespace trireme::device
