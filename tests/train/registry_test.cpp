// Everything that changes a run is in its State: what is loaded from it goes on with the same bits, whatever the
// trainer that loads it did before; and whatever is left out of it changes the run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/train/support.h"
#include "trireme/checkpoint/saver.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using spec::Family;
using spec::OptimizerKind;
using spec::Precision;

struct Variant {
  const char* name;
  int ranks;
  std::function<void(spec::Recipe&)> set;
  Precision precision = Precision::kFp32;
  Family family = Family::kLlama;
};

spec::Recipe registry_recipe(const Variant& variant) {
  spec::Recipe recipe = small_recipe(variant.family, variant.precision);
  recipe.batch.global_batch_tokens = 12 * 12;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.model.dropout = 0.1;
  if (variant.set) variant.set(recipe);
  return recipe;
}

/// What a stretch of steps was, to the bit.
struct RegistryCourse {
  std::vector<std::uint64_t> losses, norms;
  std::uint64_t state = 0;
  bool operator==(const RegistryCourse&) const = default;
};

RegistryCourse train_on(Trainer& trainer, comm::Rank& rank, std::int64_t until) {
  RegistryCourse course;
  while (trainer.position().step < until) {
    const StepReport report = trainer.step();
    course.losses.push_back(std::bit_cast<std::uint64_t>(report.loss));
    course.norms.push_back(std::bit_cast<std::uint64_t>(report.gradient_norm));
  }
  course.state = nn::total_hash(checkpoint::Saver(trainer.state(), rank.world(), {}).hashes());
  return course;
}

constexpr std::int64_t kBefore = 4, kEnd = 8;

class Registry : public testing::Test {
 protected:
  Registry() : folder_(fs::path(testing::TempDir()) / fmt::format("registry-{}", ::getpid())) {
    fs::remove_all(folder_);
  }
  ~Registry() override { fs::remove_all(folder_); }

  /// The course after kBefore steps, at which it is saved.
  RegistryCourse whole(const spec::Recipe& recipe, int ranks) {
    return on_ranks(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      train_on(trainer, rank, kBefore);
      checkpoint::Saver saver(trainer.state(), rank.world(), {});
      const auto outcome = saver.save({.folder = folder_, .step = kBefore});
      if (outcome) {
        EXPECT_EQ(outcome->why, "");
      }
      return train_on(trainer, rank, kEnd);
    });
  }
  /// The course from what was saved on, in a trainer that took `own` steps of its own before; without the entry `but`,
  /// which stays as the trainer had it.
  RegistryCourse loaded(const spec::Recipe& recipe, int ranks, std::int64_t own, const std::string& but = {}) {
    return on_ranks(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      train_on(trainer, rank, own);
      nn::State& state = trainer.state();
      at::Tensor tensor;
      nlohmann::ordered_json value;
      const bool is_value = state.find_value(but) != nullptr;
      if (is_value) {
        value = state.value(but).get();
      } else if (!but.empty()) {
        tensor = state.at(but).tensor.clone();
      }
      checkpoint::load(formats::CheckpointFolder(folder_ / formats::checkpoint_name(kBefore)), state);
      if (is_value) {
        state.value(but).set(value);
      } else if (!but.empty()) {
        state.at(but).tensor.copy_(tensor);
      }
      trainer.loaded();
      return train_on(trainer, rank, kEnd);
    });
  }

  fs::path folder_;

 private:
  /// Rank 0's, which knows the loss and the hash of all.
  static RegistryCourse on_ranks(const spec::Recipe& recipe, int ranks,
                                 const std::function<RegistryCourse(Trainer&, comm::Rank&)>& body) {
    RegistryCourse first;
    with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      RegistryCourse mine = body(trainer, rank);
      if (rank.rank() == 0) first = std::move(mine);
    });
    return first;
  }
};

void asynchronous(spec::Recipe& recipe, const char* kind) {
  recipe.model.dropout = 0;
  recipe.model.tied = false;
  recipe.layout.pp = 2;
  recipe.pipeline.schedule = kind;
  recipe.pipeline.drain_every = 2;
}

