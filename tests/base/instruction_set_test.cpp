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
  const auto beyond = static_cast<InstructionSet>(static_cast<int>(machine_instruction_set()) + 1);
  const InstructionSet before = instruction_set();
  EXPECT_THROW(UseInstructionSet{beyond}, ConfigError);
  EXPECT_EQ(instruction_set(), before);
}

TEST(InstructionSet, HasNames) {
  EXPECT_EQ(to_string(InstructionSet::kPlain), "plain");
  EXPECT_EQ(to_string(InstructionSet::kV4Bf16), "v4bf16");
}

}  // namespace
}  // namespace trireme
