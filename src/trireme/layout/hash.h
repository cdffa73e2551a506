// layout/hash.h -- a hash of a tensor that does not know how it is laid out.
//
// It is the sum, modulo 2^64, of mix(global index, bits) over all elements: shards add up in any order, so ranks hash
// what they hold, sum, and compare with a run under any other layout. Each element must be counted once: hash
// first_copy_runs() of every rank, or everything on one copy. It finds errors, not forgers.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trireme/layout/placement.h"

namespace trireme::layout {

/// The share of one element: for a given index a bijection of the bits, so that no single change goes unseen.
std::uint64_t mix(Index global, std::uint64_t bits);

/// Of everything that a rank holds; `bytes` is its memory, padding included. Elements of 1, 2, 4 or 8 bytes.
std::uint64_t tensor_hash(const Placement& placement, std::span<const std::byte> bytes, std::size_t element_bytes);
/// Of these runs only.
std::uint64_t tensor_hash(std::span<const ContiguousRun> runs, std::span<const std::byte> bytes,
                          std::size_t element_bytes);

}  // namespace trireme::layout