const Variant kVariants[] = {
    {"adamw", 1, {}},
    {"sgd with momentum", 1,
     [](auto& r) { r.optim.kind = OptimizerKind::kSgd, r.optim.momentum = 0.9, r.optim.learning_rate = 0.05; }},
    {"adagrad", 1, [](auto& r) { r.optim.kind = OptimizerKind::kAdagrad; }},
    {"lamb", 1, [](auto& r) { r.optim.kind = OptimizerKind::kLamb; }},
    {"lars", 1, [](auto& r) { r.optim.kind = OptimizerKind::kLars; }},
    {"bf16", 1, {}, Precision::kBf16},
    {"fp16 whose scale moves", 1,
     [](auto& r) { r.precision.loss_scale.interval = 3, r.precision.loss_scale.initial = 1 << 20; }, Precision::kFp16},
    {"growing batch, decaying rate", 1,
     [](auto& r) {
       r.lr_schedule.kind = spec::LrScheduleKind::kCosine;
       r.lr_schedule.warmup = 2, r.lr_schedule.total = 10;
       r.batch.kind = spec::BatchKind::kRamp;
       r.batch.multiple = 12, r.batch.start = 4 * 12, r.batch.over = 4 * 96;
     }},
    {"frozen layers", 1, [](auto& r) { r.train.freeze = {"layers.0.*"}; }},
    {"gpt2", 2, {}, Precision::kFp32, Family::kGpt2},
    {"bert", 1, {}, Precision::kFp32, Family::kBert},
    {"transformer", 1, {}, Precision::kFp32, Family::kTransformer},
    {"zero 1", 2, [](auto& r) { r.layout.zero = 1; }},
    {"zero 2", 2, [](auto& r) { r.layout.zero = 2; }},
    {"zero 3", 3, [](auto& r) { r.layout.zero = 3; }},
    {"tensor parallel", 2,
     [](auto& r) { r.layout.tp = 2, r.layout.sequence_parallel = true, r.model.num_kv_heads = 2; }},
    {"context parallel", 2, [](auto& r) { r.layout.cp = 2; }},
    {"pipeline", 2, [](auto& r) { r.layout.pp = 2, r.train.micro_batch_size = 2; }},
    {"offload with late updates", 2,
     [](auto& r) {
       r.layout.zero = 1;
       r.layout.offload = spec::OffloadKind::kOptimizer;
       r.layout.delayed_update = true, r.layout.offload_warmup = 2;
     }},
    {"pipedream", 2, [](auto& r) { asynchronous(r, "pipedream"); }},
    {"pipedream-2bw", 2, [](auto& r) { asynchronous(r, "pipedream-2bw"), r.train.micro_batch_size = 2; }},
    {"xpipe", 2, [](auto& r) { asynchronous(r, "xpipe"), r.train.micro_batch_size = 2; }},
    {"stale", 2, [](auto& r) { asynchronous(r, "stale"); }},
    {"Downpour SGD of AdamW", 1,
     [](auto& r) { r.train.mode = spec::TrainMode::kDownpour, r.checkpoint.every = kBefore; }},
};

/// A trainer that did something else before has other numbers in everything it remembers: what is not in the registry
/// stays that way, and shows.
TEST_F(Registry, HoldsAllThatTheRestOfARunFollowsFrom) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    fs::remove_all(folder_);
    const spec::Recipe recipe = registry_recipe(variant);
    const RegistryCourse course = whole(recipe, variant.ranks);
    EXPECT_EQ(course.losses.size(), static_cast<std::size_t>(kEnd - kBefore));
    EXPECT_EQ(loaded(recipe, variant.ranks, 0), course) << "in a new trainer";
    EXPECT_EQ(loaded(recipe, variant.ranks, 2), course) << "in one that took two steps";
  }
}

/// The other way round: the test above would see an entry that is missing.
TEST_F(Registry, MissesEveryEntryThatIsLeftOut) {
  for (const std::size_t number : {std::size_t{0}, std::size_t{6}, std::size_t{18}}) {  // adamw, fp16, late updates
    const Variant& variant = kVariants[number];
    SCOPED_TRACE(variant.name);
    fs::remove_all(folder_);
    spec::Recipe recipe = registry_recipe(variant);
    recipe.optim.grad_clip_norm = 0.05;
    const RegistryCourse course = whole(recipe, variant.ranks);
    std::vector<std::string> names;
    std::mutex mutex;
    with_trainers(recipe, variant.ranks, [&](Trainer& trainer, comm::Rank& rank) {
      if (rank.rank() != 0) return;
      const std::lock_guard lock(mutex);
      for (const nn::StateTensor& entry : trainer.state().tensors()) names.push_back(entry.name);
      for (const nn::StateValue& entry : trainer.state().values()) names.push_back(entry.name);
    });
    EXPECT_GT(names.size(), 20U);
    for (const std::string& name : names) EXPECT_NE(loaded(recipe, variant.ranks, 0, name), course) << name;
  }
}

}  // namespace
}  // namespace trireme::train
