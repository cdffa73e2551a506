#include "trireme/spec/faults.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::spec {
namespace {

using Kind = Fault::Kind;

TEST(Faults, AreSentences) {
  const Fault kill = parse_fault("kill rank 2 at step 50");
  EXPECT_EQ(kill.kind, Kind::kKill);
  EXPECT_EQ(kill.rank, 2);
  EXPECT_EQ(kill.step, 50);
  EXPECT_EQ(kill.last_step, 50);
  EXPECT_EQ(parse_fault("kill rank 0 at step 40 while writing").moment, Fault::Moment::kWriting);
  EXPECT_EQ(parse_fault("kill rank 0 at step 40 after published").moment, Fault::Moment::kPublished);
  EXPECT_EQ(parse_fault("hang rank 1 at step 3").kind, Kind::kHang);
  EXPECT_EQ(parse_fault("stall rank 1 at step 3 for 2s").duration, std::chrono::seconds(2));
  const Fault slow = parse_fault("slow rank 3 by 2.5 from step 10 to step 20");
  EXPECT_EQ(slow.factor, 2.5);
  EXPECT_EQ(slow.last_step, 20);
  EXPECT_GT(parse_fault("slow rank 3 by 2.5 from step 10").last_step, 1'000'000);
  const Fault flip = parse_fault("flip a bit of param/wte on rank 1 at step 7");
  EXPECT_EQ(flip.tensor, "param/wte");
  EXPECT_EQ(flip.rank, 1);
  EXPECT_EQ(parse_fault("flip a bit in the checkpoint of step 40").kind, Kind::kFlipFile);
  EXPECT_EQ(parse_fault("disk full at step 40 on rank 1").rank, 1);
  EXPECT_EQ(parse_fault("clock of rank 1 jumps by 1h at step 4").duration, std::chrono::hours(1));
  EXPECT_EQ(parse_fault("clock of rank 1 jumps back by 1h at step 4").duration, -std::chrono::hours(1));
}

TEST(Faults, MistakesAreNamed) {
  for (const char* text :
       {"", "kill", "kill rank two at step 5", "kill rank 1 at step -5", "explode", "slow rank 1 by 0.5 from step 3",
        "kill rank 1 at step 5 while sleeping", "stall rank 1 at step 3 for ever"}) {
    EXPECT_THROW(parse_fault(text), ConfigError) << text;
  }
  try {
    parse_fault("kil rank 1 at step 5");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.hint().find("kill rank R at step S"), std::string::npos);
  }
}

}  // namespace
}  // namespace trireme::spec
