// checkpoint/weight_memory.h -- weights of the host in huge pages (2 MiB on x86), for inference.
//
// Decode reads every weight once a token: with pages of 4 KiB the processor walks page tables for each of them, and its
// own prefetching ends at their borders. Tensors lie one after the other in blocks that begin on such a page and are
// marked for the kernel before anybody touches them (MADV_HUGEPAGE). Where the kernel has no huge pages they are plain
// memory.
// Depends on: nn.
#pragma once

#include <functional>
#include <span>

#include "trireme/nn/param.h"

namespace trireme::checkpoint {

/// Memory for those parameters that have none yet and no masters; the others are left to allocate(). Of a device other
/// than the CPU: nothing.
void allocate_in_huge_pages(nn::Params& params, nn::Precision precision, at::Device device);
/// Moves tensors of the CPU there, as they are; undefined and empty ones stay what they are.
void move_to_huge_pages(std::span<at::Tensor* const> tensors);

}  // namespace trireme::checkpoint
