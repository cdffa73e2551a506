#include "trireme/base/instruction_set.h"

#include <fmt/format.h>

#include <atomic>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

using enum InstructionSet;

constexpr Named<InstructionSet> kNames[] = {{"plain", kPlain}, {"v3", kV3}, {"v4", kV4}, {"v4bf16", kV4Bf16}};

InstructionSet detect() {
#if defined(__x86_64__)
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512cd");
  if (v4 && __builtin_cpu_supports("avx512bf16")) return kV4Bf16;
  if (v4) return kV4;
  if (v3) return kV3;
#endif
  return kPlain;
}

InstructionSet from_environment() {
  const auto text = env("TRIREME_ISA");
  const InstructionSet machine = machine_instruction_set();
  if (!text) return machine;
  for (const auto& [name, set] : kNames) {
    if (name != *text) continue;
    if (set <= machine) return set;
    throw ConfigError(fmt::format("TRIREME_ISA={}: this machine goes up to {}", *text, to_string(machine)),
                      fmt::format("set TRIREME_ISA={} or unset it", to_string(machine)));
  }
  throw ConfigError(fmt::format("TRIREME_ISA={}: no such instruction set", *text), "use plain, v3, v4 or v4bf16");
}

std::atomic<InstructionSet>& current() {
  static std::atomic<InstructionSet> set{from_environment()};
  return set;
}

}  // namespace

std::string_view to_string(InstructionSet set) { return name_in<InstructionSet>(kNames, set); }

InstructionSet machine_instruction_set() {
  static const InstructionSet set = detect();
  return set;
}

InstructionSet instruction_set() { return current().load(std::memory_order_relaxed); }

UseInstructionSet::UseInstructionSet(InstructionSet set) : before_(current().exchange(set)) {
  if (set > machine_instruction_set()) {
    current() = before_;
    throw ConfigError(fmt::format("instruction set {} was asked for, but this machine goes up to {}", to_string(set),
                                  to_string(machine_instruction_set())));
  }
}

UseInstructionSet::~UseInstructionSet() { current() = before_; }

}  // namespace trireme
