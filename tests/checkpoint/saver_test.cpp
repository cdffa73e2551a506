// Ranks save together under one layout and load under another.
#include "trireme/checkpoint/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <signal.h>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/states.h"
#include "tests/peak_memory.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/comm/rank.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

class SaverTest : public testing::Test {
 protected:
  SaverTest() : folder_(fs::path(testing::TempDir()) / fmt::format("saver-{}", ::getpid())) { fs::remove_all(folder_); }
  ~SaverTest() override { fs::remove_all(folder_); }

  /// Every rank of the mesh saves its part of these tensors.
  void save_under(const layout::Mesh& mesh, const std::vector<Wanted>& tensors, std::int64_t step, bool background) {
    comm::run_ranks(mesh.ranks(), [&](comm::Rank& rank) {
      nn::State state;
      add_all(state, tensors, mesh, rank.rank(), true);
      state.add_value(
          "position", [&] { return nlohmann::ordered_json(step); }, [](const auto&) {});
      Saver saver(state, rank.world(), {.background = background});
      saver.begin({.folder = folder_, .step = step, .files = {{"recipe.toml", "x = 1\n"}}});
      saver.wait_copied();
      for (const nn::StateTensor& entry : state.tensors()) entry.tensor.fill_(background ? -1 : -2);  // may change now
      EXPECT_TRUE(saver.collect());
      const auto outcome = saver.outcome(/*wait=*/true);
      EXPECT_EQ(outcome.has_value(), rank.rank() == 0);
      if (outcome) {
        EXPECT_EQ(outcome->why, "");
        EXPECT_EQ(outcome->path, folder_ / formats::checkpoint_name(step));
      }
    });
  }
  void expect_loads_under(const layout::Mesh& mesh, const std::vector<Wanted>& tensors, const fs::path& path) {
    std::atomic<std::int64_t> wrongs{0}, values{0};
    comm::run_ranks(mesh.ranks(), [&](comm::Rank& rank) {
      nn::State state;
      add_all(state, tensors, mesh, rank.rank(), false);
      state.add_value(
          "position", [] { return nlohmann::ordered_json(0); },
          [&](const auto& value) { values += value.template get<int>(); });
      load(formats::CheckpointFolder(path), state);
      for (const nn::StateTensor& entry : state.tensors()) wrongs += wrong(entry, -9);
    });
    EXPECT_EQ(wrongs, 0) << layout::to_text(mesh);
    EXPECT_GT(values, 0);
  }

  fs::path folder_;
};

TEST_F(SaverTest, WhatOneLayoutSavesEveryOtherLoads) {
  int pairs = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Drawn from = draw(seed);
    save_under(from.mesh, from.tensors, static_cast<std::int64_t>(seed + 1), seed % 2 == 0);
    const fs::path path = folder_ / formats::checkpoint_name(static_cast<std::int64_t>(seed + 1));
    for (std::uint64_t other = 0; other < 3; ++other) {
      const Drawn to = draw(1000 + seed * 3 + other);
      expect_loads_under(to.mesh, to.tensors, path);
      ++pairs;
    }
    fs::remove_all(path);
  }
  EXPECT_GE(pairs, 100);
}

/// Larger than a block, so that several blocks, chunks and threads take part, and cut by copies.
TEST_F(SaverTest, LargeTensorsGoThroughManyBlocks) {
  const std::vector<Wanted> tensors{{"param/a", {1500, 2000}}, {"param/b", {900, 1100}, at::kDouble}};
  const layout::Mesh three = layout::parse_mesh("dp=3"), tp = layout::parse_mesh("tp=2");
  save_under(three, tensors, 1, true);
  const formats::CheckpointFolder stored(folder_ / "step-00000001");
  EXPECT_EQ(stored.manifest().parts.size(), 3U);
  std::uint64_t most = 0;
  for (const auto& part : stored.manifest().parts) most = std::max(most, part.bytes);
  EXPECT_LT(static_cast<double>(most), 1.02 * static_cast<double>(stored.manifest().bytes()) / 3);
  std::vector<Wanted> split = tensors;
  for (Wanted& wanted : split) wanted.place = [](layout::Placing& placing) { placing.split(1, "tp"); };
  expect_loads_under(tp, split, stored.path());
  save_under(tp, split, 2, false);
  expect_loads_under(three, tensors, folder_ / "step-00000002");
  // The same state has the same hash under both.
  EXPECT_EQ(stored.manifest().hash != 0, true);
}

