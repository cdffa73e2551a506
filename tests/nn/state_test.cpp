#include "trireme/nn/state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/layout/hash.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/param.h"

namespace trireme::nn {
namespace {

using layout::Placing;
using testing::ElementsAre;
using testing::HasSubstr;

layout::Placement whole(const std::string& name, const layout::Shape& shape) {
  return Placing(layout::Mesh(), 0, name, shape).placement();
}

TEST(State, IsReadAndWrittenInPlace) {
  State state;
  at::Tensor owner = at::arange(6, at::kFloat).reshape({2, 3});
  std::int64_t steps = 4;
  state.add("optim/m/w", owner, whole("w", {2, 3}));
  state.add_value(
      "optim/steps", [&] { return nlohmann::ordered_json(steps); },
      [&](const nlohmann::ordered_json& value) { steps = value.get<std::int64_t>(); });
  state.at("optim/m/w").tensor.fill_(7);
  EXPECT_EQ(owner[1][2].item<float>(), 7);
  EXPECT_EQ(state.value("optim/steps").get(), 4);
  state.value("optim/steps").set(9);
  EXPECT_EQ(steps, 9);
  EXPECT_EQ(state.bytes(), 24);
  EXPECT_EQ(state.at("optim/m/w").placement.name, "optim/m/w");
  EXPECT_EQ(state.find("optim/steps"), nullptr) << "that is a value";
  EXPECT_EQ(state.find_value("optim/m/w"), nullptr);
}

TEST(State, KnowsAnEntryByOneNameOnly) {
  State state;
  const auto get = [] { return nlohmann::ordered_json(); };
  const auto set = [](const nlohmann::ordered_json&) {};
  state.add("a", at::empty({3}), whole("a", {3}));
  state.add_value("b", get, set);
  EXPECT_THROW(state.add("a", at::empty({3}), whole("a", {3})), InternalError);
  EXPECT_THROW(state.add("b", at::empty({3}), whole("b", {3})), InternalError);
  EXPECT_THROW(state.add_value("a", get, set), InternalError);
}

TEST(State, RefusesTensorsThatAreNotWhatThePlacementSays) {
  State state;
  EXPECT_THROW(state.add("a", at::empty({4}), whole("a", {3})), InternalError);
  EXPECT_THROW(state.add("a", at::empty({3, 2}).t(), whole("a", {2, 3})), InternalError);
  EXPECT_THROW(state.add("a", at::Tensor(), whole("a", {3})), InternalError);
}

TEST(State, SuggestsANameThatExists) {
  State state;
  state.add("optim/m/up.weight", at::empty({3}), whole("a", {3}));
  try {
    (void)state.at("optim/m/up.wieght");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "the state has no tensor optim/m/up.wieght; did you mean \"optim/m/up.weight\"?");
  }
}

using Build = std::function<void(Placing&)>;

/// The parameters of one rank, drawn by global index, and a value beside them.
struct RankState {
  RankState(const layout::Mesh& mesh, int rank, const Build& wide, const Build& narrow, Precision precision) {
    Placing up(mesh, rank, "up.weight", {30, 14});
    wide(up);
    params.add(up.placement(), {Init::Kind::kNormal, 1}, true);
    Placing bias(mesh, rank, "bias", {13});
    narrow(bias);
    params.add(bias.placement(), {Init::Kind::kUniform, 1}, false);
    initialise(params, precision, /*seed=*/5);
    add_params(state, params);
    state.add_value(
        "steps",
        [] {
          return nlohmann::ordered_json{{"steps", 17}};
        },
        [](const nlohmann::ordered_json&) {});
  }
  Params params;
  State state;
};

TEST(StateHash, IsTheSameUnderEveryLayout) {
  for (const Precision precision : {Precision::kFp32, Precision::kFp64}) {
    const Build nothing = [](Placing&) {};
    const RankState serial(layout::Mesh(), 0, nothing, nothing, precision);
    const auto expected = hash_shares(serial.state, layout::Mesh(), 0);
    ASSERT_EQ(expected.size(), 3U);
    struct Layout {
      const char* mesh;
      Build wide, narrow;
    };
    const std::vector<Layout> layouts = {
        {"dp=3", nothing, nothing},  // copies
        {"tp=4", [](Placing& p) { p.split(0, "tp"); }, [](Placing& p) { p.split(0, "tp"); }},
        {"tp=4", [](Placing& p) { p.split(1, "tp"); }, nothing},
        {"dp=2 tp=3", [](Placing& p) { p.split_padded("tp", 33); }, nothing},
        {"dp=4 tp=2", [](Placing& p) { p.split(0, "tp").partition({"dp"}); },
         [](Placing& p) { p.partition({"dp"}, 8); }},
        {"pp=2 dp=2", [](Placing& p) { p.only_at("pp", 1).partition({"dp"}); }, [](Placing& p) { p.only_at("pp", 0); }},
    };
    for (const Layout& given : layouts) {
      SCOPED_TRACE(given.mesh);
      const layout::Mesh mesh = layout::parse_mesh(given.mesh);
      std::map<std::string, std::uint64_t> sums;
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        const RankState part(mesh, rank, given.wide, given.narrow, precision);
        for (const HashShare& share : hash_shares(part.state, mesh, rank)) sums[share.name] += share.share;
      }
      std::vector<HashShare> total;
      for (const HashShare& hash : expected) {
        EXPECT_EQ(sums[hash.name], hash.share) << hash.name;
        total.insert(total.begin(), {hash.name, sums[hash.name]});  // another order
      }
      EXPECT_EQ(total_hash(total), total_hash(expected));
    }
  }
}

TEST(StateHash, SeesEveryTensorValueAndName) {
  const Build nothing = [](Placing&) {};
  RankState one(layout::Mesh(), 0, nothing, nothing, Precision::kFp32);
  const auto before = hash_shares(one.state, layout::Mesh(), 0);
  EXPECT_EQ(
      before[0].share,
      layout::tensor_hash(one.params.at("up.weight").placement,
                          std::as_bytes(std::span(one.params.at("up.weight").master.const_data_ptr<float>(), 420)), 4));
  one.params.at("bias").master[12] += 1;
  auto after = hash_shares(one.state, layout::Mesh(), 0);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  EXPECT_NE(total_hash(after), total_hash(before));
  auto renamed = before;
  renamed[0].name = "param/down.weight";
  EXPECT_NE(total_hash(renamed), total_hash(before));
  auto exchanged = before;
  std::swap(exchanged[0].share, exchanged[1].share);
  EXPECT_NE(total_hash(exchanged), total_hash(before)) << "two tensors that have changed places";
}

TEST(StateHash, SeesAChangedValue) {
  std::int64_t steps = 3;
  State state;
  state.add_value(
      "steps", [&] { return nlohmann::ordered_json(steps); }, [](const nlohmann::ordered_json&) {});
  const auto before = hash_shares(state, layout::parse_mesh("dp=2"), 0);
  ++steps;
  EXPECT_NE(hash_shares(state, layout::parse_mesh("dp=2"), 0), before);
  EXPECT_THAT(hash_shares(state, layout::parse_mesh("dp=2"), 1), ElementsAre(HashShare{"steps", 0}))
      << "counted once, by rank 0";
}

}  // namespace
}  // namespace trireme::nn
