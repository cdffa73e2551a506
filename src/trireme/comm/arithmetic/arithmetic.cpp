#include "trireme/comm/arithmetic/arithmetic.h"

#include "trireme/base/instruction_set.h"
#include "trireme/comm/arithmetic/table.h"

namespace trireme::comm {
namespace {

const ArithmeticTable& best_table() {
#if defined(__x86_64__)
  static const ArithmeticTable& table = instruction_set() >= InstructionSet::kV4   ? kArithmeticV4
                                        : instruction_set() == InstructionSet::kV3 ? kArithmeticV3
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
