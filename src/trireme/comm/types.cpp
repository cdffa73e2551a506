#include "trireme/comm/types.h"

namespace trireme::comm {

std::string_view name(DType type) {
  constexpr std::string_view kNames[] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8"};
  return kNames[static_cast<std::size_t>(type)];
}

std::string_view name(Reduce reduce) {
  constexpr std::string_view kNames[] = {"sum", "avg", "min", "max", "prod"};
  return kNames[static_cast<std::size_t>(reduce)];
}

}  // namespace trireme::comm
