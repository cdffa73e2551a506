// device/cpu_setup.h -- what this process sets in the libraries below it before anybody computes: oneDNN, MKL, malloc.
//
// The first two are set when this library is loaded.
// Depends on: base.
#pragma once

#include <cstdint>

namespace trireme::device {

// oneDNN on machines that announce AMX without the sizes of its tiles. Some virtual machines pass on the processor's
// flags, but not the list of sizes (leaf 1DH of CPUID). oneDNN believes the flags, sets up no tiles, and the first GEMM
// of bf16 numbers ends the process with an illegal instruction. There it is limited to AVX-512, before it looks.
// ONEDNN_MAX_CPU_ISA in the environment is the user's word, and stays.

/// What a processor says of its tiles.
struct AmxFlags {
  bool tiles = false;          ///< has instructions for them
  std::uint32_t max_leaf = 0;  ///< of CPUID
  std::uint32_t palettes = 0;  ///< sets of sizes, where there is a leaf for them
};
AmxFlags read_amx_flags();

/// Announced, and of no size.
bool is_amx_unusable(const AmxFlags& flags);

/// Where they are, oneDNN is limited. It reads its limit when it is first asked for anything: call this before.
void limit_onednn_isa();

/// To the log, once, where GEMMs go without tiles because of that: for those who compute in bf16 on the CPU.
void warn_of_unusable_amx();

/// The first use of MKL's vector mathematics (VML), by one thread. exp, log, sin, cos and the like of the tensor
/// library's CPU tensors are MKL's. It finds out about the processor when it is first used, and where two threads do
/// that at once, one may be given a coarser way: in some 2 of 100 processes on an Intel processor the first logsumexp
/// of doubles was wrong by 1e-10, and right ever after. Same numbers, same bits is what we promise. Again: nothing
/// happens.
void initialise_mkl_vml();
bool is_mkl_vml_initialised();

/// From now on freed memory stays with the process. By default large blocks go back to the system at once and come
/// again as zeroed pages, one fault for each 4 KiB: a tenth of a training step, which asks for the same blocks again
/// and again. Call it once, before large tensors are made; again: nothing changes.
void keep_host_memory();

}  // namespace trireme::device
