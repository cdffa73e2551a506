#include "trireme/checkpoint/store.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/formats/checkpoint_rewrite.h"
#include "trireme/formats/safetensors_writer.h"
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

/// Residuals of 4 copies read by 3: what all of them hold together is what it was. Moments stay with their copies.
TEST_F(Store, OtherNumbersOfCopiesFollowTheirRule) {
  const layout::Mesh mesh({{"dp", 3}});
  const layout::Shape shape{2, 3};
  at::Tensor stored = at::arange(24, at::kDouble).reshape({4, 2, 3});
  nn::State four;
  for (const char* name : {"sum", "own", "first"}) four.add(name, stored, whole(name, {4, 2, 3}));
  const fs::path path = save(four, {.folder = folder_, .step = 1});
  at::Tensor sum = at::zeros({2, 3}, at::kDouble);
  for (int rank = 0; rank < 3; ++rank) {
    nn::State three;
    std::map<std::string, at::Tensor> read;
    for (const auto& [name, rule] :
         {std::pair{"sum", nn::CopiesRule::kSum}, std::pair{"own", nn::CopiesRule::kOwnOrZero},
          std::pair{"first", nn::CopiesRule::kOwnOrFirst}}) {
      read[name] = at::full(shape, -1, at::kDouble);
      const layout::Placing placing(mesh, rank, name, shape);
      three.add(name, read[name], layout::stack_copies(mesh, rank, placing.placement(), {"dp"}), rule);
    }
    load(formats::CheckpointFolder(path), three);
    sum += read["sum"];
    EXPECT_TRUE(at::equal(read["own"], stored[rank]));
    EXPECT_TRUE(at::equal(read["first"], stored[rank]));
  }
  EXPECT_LT((sum - stored.sum(0)).abs().max().item<double>(), 1e-6);
  // A fifth copy begins with nothing, or as the first.
  const layout::Mesh five({{"dp", 5}});
  nn::State last;
  at::Tensor own = at::full(shape, -1, at::kDouble), first = own.clone();
  const auto placed = [&](const char* name) {
    return layout::stack_copies(five, 4, layout::Placing(five, 4, name, shape).placement(), {"dp"});
  };
  last.add("own", own, placed("own"), nn::CopiesRule::kOwnOrZero);
  last.add("first", first, placed("first"), nn::CopiesRule::kOwnOrFirst);
  load(formats::CheckpointFolder(path), last);
  EXPECT_EQ(own.abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(first, stored[0]));
}

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
  load(formats::CheckpointFolder(path), numbers.state, LoadScope::kWeights);
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
    for (int round = 0; round < 200; ++round) {
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
  EXPECT_GT(cases, 1000);
  std::vector<formats::DamagedCheckpoint> damaged;
  EXPECT_EQ(formats::newest_checkpoint(folder_, damaged)->manifest().step, 20);
  EXPECT_TRUE(damaged.empty());
}

TEST_F(Store, KeepsTheNewestAndSweepsWhatWritersLeft) {
  for (const int step : {10, 20, 30, 40}) save_at(step, 1);
  fs::create_directories(folder_ / "step-00000050.tmp");
  EXPECT_THAT(formats::prune_checkpoints(folder_, {.last = 2}), testing::ElementsAre(10, 20));
  EXPECT_THAT(formats::list_checkpoints(folder_), testing::ElementsAre(30, 40));
  EXPECT_TRUE(fs::exists(folder_ / "step-00000050.tmp"));  // somebody may be writing it
  formats::sweep_unfinished(folder_);
  EXPECT_FALSE(fs::exists(folder_ / "step-00000050.tmp"));
  formats::prune_checkpoints(folder_, {.last = 0});
  EXPECT_EQ(formats::list_checkpoints(folder_).size(), 2U);
}

TEST_F(Store, KeepsMultiplesAndTheBest) {
  Numbers numbers(1);
  const double losses[] = {3, 1, 2, 5, 4, 6};
  for (int i = 0; i < 6; ++i) {
    save(numbers.state, {.folder = folder_, .step = 10 * (i + 1), .metric = losses[i]});
  }
  formats::prune_checkpoints(folder_, {.last = 1, .every = 40, .best = 2});
  EXPECT_THAT(formats::list_checkpoints(folder_), testing::ElementsAre(20, 30, 40, 60));
}

