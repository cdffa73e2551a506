#include <gmock/gmock.h>

#include "tests/data/sample_files.h"

namespace trireme::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr std::int64_t kNone = kNoTarget;
constexpr SpecialTokens kSpecial = {.pad = 99'990, .mask = 99'991, .cls = 99'992, .sep = 99'993};

class Masked : public OwnFolder {
 protected:
  spec::Recipe recipe_of(const Documents& documents, std::int64_t sequence) {
    write_shard(folder_ / "a.shard", documents, {.vocab_size = kVocabulary, .special = kSpecial});
    auto recipe = recipe_over({folder_ / "a.shard"}, sequence);
    recipe.data.task = spec::DataTask::kMasked;
    return recipe;
  }
};

TEST_F(Masked, RowsBeginAndEndAsBertsDo) {
  auto recipe = recipe_of({{1, 2, 3}, {4, 5}}, 6);
  recipe.data.shuffle = false;
  recipe.data.masking.probability = 1e-12;
  const auto samples = open_samples(recipe, Split::kTrain);
  EXPECT_EQ(samples->epoch(), 2);
  const Batch batch = samples->read(numbers(0, 2));
  EXPECT_THAT(batch.tokens.ids, ElementsAre(99992, 1, 2, 3, 4, 99993, 99992, 5, 99993, 99990, 99990, 99990));
  EXPECT_THAT(batch.tokens.documents, ElementsAre(0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(batch.tokens.positions, ElementsAre(0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2));
  EXPECT_THAT(batch.targets, ::testing::Each(kNone));
  recipe.data.packing = spec::Packing::kStream;
  const Batch stream = open_samples(recipe, Split::kTrain)->read(numbers(0, 2));
  EXPECT_THAT(stream.tokens.documents, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(stream.tokens.positions, ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2));
}

TEST_F(Masked, EightyTenTen) {
  const Documents documents = numbered_documents(1, 400, 200, 0);
  const auto recipe = recipe_of(documents, 64);
  const auto samples = open_samples(recipe, Split::kTrain);
  const auto untouched = [&] {
    auto plain = recipe;
    plain.data.masking.probability = 1e-12;
    return open_samples(plain, Split::kTrain)->read(numbers(0, samples->epoch()));
  }();
  const Batch batch = samples->read(numbers(0, samples->epoch()));
  double texts = 0, chosen = 0, masked = 0, kept = 0;
  std::map<std::int64_t, int> seen;
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    const std::int64_t original = untouched.tokens.ids[i];
    const bool special = original >= 99'990;
    if (!special) ++texts, ++seen[original];
    if (batch.targets[i] == kNone) {
      ASSERT_EQ(batch.tokens.ids[i], original);
      continue;
    }
    ASSERT_FALSE(special);
    ASSERT_EQ(batch.targets[i], original);
    ++chosen;
    masked += batch.tokens.ids[i] == kSpecial.mask;
    kept += batch.tokens.ids[i] == original;
    ASSERT_LT(batch.tokens.ids[i], kVocabulary);
  }
  std::size_t tokens = 0;
  for (const auto& document : documents) tokens += document.size();
  EXPECT_EQ(seen.size(), tokens);  // every token once an epoch
  EXPECT_EQ(static_cast<std::size_t>(texts), tokens);
  // Four standard deviations of the binomial distributions.
  EXPECT_NEAR(chosen / texts, 0.15, 4 * std::sqrt(0.15 * 0.85 / texts));
  EXPECT_NEAR(masked / chosen, 0.8, 4 * std::sqrt(0.8 * 0.2 / chosen));
  EXPECT_NEAR(kept / chosen, 0.1, 4 * std::sqrt(0.1 * 0.9 / chosen));
}

TEST_F(Masked, AnotherEpochHidesOtherTokens) {
  auto recipe = recipe_of(numbered_documents(1, 4, 200, 0), 512);
  recipe.data.shuffle = false;
  const auto samples = open_samples(recipe, Split::kTrain);
  const Batch first = read_one(*samples, 0), again = read_one(*samples, 0),
              second = read_one(*samples, samples->epoch());
  expect_same(first, again);
  EXPECT_NE(first.targets, second.targets);
}

TEST_F(Masked, NeedsAMaskToken) {
  auto recipe = recipe_of({{1, 2, 3}}, 8);
  write_shard(folder_ / "a.shard", {{1, 2, 3}}, {.vocab_size = 10});
  EXPECT_THAT(message_of<ConfigError>([&] { open_samples(recipe, Split::kTrain); }),
              HasSubstr("there is no mask token"));
  recipe.data.special.mask = 9;
  EXPECT_EQ(open_samples(recipe, Split::kTrain)->epoch(), 1);
}

class PairsOfTexts : public OwnFolder {
 protected:
  static constexpr SpecialTokens kTokens = {.bos = 90, .eos = 91, .pad = 92};
  spec::Recipe recipe_of(const Documents& documents, std::int64_t sequence, std::int64_t source) {
    write_shard(folder_ / "a.shard", documents, {.vocab_size = kVocabulary, .special = kTokens, .pairs = true});
    auto recipe = recipe_over({folder_ / "a.shard"}, sequence);
    recipe.data.task = spec::DataTask::kSeq2Seq;
    recipe.data.source_seq_len = source;
    return recipe;
  }
};

TEST_F(PairsOfTexts, AreReadWithBeginEndAndPadding) {
  const Documents documents = {{1, 2, 3}, {4, 5}, {6}, {7, 8, 9, 10}, {11}, {12, 91}, {13}, {}};
  const auto samples = open_samples(recipe_of(documents, 4, 2), Split::kTrain);
  EXPECT_EQ(samples->epoch(), 4);
  const Batch batch = samples->read(numbers(0, 4));
  EXPECT_EQ(batch.source.length, 2);
  const std::map<std::int64_t, std::vector<std::vector<std::int64_t>>> expected = {
      // source -> what the decoder reads, learns, which tokens see each other on both sides
      {1, {{1, 2}, {90, 4, 5, 92}, {4, 5, 91, kNone}, {0, 0}, {0, 0, 0, 1}}},
      {6, {{6, 92}, {90, 7, 8, 9}, {7, 8, 9, 10}, {0, 1}, {0, 0, 0, 0}}},
      {11, {{11, 92}, {90, 12, 92, 92}, {12, 91, kNone, kNone}, {0, 1}, {0, 0, 1, 1}}},
      {13, {{13, 92}, {90, 92, 92, 92}, {91, kNone, kNone, kNone}, {0, 1}, {0, 1, 1, 1}}},
  };
  std::set<std::int64_t> seen;
  for (std::int64_t row = 0; row < 4; ++row) {
    const auto of = [&](const auto& values, std::int64_t length) {
      return std::vector<std::int64_t>(values.begin() + row * length, values.begin() + (row + 1) * length);
    };
    const auto source = of(batch.source.ids, 2);
    seen.insert(source[0]);
    EXPECT_THAT(expected.at(source[0]), ElementsAre(source, of(batch.tokens.ids, 4), of(batch.targets, 4),
                                                    of(batch.source.documents, 2), of(batch.tokens.documents, 4)));
  }
  EXPECT_EQ(seen.size(), 4U);
}

TEST_F(PairsOfTexts, LearnOnlyWhatTheMaskLeaves) {
  auto recipe = recipe_of({{1}, {2}}, 6, 2);
  ShardWriter writer(folder_ / "a.shard", {.vocab_size = 100, .special = kTokens, .pairs = true});
  writer.add_document(std::vector<std::int32_t>{1, 2});
  writer.add_document(std::vector<std::int32_t>{3, 4, 5, 6}, std::vector<std::uint8_t>{0, 1, 0, 1});
  writer.finish();
  const Batch batch = open_samples(recipe, Split::kTrain)->read(numbers(0, 1));
  EXPECT_THAT(batch.tokens.ids, ElementsAre(90, 3, 4, 5, 6, 92));
  EXPECT_THAT(batch.targets, ElementsAre(kNone, 4, kNone, 6, 91, kNone));
}

TEST_F(PairsOfTexts, AreSplitAsPairs) {
  Documents documents;
  for (std::int32_t i = 0; i < 100; ++i) {
    documents.push_back({1000 + i});
    documents.push_back({2000 + i});
  }
  auto recipe = recipe_of(documents, 4, 4);
  recipe.data.validation_fraction = 0.13;
  std::map<std::int64_t, int> seen;
  for (const auto& [split, count] : {std::pair(Split::kTrain, 87), std::pair(Split::kValidation, 13)}) {
    const auto samples = open_samples(recipe, split);
    ASSERT_EQ(samples->epoch(), count);
    const Batch batch = samples->read(numbers(0, count));
    for (std::int64_t row = 0; row < count; ++row) {
      const auto at = static_cast<std::size_t>(row * 4);
      EXPECT_EQ(batch.source.ids[at] + 1000, batch.targets[at]);
      ++seen[batch.source.ids[at]];
    }
  }
  EXPECT_EQ(seen.size(), 100U);
}

}  // namespace
}  // namespace trireme::data
