// Models between folders, and into ranks, without ever being in memory as a whole.
#include "trireme/train/run/convert.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/peak_memory.h"
#include "tests/train/support.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/formats/hf_directory.h"
#include "trireme/models/published.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using spec::Family;

class Conversion : public testing::Test {
 protected:
  Conversion() : folder_(fs::path(testing::TempDir()) / fmt::format("convert-{}", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Conversion() override { fs::remove_all(folder_); }

  fs::path published(Family family, const std::string& name) const {
    const spec::Recipe recipe = small_recipe(family);
    auto model = models::build(*spec::shape_of(recipe.model), {});
    nn::initialise(model->params, nn::Precision::kFp32, 7);
    models::save_published(*model, folder_ / name, formats::Dtype::kF32);
    return folder_ / name;
  }
  static void expect_same(models::Model& a, models::Model& b) {
    ASSERT_EQ(a.params.size(), b.params.size());
    for (nn::Param& param : a.params) {
      EXPECT_TRUE(at::equal(param.master, b.params.at(param.name).master)) << param.name;
    }
  }

  fs::path folder_;
};

TEST_F(Conversion, ThereAndBackIsTheSameModel) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kBert}) {
    const std::string name = std::string(name_in(spec::enum_names(std::type_identity<Family>()), family));
    const fs::path from = published(family, name), checkpoint = folder_ / (name + "-ours"),
                   back = folder_ / (name + "-back");
    convert({.from = from, .to = checkpoint, .kind = ConvertRequest::Kind::kCheckpoint});
    convert({.from = checkpoint, .to = back, .kind = ConvertRequest::Kind::kHuggingFace, .dtype = "F32"});
    const auto first = checkpoint::open_model(from, {}), ours = checkpoint::open_model(checkpoint, {}),
               again = checkpoint::open_model(back, {});
    expect_same(*first.model, *ours.model);
    expect_same(*first.model, *again.model);
    // The hash is that of a state with these parameters.
    nn::State state;
    nn::add_params(state, ours.model->params);
    EXPECT_EQ(formats::CheckpointFolder(checkpoint).manifest().hash,
              nn::total_hash(nn::hash_shares(state, layout::Mesh{}, 0)));
    formats::CheckpointFolder(checkpoint).verify();
  }
}

/// Whatever part of each parameter a rank holds, it is that part of the stored one.
TEST_F(Conversion, RanksReadTheirPartOfAStoredModel) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const fs::path from = published(family, fmt::format("model-{}", static_cast<int>(family)));
    const fs::path ours = from.string() + "-ours";
    convert({.from = from, .to = ours, .kind = ConvertRequest::Kind::kCheckpoint});
    const auto whole = checkpoint::open_model(from, {});
    for (const fs::path& source : {from, ours}) {
      for (const auto& [tp, pp, zero] : {std::tuple{1, 1, 0}, {2, 1, 0}, {1, 2, 0}, {1, 1, 3}, {2, 1, 1}}) {
        spec::Recipe recipe = small_recipe(family);
        recipe.model = {};
        recipe.model.init_from = source.string();
        recipe.layout.tp = tp, recipe.layout.pp = pp, recipe.layout.zero = zero;
        recipe.batch.global_batch_tokens = 8 * 12;
        with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank&) {
          std::int64_t wrong = 0;
          for (const nn::Param& param : trainer.params()) {
            const at::Tensor mine = param.master.view({-1}), all = whole.model->params.at(param.name).master.view({-1});
            for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
              wrong += !at::equal(mine.narrow(0, run.local, run.count), all.narrow(0, run.global, run.count));
            }
          }
          EXPECT_EQ(wrong, 0) << tp << pp << zero;
        });
      }
    }
  }
}

/// 300 MB of weights, to and fro, in a fraction of that.
TEST_F(Conversion, TakesLittleMemory) {
  spec::Recipe recipe = small_recipe(Family::kLlama);
  recipe.model.hidden_size = 1024, recipe.model.ffn_size = 4096, recipe.model.num_layers = 4,
  recipe.model.vocab_size = 8192;
  recipe.model.num_heads = 16, recipe.model.num_kv_heads = 16, recipe.model.head_dim = 64;
  {
    auto model = models::build(*spec::shape_of(recipe.model), {});
    nn::initialise(model->params, nn::Precision::kFp32, 7);
    ASSERT_GT(model->params.elements() * 4, std::int64_t{250} << 20);
    models::save_published(*model, folder_ / "large", formats::Dtype::kF32);
  }
  const auto to_ours = peak_growth_mib(
      [&] { convert({.from = folder_ / "large", .to = folder_ / "ours", .kind = ConvertRequest::Kind::kCheckpoint}); });
  const auto to_published = peak_growth_mib([&] {
    convert({.from = folder_ / "ours",
             .to = folder_ / "back",
             .kind = ConvertRequest::Kind::kHuggingFace,
             .dtype = "BF16"});
  });
  EXPECT_LT(to_ours, 50);
  EXPECT_LT(to_published, 50);
}

}  // namespace
}  // namespace trireme::train
