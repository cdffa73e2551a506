#include "trireme/device/tiles.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <mutex>

#include "trireme/base/env.h"
#include "trireme/base/log.h"

namespace trireme::device {
namespace {

constexpr const char* kLimit = "ONEDNN_MAX_CPU_ISA";
constexpr std::uint32_t kSizesLeaf = 0x1D;

bool is_avoiding = false;

}  // namespace

TileFlags read_tile_flags() {
  TileFlags flags;
#if defined(__x86_64__)
  constexpr unsigned kTiles = 1U << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  flags.max_leaf = __get_cpuid_max(0, nullptr);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) flags.tiles = (d & kTiles) != 0;
  if (__get_cpuid_count(kSizesLeaf, 0, &a, &b, &c, &d) != 0) flags.palettes = a;
#endif
  return flags;
}

bool are_tiles_hollow(const TileFlags& flags) {
  return flags.tiles && (flags.max_leaf < kSizesLeaf || flags.palettes == 0);
}

void avoid_hollow_tiles() {
  if (!are_tiles_hollow(read_tile_flags()) || env(kLimit)) return;
  set_env(kLimit, "AVX512_CORE_FP16");
  is_avoiding = true;
}

void tell_of_hollow_tiles() {
  static std::once_flag told;
  if (!is_avoiding) return;
  std::call_once(told, [] {
    log_warn(
        "this machine announces AMX without the sizes of its tiles, as some virtual machines do: bf16 GEMMs go by "
        "AVX-512, at a fraction of the speed");
  });
}

}  // namespace trireme::device