/// A checkpoint as it was written before there were several files: whole tensors, a checksum each.
TEST_F(Store, ReadsTheFirstVersion) {
  const fs::path now = save_at(20, 1.25), old = folder_ / "step-00000030";
  fs::create_directories(old);
  const std::map<std::string, std::vector<std::byte>> tensors{
      {"optim/m", formats::CheckpointFolder(now).read("optim/m")},
      {"param/w", formats::CheckpointFolder(now).read("param/w")}};
  formats::SafetensorsWriter writer(old / "state.safetensors",
                                    formats::make_safetensors_header({{"optim/m", formats::Dtype::kF64, {5}},
                                                                      {"param/w", formats::Dtype::kF32, {3, 4}}},
                                                                     formats::Metadata{{"format", "pt"}}));
  nlohmann::ordered_json json{{"format", "trireme checkpoint"},
                              {"version", 1u},
                              {"step", 30u},
                              {"tokens", 300u},
                              {"hash", formats::hex(5)},
                              {"values", {{"steps", 30}}},
                              {"files", nlohmann::ordered_json::object()},
                              {"header", formats::hex(formats::checksum(writer.header().text))},
                              {"tensors", nlohmann::ordered_json::object()}};
  for (const auto& [name, bytes] : tensors) {
    writer.write(name, bytes);
    json["tensors"][name] = formats::hex(formats::checksum(bytes));
  }
  writer.finish();
  json["checksum"] = formats::hex(formats::checksum(json.dump()));
  std::ofstream(old / "manifest.json") << json.dump(1) << "\n";
  std::vector<formats::DamagedCheckpoint> damaged;
  const auto found = formats::newest_checkpoint(folder_, damaged);
  ASSERT_TRUE(found && found->manifest().step == 30) << (damaged.empty() ? "" : damaged[0].why);
  Numbers numbers(0);
  load(*found, numbers.state);
  EXPECT_TRUE(at::equal(numbers.weights, at::full({3, 4}, 1.25, at::kFloat)));
  EXPECT_EQ(numbers.count, 30);
  formats::reshard_checkpoint(*found, folder_ / "new", 2);
  Numbers again(0);
  load(formats::CheckpointFolder(folder_ / "new"), again.state);
  EXPECT_TRUE(at::equal(again.moments, at::full({5}, 1.75, at::kDouble)));
  EXPECT_EQ(formats::CheckpointFolder(folder_ / "new").manifest().parts.size(), 2U);
  std::fstream file(old / "state.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('x');
  file.close();
  EXPECT_EQ(formats::newest_checkpoint(folder_, damaged)->manifest().step, 20);
  EXPECT_THAT(damaged.back().why, testing::HasSubstr("param/w"));
}

TEST_F(Store, ExportsOneFile) {
  const fs::path path = save_at(20, 1.25);
  EXPECT_EQ(formats::export_checkpoint(formats::CheckpointFolder(path), folder_ / "all.safetensors",
                                       formats::Export::kEverything),
            2);
  EXPECT_EQ(formats::export_checkpoint(formats::CheckpointFolder(path), folder_ / "weights.safetensors",
                                       formats::Export::kWeights),
            1);
  const formats::SafetensorsFile all(folder_ / "all.safetensors"), weights(folder_ / "weights.safetensors");
  const auto a = all.bytes(all.tensor("param/w")), b = weights.bytes(weights.tensor("w"));
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  EXPECT_THROW(formats::export_checkpoint(formats::CheckpointFolder(path), folder_ / "all.safetensors",
                                          formats::Export::kWeights),
               ConfigError);
}

TEST_F(Store, SaysThatAFolderCannotBeMade) {
  std::ofstream(folder_) << "a file";
  Numbers numbers(0);
  EXPECT_THROW(save(numbers.state, {.folder = folder_, .step = 1}), IoError);
}

TEST_F(Store, ARunsFolderHasOneTrainer) {
  fs::create_directories(folder_);
  const RunFolder folder{folder_};
  {
    const RunLock first(folder);
    EXPECT_THROW(RunLock(folder, std::chrono::milliseconds(20)), IoError);
  }
  RunLock again(folder, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace trireme::checkpoint
