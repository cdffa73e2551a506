#include "trireme/base/instruction_set.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

TEST(InstructionSet, IsTheMachinesUnlessToldOtherwise) { EXPECT_LE(instruction_set(), machine_instruction_set()); }

TEST(InstructionSet, CanBeMadeSmallerForAWhile) {
  const InstructionSet before = instruction_set();
  {
    const UseInstructionSet plain(InstructionSet::kPlain);
    EXPECT_EQ(instruction_set(), InstructionSet::kPlain);
  }
  EXPECT_EQ(instruction_set(), before);
}

TEST(InstructionSet, LargerThanTheMachinesIsRefused) {
  if (machine_instruction_set() == InstructionSet::kV4Bf16) GTEST_SKIP() << "this machine has them all";
  const InstructionSet before = instruction_set();
  EXPECT_THROW(UseInstructionSet(InstructionSet::kV4Bf16), ConfigError);
  EXPECT_EQ(instruction_set(), before);
}

TEST(InstructionSet, HasNames) {
  EXPECT_EQ(to_string(InstructionSet::kPlain), "plain");
  EXPECT_EQ(to_string(InstructionSet::kV4Bf16), "v4bf16");
}

}  // namespace
}  // namespace trireme
