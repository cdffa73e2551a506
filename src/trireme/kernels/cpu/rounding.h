// kernels/cpu/rounding.h -- stochastic rounding to bfloat16: up or down stochastically, so that the mean is the number.
//
// The chance of element i is a function of a key and i alone (SplitMix64's finaliser, Steele et al. 2014), the same on
// the CPU and on a GPU. Included by bodies of every instruction set and by CUDA files.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TRIREME_EVERYWHERE __host__ __device__ __forceinline__
#else
#define TRIREME_EVERYWHERE [[gnu::always_inline]] inline
#endif

namespace trireme::kernels {
namespace {

inline constexpr std::uint64_t kRoundingStep = 0x9e3779b97f4a7c15u;  // the golden ratio of 2^64

/// 64 random bits for element `index`: 16 for each of the numbers that an update rounds.
TRIREME_EVERYWHERE std::uint64_t rounding_bits(std::uint64_t key, std::uint64_t index) {
  std::uint64_t z = key + (index + 1) * kRoundingStep;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// The bits of a float whose lower half is cut off after `chance` (16 bits) was added: those of a bfloat16, wide.
TRIREME_EVERYWHERE std::uint32_t rounded_bits(std::uint32_t bits, std::uint32_t chance) {
  if ((bits & 0x7f800000u) == 0x7f800000u) {  // infinity stays, and a NaN stays one
    return (bits & 0xffff0000u) | ((bits & 0x007fffffu) != 0 ? 0x00400000u : 0u);
  }
  return (bits + (chance & 0xffffu)) & 0xffff0000u;
}

// Which 16 of the 64 bits.
inline constexpr int kWeightChance = 0, kFirstChance = 16, kSecondChance = 32;

}  // namespace
}  // namespace trireme::kernels
