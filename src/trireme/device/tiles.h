// device/tiles.h -- machines that announce tiles (AMX) without saying of what size.
//
// Some virtual machines pass on the processor's flags for tiles, but not the list of their sizes (leaf 1DH of CPUID).
// The tensor library's oneDNN believes the flags, sets up no tiles, and the first GEMM of bf16 numbers ends the
// process with an illegal instruction. There it is kept to AVX-512, when this library is loaded and before it looks.
// ONEDNN_MAX_CPU_ISA in the environment is the user's word, and stays.
// Depends on: base.
#pragma once

#include <cstdint>

namespace trireme::device {

/// What a processor says of its tiles.
struct TileFlags {
  bool tiles = false;          ///< has instructions for them
  std::uint32_t max_leaf = 0;  ///< of CPUID
  std::uint32_t palettes = 0;  ///< sets of sizes, where there is a leaf for them
};
TileFlags read_tile_flags();

/// Announced, and of no size.
bool are_tiles_hollow(const TileFlags& flags);

/// Where they are, oneDNN is limited. It reads its limit when it is first asked for anything: call this before.
void avoid_hollow_tiles();

/// To the log, once, where GEMMs go without tiles because of that: for those who compute in bf16 on the CPU.
void tell_of_hollow_tiles();

}  // namespace trireme::device
