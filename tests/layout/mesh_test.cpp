#include "trireme/layout/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/layout/random_layouts.h"
#include "trireme/base/error.h"

namespace trireme::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The error that `body` throws.
template <typename Body>
ConfigError error_of(Body&& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return ConfigError("");
}

TEST(Mesh, PutsTheRanksOfTheLastAxisNextToEachOther) {
  const Mesh mesh = parse_mesh("pp=2 dp=2 tp=2");
  EXPECT_EQ(mesh.ranks(), 8);
  EXPECT_THAT(mesh.coordinates(6), ElementsAre(1, 1, 0));
  EXPECT_THAT(mesh.group(6, {"tp"}), ElementsAre(6, 7));
  EXPECT_THAT(mesh.group(6, {"pp"}), ElementsAre(2, 6));
  EXPECT_THAT(mesh.group(6, {"tp", "pp"}), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(mesh.group(6, {}), ElementsAre(6));
  EXPECT_THAT(mesh.groups({"dp"}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_EQ(mesh.index_in_group(6, {"pp", "tp"}), 2);
}

TEST(Mesh, KnowsPartsOfAnAxis) {
  const Mesh mesh = parse_mesh("dp=8 tp=2");
  EXPECT_THAT(mesh.group(5, {"dp%4"}), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.group(5, {"dp/4"}), ElementsAre(5, 13));
  EXPECT_EQ(mesh.group(5, {"dp/4", "dp%4"}), mesh.group(5, {"dp"}));
  EXPECT_THAT(mesh.group(5, {"dp/2%2"}), ElementsAre(1, 5)) << "between dp%2 and dp/4";
  EXPECT_EQ(mesh.group(5, {"dp%2", "dp/2%2", "dp/4"}), mesh.group(5, {"dp"}));
}

TEST(Mesh, GroupsAreWhatDiffersOnlyAlongTheirAxes) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const Mesh mesh = random_mesh(dice);
    AxisNames along;
    for (const Axis& axis : mesh.axes()) {
      if (dice.below(2) == 0) along.push_back(axis.name);
    }
    std::set<int> seen;
    for (const std::vector<int>& group : mesh.groups(along)) {
      EXPECT_TRUE(std::ranges::is_sorted(group));
      for (std::size_t i = 0; i < group.size(); ++i) {
        EXPECT_TRUE(seen.insert(group[i]).second);
        EXPECT_EQ(mesh.group(group[i], along), group);
        EXPECT_EQ(mesh.index_in_group(group[i], along), static_cast<int>(i));
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), mesh.ranks());
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      EXPECT_EQ(mesh.rank_of(mesh.coordinates(rank)), rank);
      std::vector<int> expected;
      for (int other = 0; other < mesh.ranks(); ++other) {
        const bool same = std::ranges::all_of(mesh.axes(), [&](const Axis& axis) {
          return std::ranges::find(along, axis.name) != along.end() ||
                 mesh.coordinate(rank, axis.name) == mesh.coordinate(other, axis.name);
        });
        if (same) expected.push_back(other);
      }
      EXPECT_EQ(mesh.group(rank, along), expected);
    }
    EXPECT_EQ(parse_mesh(to_text(mesh)), mesh);
    EXPECT_EQ(mesh_from_json(to_json(mesh)), mesh);
  }
}