TEST_F(SaverTest, TheHashDoesNotKnowTheLayout) {
  const Drawn a = draw(3), b = draw(4);
  const auto hash_of = [&](const Drawn& drawn) {
    std::uint64_t hash = 0;
    save_under(drawn.mesh, drawn.tensors, 5, false);
    hash = formats::CheckpointFolder(folder_ / "step-00000005").manifest().hash;
    return hash;
  };
  const std::uint64_t first = hash_of(a);
  EXPECT_EQ(first, hash_of(b));
  nn::State alone;
  std::vector<Wanted> whole = a.tensors;
  for (Wanted& wanted : whole) wanted.place = [](layout::Placing&) {};
  add_all(alone, whole, layout::Mesh{}, 0, true);
  alone.add_value(
      "position", [] { return nlohmann::ordered_json(std::int64_t{5}); }, [](const auto&) {});
  EXPECT_EQ(first, nn::total_hash(nn::hash_shares(alone, layout::Mesh{}, 0)));
  save(alone, {.folder = folder_, .step = 6});
  EXPECT_EQ(first, formats::CheckpointFolder(folder_ / "step-00000006").manifest().hash);
}

/// A rank reads its own blocks and no more: those of others may be damaged.
TEST_F(SaverTest, LoadsOnlyTheBytesThatAreNeeded) {
  const layout::Mesh mesh = layout::parse_mesh("tp=2");
  const std::vector<Wanted> tensors{
      {"param/a", {4096, 1024}, at::kFloat, [](layout::Placing& placing) { placing.split(0, "tp"); }}};
  save_under(mesh, tensors, 1, false);
  const fs::path path = folder_ / "step-00000001";
  std::fstream file(path / "state-00001-of-00002.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5 << 20);
  file.put('x');
  file.close();
  nn::State first, second;
  add_all(first, tensors, mesh, 0, false);
  add_all(second, tensors, mesh, 1, false);
  load(formats::CheckpointFolder(path), first);
  EXPECT_EQ(wrong(first.tensors()[0], -9), 0);
  try {
    load(formats::CheckpointFolder(path), second);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.message(),
                testing::AllOf(testing::HasSubstr("state-00001-of-00002"), testing::HasSubstr("param/a"),
                               testing::HasSubstr("bytes 5242880 to 6291456")));
  }
}

TEST_F(SaverTest, LoadingTakesLittleMemoryBesideTheTensors) {
  const std::vector<Wanted> tensors{{"param/a", {8192, 4096}}, {"param/b", {8192, 2048}}};
  const layout::Mesh mesh = layout::parse_mesh("tp=2");
  {
    nn::State state;
    add_all(state, tensors, layout::Mesh{}, 0, false);
    save(state, {.folder = folder_, .step = 1});
  }
  nn::State half;
  std::vector<Wanted> split = tensors;
  for (Wanted& wanted : split) wanted.place = [](layout::Placing& placing) { placing.split(1, "tp"); };
  add_all(half, split, mesh, 1, false);
  const auto growth = peak_growth_mib(
      [&] { load(formats::CheckpointFolder(folder_ / "step-00000001"), half, LoadScope::kEverything, 4); });
  EXPECT_LT(growth, 32);
}

/// A write that fails on one rank: nothing is left, the older one stays, and the next one works.
TEST_F(SaverTest, AFailedSaveLeavesTheOlderOneAndGoesOn) {
  comm::run_ranks(2, [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, {{"param/a", {1000, 1000}}}, layout::parse_mesh("dp=2"), rank.rank(), true);
    bool full = false;
    Saver saver(state, rank.world(), {.before_write = [&](std::uint64_t, std::uint64_t) {
                  if (full && rank.rank() == 1) throw IoError("no space left");
                }});
    for (const std::int64_t step : {1, 2, 3}) {
      full = step == 2;
      saver.begin({.folder = folder_, .step = step});
      EXPECT_EQ(saver.collect(), step != 2);
      const auto outcome = saver.outcome(true);
      if (outcome) {
        EXPECT_EQ(outcome->why, step == 2 ? "rank 1: no space left" : "");
      }
    }
  });
  EXPECT_THAT(formats::list_checkpoints(folder_), testing::ElementsAre(1, 3));
  EXPECT_FALSE(fs::exists(folder_ / "step-00000002.tmp"));
}

