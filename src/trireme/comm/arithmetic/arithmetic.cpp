#include "trireme/comm/arithmetic/arithmetic.h"

#include "trireme/comm/arithmetic/table.h"

namespace trireme::comm {
namespace {

const ArithmeticTable& best_table() {
#if defined(__x86_64__)
  static const ArithmeticTable& table =
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
          ? kArithmeticV4
      : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? kArithmeticV3
                                                                         : kArithmeticPlain;
  return table;
#else
  return kArithmeticPlain;
#endif
}

}  // namespace

const Arithmetic& arithmetic(DType type, Reduce reduce) {
  return best_table().by_reduce[static_cast<std::size_t>(reduce)].by_type[static_cast<std::size_t>(type)];
}

void stream_copy(void* to, const void* from, std::size_t bytes) { best_table().stream_copy(to, from, bytes); }

}  // namespace trireme::comm
