// Snapshots in the memory of ranks: taken under one layout, read under another by those that are left.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/checkpoint/states.h"
#include "trireme/checkpoint/memory_snapshots.h"
#include "trireme/comm/rank.h"

namespace trireme::checkpoint {
namespace {

/// At most, of what a part's file has before its data.
constexpr std::uint64_t kPartHeader = 4096;

/// All ranks of the mesh take one; entry r is what rank r then has in its memory.
std::vector<MemorySnapshots> taken_under(const Drawn& drawn, std::int64_t step) {
  std::vector<MemorySnapshots> all(static_cast<std::size_t>(drawn.mesh.ranks()));
  comm::run_ranks(drawn.mesh.ranks(), [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, drawn.tensors, drawn.mesh, rank.rank(), true);
    state.add_value(
        "position", [&] { return nlohmann::ordered_json(step); }, [](const auto&) {});
    SnapshotTaker taker(state, rank.world(), all[static_cast<std::size_t>(rank.rank())], /*epoch=*/1);
    taker.take(step - 1);
    for (const nn::StateTensor& entry : state.tensors()) fill(entry);
    taker.take(step);
    for (const nn::StateTensor& entry : state.tensors()) entry.tensor.fill_(-1);  // may change now
  });
  return all;
}

/// The ranks of `to` read what `held` (of ranks of another world, or nothing) has together.
void expect_snapshot_loads(const Drawn& to, std::vector<MemorySnapshots>& held, std::int64_t step) {
  std::atomic<std::int64_t> wrongs{0}, values{0};
  comm::run_ranks(to.mesh.ranks(), [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, to.tensors, to.mesh, rank.rank(), false);
    state.add_value(
        "position", [] { return nlohmann::ordered_json(0); },
        [&](const auto& value) { values += value.template get<int>(); });
    MemorySnapshots& mine = held[static_cast<std::size_t>(rank.rank())];
    const auto found = newest_snapshot(mine, rank.world());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, step);
    load_snapshot(mine, *found, state, rank.world());
    for (const nn::StateTensor& entry : state.tensors()) wrongs += wrong(entry, -9);
  });
  EXPECT_EQ(wrongs, 0) << layout::to_text(to.mesh);
  EXPECT_EQ(values, step * to.mesh.ranks());
}

TEST(MemorySnapshots, WhoIsLeftReadsItUnderAnyLayoutWithoutAnyOneOfTheOthers) {
  int worlds = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Drawn from = draw(seed);
    if (from.mesh.ranks() < 2) continue;
    const std::vector<MemorySnapshots> all = taken_under(from, 7);
    for (std::size_t dead = 0; dead < all.size(); dead += 1 + seed % 3) {
      const Drawn to = draw(500 + seed * 20 + dead);
      // Survivors first, in their order; joiners have nothing, and those for whom there is no place are spare.
      std::vector<MemorySnapshots> held;
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (rank != dead) held.push_back(all[rank]);
      }
      if (held.size() > static_cast<std::size_t>(to.mesh.ranks())) continue;
      held.resize(static_cast<std::size_t>(to.mesh.ranks()));
      expect_snapshot_loads(to, held, 7);
      ++worlds;
    }
  }
  EXPECT_GT(worlds, 5);
}

// As experts do that move between ranks by their loads.
TEST(MemorySnapshots, WhatChangesItsRankIsFoundAgain) {
  const Drawn drawn{.mesh = layout::Mesh({{"ep", 2}}),
                    .tensors = {{.name = "param/experts",
                                 .shape = {8, 3},
                                 .type = at::kFloat,
                                 .place = [](layout::Placing& placing) { placing.split(0, "ep"); }},
                                {.name = "param/router", .shape = {8, 3}}}};
  std::vector<MemorySnapshots> all(2);
  comm::run_ranks(2, [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, drawn.tensors, drawn.mesh, rank.rank(), true);
    state.add_value(
        "position", [] { return nlohmann::ordered_json(5); }, [](const auto&) {});
    SnapshotTaker taker(state, rank.world(), all[static_cast<std::size_t>(rank.rank())], /*epoch=*/1);
    taker.take(4);
    layout::Placing other(drawn.mesh, 1 - rank.rank(), "param/experts", {8, 3});
    drawn.tensors[0].place(other);
    state.place_again("param/experts", other.placement());
    state.count_placement_change();
    fill(state.at("param/experts"));
    taker.take(5);
  });
  expect_snapshot_loads(drawn, all, 5);
}