/// The kernel itself refuses: no file may be larger than a megabyte.
TEST_F(SaverTest, ADiskThatTakesNoMoreIsAnOutcome) {
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignore, &before);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  comm::run_ranks(1, [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, {{"param/a", {1000, 1000}}}, layout::Mesh{}, 0, true);
    Saver saver(state, rank.world(), {});
    EXPECT_EQ(saver.save({.folder = folder_, .step = 1})->why, "");
    const rlimit small{1 << 20, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const auto outcome = saver.save({.folder = folder_, .step = 2});
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_THAT(outcome->why, testing::HasSubstr("step-00000002.tmp/state.safetensors"));
    EXPECT_EQ(saver.save({.folder = folder_, .step = 3})->why, "");
  });
  sigaction(SIGXFSZ, &before, nullptr);
  EXPECT_THAT(formats::list_checkpoints(folder_), testing::ElementsAre(1, 3));
}

TEST_F(SaverTest, ASecondSaveWaitsForTheFirst) {
  comm::run_ranks(2, [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, {{"param/a", {500, 500}}}, layout::parse_mesh("dp=2"), rank.rank(), true);
    Saver saver(state, rank.world(), {});
    for (const std::int64_t step : {1, 2, 3, 4}) saver.begin({.folder = folder_, .step = step});
    saver.collect();
    std::vector<std::int64_t> done;
    while (const auto outcome = saver.outcome(true)) done.push_back(outcome->step);
    if (rank.rank() == 0) {
      EXPECT_THAT(done, testing::ElementsAre(1, 2, 3, 4));
    }
  });
  EXPECT_EQ(formats::list_checkpoints(folder_).size(), 4U);
}

/// Little's law, also where nobody asks what became of a checkpoint before the next one begins.
TEST_F(SaverTest, MetersCheckpointsFromTheirSnapshotUntilTheyArePublished) {
  comm::run_ranks(1, [&](comm::Rank& rank) {
    nn::State state;
    add_all(state, {{"param/a", {50, 50}}}, layout::parse_mesh("dp=1"), rank.rank(), true);
    std::atomic<int> published = 0;
    Saver saver(state, rank.world(), {.published = [&](const fs::path&) { ++published; }});
    for (const int step : {1, 2, 3}) {
      saver.begin({.folder = folder_, .step = step});
      EXPECT_TRUE(saver.collect());
      while (published < step) ::usleep(1000);
      ::usleep(40'000);  // no checkpoint is under way
    }
    int known = 0;
    while (const auto outcome = saver.outcome(true)) known += outcome->why.empty() ? 1 : 0;
    EXPECT_EQ(known, 3);
    const QueueReading queue = saver.queue();
    EXPECT_EQ(queue.arrivals, 3);
    EXPECT_EQ(queue.departures, 3);
    EXPECT_NEAR(queue.occupancy, queue.sojourn, 1e-7);
    EXPECT_LE(queue.sojourn, queue.seconds - 3 * 0.040) << "what lies between them is none's";
  });
}

TEST_F(SaverTest, FilesThatADeadWriterLeftDoNotGetIn) {
  fs::create_directories(folder_ / "step-00000001.tmp");
  std::ofstream(folder_ / "step-00000001.tmp/state-00007-of-00008.safetensors") << "old";
  save_under(layout::parse_mesh("dp=2"), {{"param/a", {10}}}, 1, true);
  EXPECT_FALSE(fs::exists(folder_ / "step-00000001/state-00007-of-00008.safetensors"));
}

TEST_F(SaverTest, AllRanksFindTheNewestThatIsWhole) {
  const std::vector<Wanted> tensors{{"param/a", {2000, 1000}}};
  for (const std::int64_t step : {10, 20, 30}) save_under(layout::parse_mesh("dp=2"), tensors, step, true);
  fs::resize_file(folder_ / "step-00000030/state-00001-of-00002.safetensors", 100);
  std::fstream file(folder_ / "step-00000020/state-00000-of-00002.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2'000'000);
  file.put('x');
  file.close();
  comm::run_ranks(3, [&](comm::Rank& rank) {
    std::vector<formats::DamagedCheckpoint> damaged;
    EXPECT_EQ(newest_whole(folder_, rank.world(), damaged), 10);
    EXPECT_EQ(damaged.size(), 2U);
    EXPECT_EQ(newest_whole(folder_, rank.world(), damaged, 9), -1);
    EXPECT_EQ(newest_whole(folder_ / "none", rank.world(), damaged), -1);
  });
}

}  // namespace
}  // namespace trireme::checkpoint
