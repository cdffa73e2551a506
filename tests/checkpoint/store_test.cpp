#include "trireme/checkpoint/store.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/layout/placing.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

layout::Placement whole(const std::string& name, const layout::Shape& shape) {
  return layout::Placing(layout::Mesh{}, 0, name, shape).placement();
}

/// A state of two tensors and a value, in a folder of its own.
class Store : public testing::Test {
 protected:
  Store() : folder_(fs::path(testing::TempDir()) / fmt::format("store-{}", ::getpid())) { fs::remove_all(folder_); }
  ~Store() override { fs::remove_all(folder_); }

  struct Numbers {
    at::Tensor weights, moments;
    std::int64_t count = 0;
    nn::State state;
    explicit Numbers(double value) {
      weights = at::full({3, 4}, value, at::kFloat);
      moments = at::full({5}, value + 0.5, at::kDouble);
      state.add("param/w", weights, whole("param/w", {3, 4}));
      state.add("optim/m", moments, whole("optim/m", {5}));
      state.add_value(
          "steps", [this] { return nlohmann::ordered_json(count); },
          [this](const nlohmann::ordered_json& json) { count = json.get<std::int64_t>(); });
    }
  };

  fs::path save_at(std::int64_t step, double value) {
    Numbers numbers(value);
    numbers.count = step;
    return save(numbers.state,
                {.folder = folder_, .step = step, .tokens = step * 10, .files = {{"recipe.toml", "x = 1\n"}}});
  }

  fs::path folder_;
};

TEST_F(Store, GivesBackWhatWasSaved) {
  const fs::path path = save_at(20, 1.25);
  EXPECT_EQ(path.filename(), "step-00000020");
  Numbers numbers(0);
  const formats::CheckpointFolder checkpoint(path);
  load(checkpoint, numbers.state);
  EXPECT_TRUE(at::equal(numbers.weights, at::full({3, 4}, 1.25, at::kFloat)));
  EXPECT_TRUE(at::equal(numbers.moments, at::full({5}, 1.75, at::kDouble)));
  EXPECT_EQ(numbers.count, 20);
  EXPECT_EQ(checkpoint.manifest().tokens, 200);
  EXPECT_EQ(checkpoint.text("recipe.toml"), "x = 1\n");
  EXPECT_EQ(checkpoint.manifest().hash, nn::total_hash(nn::hash_shares(numbers.state, layout::Mesh{}, 0)));
}

TEST_F(Store, LoadsWeightsAlone) {
  const fs::path path = save_at(20, 1.25);
  Numbers numbers(0);
  load(formats::CheckpointFolder(path), numbers.state, What::kWeights);
  EXPECT_EQ(numbers.weights[0][0].item<float>(), 1.25F);
  EXPECT_EQ(numbers.moments[0].item<double>(), 0.5);
  EXPECT_EQ(numbers.count, 0);
}

TEST_F(Store, ReplacesOneOfTheSameStep) {
  save_at(20, 1);
  const fs::path path = save_at(20, 2);
  Numbers numbers(0);
  load(formats::CheckpointFolder(path), numbers.state);
  EXPECT_EQ(numbers.weights[0][0].item<float>(), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Store, NamesWhatIsOfAnotherRunAndChangesNothing) {
  const fs::path path = save_at(20, 1);
  Numbers numbers(0);
  const at::Tensor other = at::zeros({2, 2});
  numbers.state.add("param/extra", other, whole("param/extra", {2, 2}));
  try {
    load(formats::CheckpointFolder(path), numbers.state);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("param/extra is missing"));
  }
  EXPECT_EQ(numbers.weights[0][0].item<float>(), 0);
}

/// Every file, every byte it could be cut at, and many flipped bits: always noticed, and the older one is found.
TEST_F(Store, FindsTheNewestWholeOneWhateverIsDamaged) {
  save_at(10, 1);
  const fs::path newest = save_at(20, 2);
  const Random random(3, "damage");
  std::uint64_t draw = 0;
  int cases = 0;
  for (const char* name : {"manifest.json", "state.safetensors", "recipe.toml"}) {
    const fs::path file = newest / name;
    std::string content_before(fs::file_size(file), '\0');
    std::ifstream(file, std::ios::binary)
        .read(content_before.data(), static_cast<std::streamsize>(content_before.size()));
    const auto expect_older = [&](const std::string& content, const std::string& what) {
      std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
      std::vector<formats::DamagedCheckpoint> damaged;
      const auto found = formats::newest_checkpoint(folder_, damaged);
      ASSERT_TRUE(found) << what;
      if (found->manifest().step == 20) {  // white space in the manifest says nothing
        EXPECT_EQ(std::string(name), "manifest.json") << what;
        EXPECT_EQ(nlohmann::ordered_json::parse(content), nlohmann::ordered_json::parse(content_before)) << what;
        return;
      }
      EXPECT_EQ(found->manifest().step, 10) << what;
      ASSERT_EQ(damaged.size(), 1U) << what;
      EXPECT_THAT(damaged[0].why, testing::HasSubstr(name)) << what;
      ++cases;
    };
    for (int round = 0; round < 60; ++round) {
      const auto at = random.below(content_before.size(), draw++);
      std::string flipped = content_before;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << random.below(8, draw++)));
      expect_older(flipped, fmt::format("{}: a bit of byte {}", name, at));
      expect_older(content_before.substr(0, at), fmt::format("{}: cut at byte {}", name, at));
    }
    fs::remove(file);
    std::vector<formats::DamagedCheckpoint> damaged;
    EXPECT_EQ(formats::newest_checkpoint(folder_, damaged)->manifest().step, 10);
    std::ofstream(file, std::ios::binary) << content_before;
  }
  EXPECT_GT(cases, 300);
  std::vector<formats::DamagedCheckpoint> damaged;
  EXPECT_EQ(formats::newest_checkpoint(folder_, damaged)->manifest().step, 20);
  EXPECT_TRUE(damaged.empty());
}

TEST_F(Store, KeepsTheNewestAndSweepsWhatWritersLeft) {
  for (const int step : {10, 20, 30, 40}) save_at(step, 1);
  fs::create_directories(folder_ / "step-00000050.tmp");
  formats::prune_checkpoints(folder_, 2);
  EXPECT_THAT(formats::list_checkpoints(folder_), testing::ElementsAre(30, 40));
  EXPECT_FALSE(fs::exists(folder_ / "step-00000050.tmp"));
  formats::prune_checkpoints(folder_, 0);
  EXPECT_EQ(formats::list_checkpoints(folder_).size(), 2U);
}

TEST_F(Store, SaysThatAFolderCannotBeMade) {
  std::ofstream(folder_) << "a file";
  Numbers numbers(0);
  EXPECT_THROW(save(numbers.state, {.folder = folder_, .step = 1}), IoError);
}

}  // namespace
}  // namespace trireme::checkpoint