TEST(MemorySnapshots, ItIsTheLatestThatIsWhole) {
  const auto held = [](std::int64_t epoch, std::int64_t step, std::vector<std::size_t> parts) {
    return HeldSnapshot{.id = {epoch, step}, .parts = std::move(parts), .of = 3};
  };
  // A rank of three died while step 8 was being taken: only two have theirs, and nobody has the dead one's.
  EXPECT_EQ(choose_snapshot({{held(1, 7, {0, 2}), held(1, 8, {0})}, {held(1, 7, {1, 0})}}), (SnapshotId{1, 7}));
  // Two neighbours died: what the first of them had is nowhere.
  EXPECT_EQ(choose_snapshot({{held(1, 7, {0, 2})}}), std::nullopt);
  EXPECT_EQ(choose_snapshot({{}, {}}), std::nullopt);
  // A joiner has nothing and hinders nobody; the later epoch of a step is the one that counts.
  EXPECT_EQ(choose_snapshot({{held(1, 7, {0, 2}), held(2, 7, {0, 1})}, {held(1, 7, {1}), held(2, 7, {2})}, {}}),
            (SnapshotId{2, 7}));
  EXPECT_EQ(holders_of({1, 7}, {{}, {held(1, 7, {0, 2})}, {held(1, 7, {1, 0})}}), (std::vector<int>{1, 2, 1}));
}

TEST(MemorySnapshots, KeepsTwoAndUsesTheMemoryOfTheOneBefore) {
  MemorySnapshots snapshots;
  for (std::int64_t step = 1; step <= 5; ++step) {
    std::vector<std::byte> image = snapshots.recycle(100);
    EXPECT_EQ(image.size(), step > 3 ? 100u : 0u) << step;
    image.resize(100);
    snapshots.keep({.id = {1, step}, .layout = nullptr, .values = "", .of = 1, .parts = {{0, image}}});
    EXPECT_EQ(snapshots.bytes(), step == 1 ? 100u : 200u);
  }
  EXPECT_EQ(snapshots.find({1, 3}), nullptr);
  EXPECT_NE(snapshots.find({1, 4}), nullptr);
}

// The plan: every element once over all ranks and once more at the next one, two snapshots, and a header a part.
TEST(MemorySnapshots, CopiesAndKeepsTheBytesThatArePlanned) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Drawn drawn = draw(seed);
    const int ranks = drawn.mesh.ranks();
    std::uint64_t state_bytes = 0;
    for (const Wanted& wanted : drawn.tensors) {
      state_bytes += static_cast<std::uint64_t>(layout::elements(wanted.shape)) * c10::elementSize(wanted.type);
    }
    std::vector<std::uint64_t> each(static_cast<std::size_t>(ranks)), kept(each.size()), parts(each.size());
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      nn::State state;
      add_all(state, drawn.tensors, drawn.mesh, rank.rank(), true);
      MemorySnapshots snapshots;
      SnapshotTaker taker(state, rank.world(), snapshots, /*epoch=*/1);
      for (std::int64_t step = 1; step <= 3; ++step) taker.take(step);
      const auto me = static_cast<std::size_t>(rank.rank());
      each[me] = taker.bytes();
      kept[me] = snapshots.bytes();
      parts[me] = snapshots.holdings().back().of;
      EXPECT_EQ(taker.cost().taken, 3);
      EXPECT_EQ(taker.cost().bytes, 3 * taker.bytes());
    });
    const std::uint64_t sum = std::accumulate(each.begin(), each.end(), std::uint64_t{0});
    EXPECT_GE(sum, state_bytes) << layout::to_text(drawn.mesh);
    EXPECT_LE(sum, state_bytes + parts.front() * kPartHeader) << layout::to_text(drawn.mesh);
    for (std::size_t rank = 0; rank < each.size(); ++rank) {
      const std::size_t before = (rank + each.size() - 1) % each.size();
      EXPECT_EQ(kept[rank], 2 * (each[rank] + (before == rank ? 0 : each[before])));
    }
  }
}

}  // namespace
}  // namespace trireme::checkpoint
