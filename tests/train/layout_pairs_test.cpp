// What a run under one layout saves, a run under any other loads: the same state to the bit, and the next step follows
// from it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "tests/train/support.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/schedule/builders.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

/// A recipe whose layout was drawn; everything else is the same in all of them.
struct Drawn {
  spec::Recipe recipe;
  int ranks = 1;
  bool asynchronous = false;
  bool predicts() const {
    return recipe.layout.pp > 1 && (recipe.pipeline.schedule == "xpipe" || recipe.pipeline.schedule == "spectrain");
  }
  std::string text() const {
    const spec::LayoutConfig& layout = recipe.layout;
    return fmt::format("{} ranks: tp {} pp {} cp {} zero {} {}", ranks, layout.tp, layout.pp, layout.cp, layout.zero,
                       layout.pp > 1 ? recipe.pipeline.schedule : "");
  }
};

Drawn draw(std::uint64_t seed) {
  const Random random(seed, "layouts");
  std::uint64_t at = 0;
  const auto pick = [&](std::uint64_t count) { return static_cast<int>(random.below(count, at++)); };
  Drawn drawn{.recipe = small_recipe(spec::Family::kLlama)};
  spec::Recipe& recipe = drawn.recipe;
  recipe.model.num_layers = 4;
  recipe.model.num_kv_heads = 2;
  recipe.model.vocab_size = 23;  // padded where it is split
  recipe.model.tied = false;
  recipe.batch.global_batch_tokens = 12 * 12;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.train.micro_batch_size = 1;
  spec::LayoutConfig& layout = recipe.layout;
  layout.tp = 1 + pick(2);
  layout.cp = pick(3) == 0 ? 2 : 1;
  layout.pp = pick(2) == 0 ? 1 : 2;
  const int dp = 1 + pick(layout.tp * layout.cp * layout.pp > 2 ? 2 : 3);
  layout.sequence_parallel = layout.tp > 1 && pick(2) == 0;
  layout.zero = pick(4);
  if (pick(4) == 0) layout.offload = spec::OffloadKind::kOptimizer;
  drawn.ranks = dp * layout.tp * layout.cp * layout.pp;
  if (layout.pp > 1) {
    std::vector<std::string> kinds;
    for (const schedule::Kind& kind : schedule::kinds()) {
      if (kind.name != "hetpipe") kinds.emplace_back(kind.name);  // takes plain SGD, whose state is not AdamW's
    }
    recipe.pipeline.schedule = kinds[static_cast<std::size_t>(pick(kinds.size()))];
    const schedule::Kind& kind = schedule::find_kind(recipe.pipeline.schedule);
    recipe.pipeline.virtual_stages = kind.default_chunks;
    drawn.asynchronous = kind.asynchronous;
    if (kind.name == "chimera-halving") recipe.train.micro_batch_size = 2;  // one row has no halves
    if (drawn.asynchronous) {
      recipe.pipeline.drain_every = 1;
      layout.zero = 0, layout.offload = spec::OffloadKind::kNone;
      // These update after each micro-batch, which is then a step's rows.
      if (kind.name != "pipedream-2bw" && kind.name != "xpipe") recipe.train.micro_batch_size.reset();
    }
  }
  return drawn;
}

struct Seen {
  std::uint64_t hash = 0;
  double next_loss = 0;
};

/// Draws from `seed` on until one can be built; what did not fit says so by a ConfigError.
template <typename Body>
Drawn with_next(std::uint64_t& seed, Body&& body) {
  for (int tries = 0; tries < 200; ++tries) {
    const Drawn drawn = draw(seed++);
    try {
      with_trainers(drawn.recipe, drawn.ranks, [&](Trainer& trainer, comm::Rank& rank) { body(trainer, rank); });
      return drawn;
    } catch (const ConfigError&) {  // a combination that is refused
    }
  }
  throw InternalError("hardly any layout can be built");
}

std::uint64_t hash_of(Trainer& trainer, comm::Rank& rank) {
  return nn::total_hash(checkpoint::Saver(trainer.state(), rank.world(), {}).hashes());
}

TEST(LayoutPairs, EveryLayoutLoadsWhatEveryOtherSaved) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("pairs-{}", ::getpid());
  std::uint64_t seed = 1;
  int pairs = 0, asynchronous = 0;
  std::set<std::string> layouts;
  for (int source = 0; source < 26; ++source) {
    fs::remove_all(folder);
    Seen saved;
    const Drawn from = with_next(seed, [&](Trainer& trainer, comm::Rank& rank) {
      trainer.step();
      trainer.step();
      checkpoint::Saver saver(trainer.state(), rank.world(), {});
      const auto outcome = saver.save({.folder = folder, .step = 2});
      const std::uint64_t hash = hash_of(trainer, rank);
      const double loss = trainer.step().loss;
      if (rank.rank() != 0) return;
      EXPECT_EQ(outcome->why, "");
      saved = {hash, loss};
    });
    layouts.insert(from.text());
    for (int target = 0; target < 4; ++target) {
      Seen seen;
      const Drawn to = with_next(seed, [&](Trainer& trainer, comm::Rank& rank) {
        checkpoint::load(formats::CheckpointFolder(folder / formats::checkpoint_name(2)), trainer.state());
        trainer.loaded();
        const std::uint64_t hash = hash_of(trainer, rank);
        const double loss = trainer.step().loss;
        if (rank.rank() == 0) seen = {hash, loss};
      });
      EXPECT_EQ(seen.hash, saved.hash) << from.text() << " -> " << to.text();
      // A pipeline that was just emptied begins with the newest weights, whatever the schedule, unless it predicts
      // them.
      if (!from.predicts() && !to.predicts()) {
        EXPECT_NEAR(seen.next_loss, saved.next_loss, 2e-5) << from.text() << " -> " << to.text();
      }
      layouts.insert(to.text());
      asynchronous += from.asynchronous || to.asynchronous;
      ++pairs;
    }
  }
  fs::remove_all(folder);
  EXPECT_GE(pairs, 100);
  EXPECT_GE(layouts.size(), 60U);
  EXPECT_GT(asynchronous, 5);
}

}  // namespace
}  // namespace trireme::train