TEST(MeshView, CutsReplicasAgainForExperts) {
  const Mesh mesh = parse_mesh("pp=2 dp=4 cp=2");
  const Mesh view = mesh.view(parse_mesh("pp=2 edp=2 ep=4").axes());
  EXPECT_THAT(view.group(9, {"ep"}), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(view.group(9, {"edp"}), ElementsAre(9, 13));
  EXPECT_EQ(view.groups({"edp", "ep"}), mesh.groups({"dp", "cp"}));
  EXPECT_EQ(mesh.view({{"all", 16}}).group(3, {"all"}).size(), 16U);
}

TEST(MeshView, RefusesWhatDoesNotNestAndNamesWhatDoes) {
  const Mesh mesh = parse_mesh("pp=2 dp=6 tp=2");
  const ConfigError ragged = error_of([&] { mesh.view(parse_mesh("pp=2 edp=4 ep=3").axes()); });
  EXPECT_STREQ(
      ragged.what(),
      "axis ep = 3 of the view cuts across axis dp = 6 of the mesh pp=2 dp=6 tp=2: 3 and 2 neighbouring ranks do "
      "not nest");
  EXPECT_EQ(ragged.hint(), "write ep=2 and give the rest to another axis");
  EXPECT_NO_THROW(mesh.view(parse_mesh("pp=2 edp=6 ep=2").axes()));
  const ConfigError ranks = error_of([&] { mesh.view(parse_mesh("edp=6 ep=2").axes()); });
  EXPECT_THAT(ranks.what(), HasSubstr("has 12 ranks, but the mesh pp=2 dp=6 tp=2 has 24"));
  EXPECT_EQ(ranks.hint(), "choose sizes whose product is 24");
  const ConfigError moved = error_of([&] { mesh.view(parse_mesh("dp=6 pp=2 tp=2").axes()); });
  EXPECT_THAT(moved.what(), HasSubstr("axis dp of the view is 6 ranks 4 apart, but 6 ranks 2 apart in the mesh"));
  const ConfigError renamed = error_of([&] { mesh.view(parse_mesh("pp=2 tp=3 dp=4").axes()); });
  EXPECT_THAT(renamed.what(), HasSubstr("axis tp of the view is 3 ranks 4 apart, but 2 ranks 1 apart in the mesh"));
  EXPECT_EQ(renamed.hint(), "name it differently, such as etp");
}

TEST(Mesh, ErrorsNameTheAxisTheNumbersAndWhatWorks) {
  const ConfigError size = error_of([] { parse_mesh("dp=2 tp=0"); });
  EXPECT_STREQ(size.what(), "mesh axis tp has size 0; a size is at least 1");
  EXPECT_EQ(size.hint(), "write tp=1");
  EXPECT_NO_THROW(parse_mesh("dp=2 tp=1"));
  EXPECT_STREQ(error_of([] { parse_mesh("dp=2 tp=2 dp=4"); }).what(), "mesh axis dp comes twice, with sizes 2 and 4");
  EXPECT_STREQ(error_of([] { parse_mesh("dp=2 tp"); }).what(), "\"tp\" in mesh \"dp=2 tp\" is not NAME=SIZE");
  EXPECT_THAT(error_of([] { parse_mesh("dp=65536 tp=65536"); }).what(), HasSubstr("more ranks than can be numbered"));
  EXPECT_THAT(error_of([] { parse_mesh("2p=2"); }).what(), HasSubstr("is no name"));

  const Mesh mesh = parse_mesh("pp=2 dp=6");
  EXPECT_STREQ(error_of([&] { mesh.group(0, {"ddp"}); }).what(), "the mesh has no axis ddp; did you mean \"dp\"?");
  const ConfigError part = error_of([&] { mesh.group(0, {"dp%4"}); });
  EXPECT_STREQ(part.what(), "dp%4: 4 does not divide the 6 ranks of axis dp");
  EXPECT_EQ(part.hint(), "write dp%3");
  EXPECT_NO_THROW(mesh.group(0, {"dp%3"}));
  const ConfigError shared = error_of([&] { mesh.group(0, {"dp", "dp%2"}); });
  EXPECT_STREQ(shared.what(), "dp and dp%2 are not two directions: they share ranks");
  EXPECT_EQ(shared.hint(), "leave out dp%2");
  const ConfigError inner = error_of([&] { mesh.group(0, {"dp/2%2"}); });
  EXPECT_STREQ(inner.what(), "dp/2%2: 2 does not divide the 3 ranks of axis dp/2");
  EXPECT_EQ(inner.hint(), "write dp/2%1");
  EXPECT_THAT(error_of([] { mesh_from_json({{"axes", 3}}); }).what(), HasSubstr("no mesh"));
}

TEST(Mesh, PrintsForPeople) {
  EXPECT_EQ(describe(parse_mesh("pp=2 cp=1 tp=2")),
            "mesh pp=2 cp=1 tp=2: 4 ranks\n"
            "rank  pp  cp  tp\n"
            "   0   0   0   0\n"
            "   1   0   0   1\n"
            "   2   1   0   0\n"
            "   3   1   0   1\n"
            "axis  size  groups\n"
            "pp       2  {0 2} {1 3}\n"
            "tp       2  {0 1} {2 3}\n");
  EXPECT_EQ(describe(Mesh()), "mesh without axes: 1 rank\nrank\n   0\n");
  EXPECT_THAT(describe(parse_mesh("dp=100 tp=20"), 2), HasSubstr("... and 1998 more\n"));
  EXPECT_EQ(to_json(parse_mesh("dp=2")).dump(), R"({"axes":[{"name":"dp","size":2}],"ranks":2})");
}

}  // namespace
}  // namespace trireme::layout
