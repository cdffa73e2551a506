#include "trireme/device/cpu_setup.h"

#include <ATen/ops/exp.h>
#include <ATen/ops/ones.h>
#include <malloc.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <climits>
#include <mutex>

#include "trireme/base/env.h"
#include "trireme/base/log.h"

namespace trireme::device {
namespace {

constexpr const char* kLimit = "ONEDNN_MAX_CPU_ISA";
constexpr std::uint32_t kSizesLeaf = 0x1D;

bool is_isa_limited = false;
bool is_vml_initialised = false;

[[gnu::constructor]] void at_load() {
  limit_onednn_isa();
  initialise_mkl_vml();
}

}  // namespace

AmxFlags read_amx_flags() {
  AmxFlags flags;
#if defined(__x86_64__)
  constexpr unsigned kTiles = 1U << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  flags.max_leaf = __get_cpuid_max(0, nullptr);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) flags.tiles = (d & kTiles) != 0;
  if (__get_cpuid_count(kSizesLeaf, 0, &a, &b, &c, &d) != 0) flags.palettes = a;
#endif
  return flags;
}

bool is_amx_unusable(const AmxFlags& flags) {
  return flags.tiles && (flags.max_leaf < kSizesLeaf || flags.palettes == 0);
}

void limit_onednn_isa() {
  if (!is_amx_unusable(read_amx_flags()) || env(kLimit)) return;
  set_env(kLimit, "AVX512_CORE_FP16");
  is_isa_limited = true;
}

void warn_of_unusable_amx() {
  static std::once_flag warned;
  if (!is_isa_limited) return;
  std::call_once(warned, [] {
    log_warn(
        "this machine announces AMX without the sizes of its tiles, as some virtual machines do: bf16 GEMMs go by "
        "AVX-512, at a fraction of the speed");
  });
}

void initialise_mkl_vml() {
  if (is_vml_initialised) return;
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) at::exp(at::ones({1}, type));
  is_vml_initialised = true;
}

bool is_mkl_vml_initialised() { return is_vml_initialised; }

void keep_host_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);              // nothing in mappings of its own, which are given back when freed
  mallopt(M_TRIM_THRESHOLD, INT_MAX);  // and the heap does not shrink
  mallopt(M_TOP_PAD, 64 << 20);        // it grows in steps
#endif
}

}  // namespace trireme::device
