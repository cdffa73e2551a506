#include "trireme/layout/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/layout/random_layouts.h"
#include "trireme/base/error.h"

namespace trireme::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(AxisSets, PutPartsTogetherAndTakeThemApart) {
  const Mesh mesh = parse_mesh("pp=2 dp=8 tp=2");
  EXPECT_THAT(unite(mesh, {"tp", "dp/4"}, {"dp%4"}), ElementsAre("dp", "tp"));
  EXPECT_THAT(unite(mesh, {"dp%2"}, {"dp/4"}), ElementsAre("dp%2", "dp/4"));
  EXPECT_THAT(intersect(mesh, {"dp", "tp"}, {"dp%4", "pp"}), ElementsAre("dp%4"));
  EXPECT_THAT(intersect(mesh, {"dp/2"}, {"dp%4"}), ElementsAre("dp/2%2"));
  EXPECT_THAT(intersect(mesh, {"dp%2"}, {"dp/2"}), IsEmpty());
  EXPECT_THAT(subtract(mesh, {"dp", "tp"}, {"dp%4", "pp"}), ElementsAre("dp/4", "tp"));
  EXPECT_THAT(subtract(mesh, {"dp"}, {"dp/2%2"}), ElementsAre("dp%2", "dp/4"));
  EXPECT_THAT(subtract(mesh, {"dp%2"}, {"dp"}), IsEmpty());
  EXPECT_THAT(unite(mesh, {"dp/8"}, {}), IsEmpty()) << "one rank";
}

TEST(AxisSets, WhatIsUsedIsNotUsedAgain) {
  const Mesh mesh = parse_mesh("dp=8 tp=2");
  EXPECT_THAT(without(mesh, {"dp", "tp"}, "dp%4"), ElementsAre("dp/4", "tp"));
  EXPECT_THAT(without(mesh, {"dp", "tp"}, "dp/8"), ElementsAre("dp", "tp"));
  EXPECT_THAT(without(mesh, {"dp", "tp"}, "dp%8"), ElementsAre("tp"));
  EXPECT_THAT(without(mesh, {"tp", "dp/2"}, "dp/2%2"), ElementsAre("tp", "dp/4"));
  for (const char* used : {"dp", "dp%4"}) {
    try {
      without(mesh, {"dp/2", "tp"}, used);
      ADD_FAILURE() << used << " is not all there";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is used already: what is left is dp/2 tp"));
    }
  }
}

TEST(AxisSets, RefuseCutsThatDoNotNest) {
  const Mesh mesh = parse_mesh("dp=12");
  try {
    intersect(mesh, {"dp%4"}, {"dp%6"});
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "axis dp of 12 ranks is cut at 4 and at 6, which do not nest");
  }
}

/// Two ranks are in one group along the united axes exactly when groups along either connect them, and so on.
TEST(AxisSets, MeanTheSameRanks) {
  const Mesh mesh = parse_mesh("dp=8 cp=2 tp=4");
  const std::vector<AxisNames> sets = {{},       {"dp"},         {"dp%2"}, {"dp/2"},       {"dp/2%2", "tp"},
                                       {"dp%4"}, {"dp/4", "cp"}, {"tp%2"}, {"tp/2", "dp"}, {"cp", "tp"}};
  // Along a set, ranks differ in the digits that it names; digits here are bits of the rank.
  const auto bits = [&](const AxisNames& axes) {
    int mask = 0;
    for (const int rank : mesh.group(0, axes)) mask |= rank;
    return mask;
  };
  for (const AxisNames& a : sets) {
    for (const AxisNames& b : sets) {
      EXPECT_EQ(bits(intersect(mesh, a, b)), bits(a) & bits(b));
      EXPECT_EQ(bits(unite(mesh, a, b)), bits(a) | bits(b));
      EXPECT_EQ(bits(subtract(mesh, a, b)), bits(a) & ~bits(b));
      EXPECT_EQ(unite(mesh, a, b), unite(mesh, b, a)) << "one name for one set";
    }
  }
}

}  // namespace
}  // namespace trireme::layout
