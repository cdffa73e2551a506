#include <gmock/gmock.h>

#include <thread>

#include "tests/data/sample_files.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr std::int64_t N = kNoTarget;

class Causal : public OwnFolder {
 protected:
  fs::path shard(const char* name, const Documents& documents, ShardInfo info = {.vocab_size = kVocabulary}) {
    write_shard(folder_ / name, documents, std::move(info));
    return folder_ / name;
  }
};

TEST_F(Causal, DocumentsInARowDoNotMeet) {
  auto recipe = recipe_over({shard("a.shard", {{1, 2, 3}, {4}, {}, {5, 6, 7, 8, 9}})}, 4);
  recipe.data.shuffle = false;
  const auto samples = open_samples(recipe, Split::kTrain);
  EXPECT_EQ(samples->length(), 4);
  EXPECT_EQ(samples->epoch(), 2);
  const Batch batch = samples->read(numbers(0, 2));
  EXPECT_THAT(batch.samples, ElementsAre(0, 1));
  EXPECT_THAT(batch.tokens.ids, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(batch.targets, ElementsAre(2, 3, N, N, 6, 7, 8, 9));
  EXPECT_THAT(batch.tokens.positions, ElementsAre(0, 1, 2, 0, 0, 1, 2, 3));
  EXPECT_THAT(batch.tokens.documents, ElementsAre(0, 0, 0, 1, 0, 0, 0, 0));
  EXPECT_EQ(batch.source.length, 0);
}

TEST_F(Causal, AStreamIsCutWhereverARowEnds) {
  auto recipe = recipe_over({shard("a.shard", {{1, 2, 3}, {4}, {5, 6}})}, 4);
  recipe.data.shuffle = false;
  recipe.data.packing = spec::Packing::kStream;
  const auto samples = open_samples(recipe, Split::kTrain);
  const Batch batch = samples->read(numbers(0, 2));
  EXPECT_THAT(batch.tokens.ids, ElementsAre(1, 2, 3, 4, 5, 6, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(2, 3, 4, 5, 6, N, N, N));
  EXPECT_THAT(batch.tokens.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_TRUE(batch.tokens.documents.empty());
}

TEST_F(Causal, WhatTheMaskHidesIsReadButNotLearnt) {
  ShardWriter writer(folder_ / "a.shard", {.vocab_size = 10});
  writer.add_document(std::vector<std::int32_t>{1, 2, 3, 4}, std::vector<std::uint8_t>{0, 0, 1, 1});
  writer.add_document(std::vector<std::int32_t>{5, 6, 7});
  writer.finish();
  auto recipe = recipe_over({folder_ / "a.shard"}, 3);
  recipe.data.shuffle = false;
  const Batch batch = open_samples(recipe, Split::kTrain)->read(numbers(0, 2));
  EXPECT_THAT(batch.tokens.ids, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(batch.targets, ElementsAre(N, 3, 4, N, 6, 7));
}

/// Every token that follows another in a document is learnt from it exactly once an epoch, in training or validation;
/// nothing else is.
TEST_F(Causal, AnEpochLearnsEveryTokenOnce) {
  const Documents a = numbered_documents(1, 150, 40, 0), b = numbered_documents(2, 90, 300, 30000);
  const Documents c = {numbered_documents(3, 1, 6000, 70000)};
  const auto paths = {shard("a.shard", a), shard("b.shard", b), shard("c.shard", c)};
  Pairs expected;
  for (const Documents& documents : {a, b, c}) {
    for (const auto& document : documents) {
      for (std::size_t i = 1; i < document.size(); ++i) expected[{document[i - 1], document[i]}] = 1;
    }
  }
  for (const std::int64_t length : {2, 3, 7, 64, 1000, 40000}) {
    for (const double fraction : {0.0, 0.01, 0.2, 0.5}) {
      auto recipe = recipe_over(paths, length);
      recipe.data.validation_fraction = fraction;
      Pairs learnt;
      std::int64_t tokens[2] = {};
      for (const Split split : {Split::kTrain, Split::kValidation}) {
        const auto samples = open_samples(recipe, split);
        if (fraction == 0 && split == Split::kValidation) {
          EXPECT_EQ(samples, nullptr);
          continue;
        }
        const Batch batch = samples->read(numbers(0, samples->epoch()));
        add_pairs(batch, learnt);
        tokens[split == Split::kTrain ? 0 : 1] += std::ranges::count_if(batch.targets, [](auto t) { return t != N; });
      }
      for (const auto& [pair, count] : learnt) {
        EXPECT_EQ(count, 1) << pair.first << " " << pair.second;
        EXPECT_EQ(expected.count(pair), 1U) << pair.first << " " << pair.second;
      }
      // A text that is split by blocks loses the few pairs across them: c, and b where 90 documents are too few.
      const std::int64_t by_block = fraction == 0.01 ? 30000 : 70000;
      std::size_t missing = 0;
      for (const auto& [pair, count] : expected) {
        if (learnt.count(pair) > 0) continue;
        ++missing;
        EXPECT_GE(pair.first, by_block);
      }
      EXPECT_EQ(missing > 0, fraction > 0);
      EXPECT_LT(missing, 110U);
      EXPECT_NEAR(static_cast<double>(tokens[1]) / static_cast<double>(tokens[0] + tokens[1]), fraction, 0.06);
    }
  }
}

TEST_F(Causal, DocumentsAndPositionsAreThoseOfTheText) {
  const Documents documents = numbered_documents(4, 200, 50, 0);
  std::map<std::int64_t, std::size_t> document_of;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (const auto token : documents[d]) document_of[token] = d;
  }
  auto recipe = recipe_over({shard("a.shard", documents)}, 37);
  recipe.data.validation_fraction = 0.1;
  const auto samples = open_samples(recipe, Split::kTrain);
  const Batch batch = samples->read(numbers(0, samples->epoch()));
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    std::int64_t position = 0;
    for (std::int64_t i = row * 37; i < (row + 1) * 37; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool first = i == row * 37;
      const bool same = !first && document_of[batch.tokens.ids[at]] == document_of[batch.tokens.ids[at - 1]] &&
                        batch.tokens.ids[at] == batch.tokens.ids[at - 1] + 1;
      if (batch.tokens.ids[at] == 0 && !first) break;  // padding
      position = same ? position + 1 : 0;
      ASSERT_EQ(batch.tokens.positions[at], position);
      ASSERT_TRUE(first || (batch.tokens.documents[at] == batch.tokens.documents[at - 1]) == same) << i;
    }
  }
}

TEST_F(Causal, TheSplitDoesNotDependOnRowsOrOtherFiles) {
  const auto a = shard("a.shard", numbered_documents(1, 300, 40, 0));
  const auto b = shard("b.shard", numbered_documents(2, 300, 40, 30000));
  const auto validation_tokens = [&](const std::vector<fs::path>& paths, std::int64_t length, std::int64_t below) {
    auto recipe = recipe_over(paths, length);
    recipe.data.validation_fraction = 0.1;
    const auto samples = open_samples(recipe, Split::kValidation);
    std::set<std::int64_t> tokens;
    for (const auto id : samples->read(numbers(0, samples->epoch())).targets) {
      if (id != N && id < below) tokens.insert(id);
    }
    return tokens;
  };
  const auto alone = validation_tokens({a}, 16, 30000);
  EXPECT_GT(alone.size(), 100U);
  EXPECT_EQ(validation_tokens({a}, 128, 30000), alone);
  EXPECT_EQ(validation_tokens({b, a}, 16, 30000), alone);
}

TEST_F(Causal, SamplesAreAFunctionOfTheirNumber) {
  auto recipe = recipe_over({shard("a.shard", numbered_documents(1, 100, 40, 0))}, 16);
  const auto samples = open_samples(recipe, Split::kTrain);
  const std::int64_t epoch = samples->epoch();
  const Batch all = samples->read(numbers(0, 3 * epoch));
  // Any cut of a step among ranks, and a run that begins anywhere, reads the same rows.
  for (std::int64_t first = 0; first < 3 * epoch; first += 5) {
    const auto again = open_samples(recipe, Split::kTrain);
    const Batch batch = again->read(numbers(first, std::min<std::int64_t>(5, 3 * epoch - first)));
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      ASSERT_EQ(batch.tokens.ids[i], all.tokens.ids[static_cast<std::size_t>(first) * 16 + i]);
      ASSERT_EQ(batch.targets[i], all.targets[static_cast<std::size_t>(first) * 16 + i]);
    }
  }
  // Epochs hold the same rows in other orders; another seed has another order.
  const auto rows = [&](const Batch& batch, std::int64_t begin) {
    std::vector<std::vector<std::int64_t>> out;
    for (std::int64_t row = begin; row < begin + epoch; ++row)
      out.emplace_back(batch.tokens.ids.begin() + row * 16, batch.tokens.ids.begin() + (row + 1) * 16);
    return out;
  };
  const auto first = rows(all, 0), second = rows(all, epoch);
  EXPECT_NE(first, second);
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(first));
  recipe.run.seed = 6;
  EXPECT_NE(rows(open_samples(recipe, Split::kTrain)->read(numbers(0, epoch)), 0), first);
}

TEST_F(Causal, ThreadsReadAtOnce) {
  const auto recipe = recipe_over({shard("a.shard", numbered_documents(1, 1500, 120, 0))}, 32);
  const auto samples = open_samples(recipe, Split::kTrain);
  const std::int64_t epoch = samples->epoch();
  std::vector<Batch> read(4);
  std::vector<std::thread> threads;
  for (Batch& batch : read) threads.emplace_back([&] { batch = samples->read(numbers(0, epoch)); });
  for (std::thread& thread : threads) thread.join();
  const Batch expected = open_samples(recipe, Split::kTrain)->read(numbers(0, epoch));
  for (const Batch& batch : read) expect_same(batch, expected);
}

TEST_F(Causal, BlendsGiveEachSourceItsShareAndRepeatTheSmaller) {
  const Documents a = numbered_documents(1, 40, 40, 0), b = numbered_documents(2, 400, 40, 30000);
  auto recipe = recipe_over({shard("a.shard", a), shard("b.shard", b)}, 16);
  recipe.data.sources[0].weight = 0.25;
  recipe.data.sources[1].weight = 0.75;
  const auto samples = open_samples(recipe, Split::kTrain);
  const std::int64_t epoch = samples->epoch();
  Pairs learnt;
  std::int64_t from_a = 0;
  for (std::int64_t i = 0; i < epoch; ++i) {
    const Batch batch = read_one(*samples, i);
    add_pairs(batch, learnt);
    from_a += batch.tokens.ids[0] < 30000;
    ASSERT_LE(std::abs(static_cast<double>(from_a) - 0.25 * static_cast<double>(i + 1)), 1.0);
  }
  for (const auto& document : b) {
    for (std::size_t i = 1; i < document.size(); ++i) {
      const std::pair<std::int64_t, std::int64_t> pair(document[i - 1], document[i]);
      ASSERT_EQ(learnt[pair], 1);
    }
  }
  std::set<int> times;
  for (const auto& document : a) {
    for (std::size_t i = 1; i < document.size(); ++i) {
      const std::pair<std::int64_t, std::int64_t> pair(document[i - 1], document[i]);
      times.insert(learnt[pair]);
    }
  }
  EXPECT_GE(*times.begin(), 2);
  EXPECT_LE(*times.rbegin() - *times.begin(), 1);
}

TEST_F(Causal, FoldersAndNamedValidationAreRead) {
  fs::create_directories(folder_ / "train");
  write_shard(folder_ / "train/1.shard", {{1, 2, 3}}, {.vocab_size = 50});
  write_shard(folder_ / "train/0.shard", {{4, 5, 6}}, {.vocab_size = 50});
  write_all(folder_ / "train/README.md", "not tokens");
  write_all(folder_ / "v.txt", "\1\2\3");
  auto recipe = recipe_over({folder_ / "train"}, 8);
  recipe.data.validation_fraction.reset();
  recipe.data.shuffle = false;
  recipe.data.validation = {{(folder_ / "v.txt").string(), std::nullopt}};
  EXPECT_THAT(open_samples(recipe, Split::kTrain)->read(numbers(0, 1)).tokens.ids, ElementsAre(4, 5, 6, 1, 2, 3, 0, 0));
  EXPECT_THAT(open_samples(recipe, Split::kValidation)->read(numbers(0, 1)).tokens.ids,
              ElementsAre(1, 2, 3, 0, 0, 0, 0, 0));
}

TEST_F(Causal, ShardsOfTheNamedTokenizerAreTaken) {
  const auto tokenizer = Tokenizer::bytes();
  ShardWriter writer(folder_ / "a.shard", {.vocab_size = tokenizer->vocab_size(), .tokenizer_hash = tokenizer->hash()});
  writer.add_document(tokenizer->encode("some text"));
  writer.finish();
  auto recipe = recipe_over({folder_ / "a.shard"}, 4);
  recipe.data.tokenizer = "bytes";
  EXPECT_EQ(open_samples(recipe, Split::kTrain)->epoch(), 2);
}

TEST_F(Causal, MistakesAreNamed) {
  const auto open = [](const spec::Recipe& recipe) {
    return message_of<Error>([&] { open_samples(recipe, Split::kTrain); });
  };
  EXPECT_THAT(open({}), HasSubstr("names no data"));
  const auto a = shard("a.shard", {{1, 2, 3}}, {.vocab_size = 50, .tokenizer_hash = 1});
  const auto b = shard("b.shard", {{1, 2, 49}}, {.vocab_size = 50, .tokenizer_hash = 2});
  EXPECT_THAT(open(recipe_over({a, b}, 4)),
              HasSubstr("b.shard was made with another tokenizer (0000000000000002) than"));
  auto other = recipe_over({a}, 4);
  other.data.tokenizer = "bytes";
  EXPECT_THAT(open(other), HasSubstr("another tokenizer (0000000000000001) than data.tokenizer = \"bytes\""));
  EXPECT_THAT(open(recipe_over({folder_ / "nothing"}, 4)), HasSubstr("nothing: cannot be opened"));
  EXPECT_THAT(open(recipe_over({shard("empty.shard", {{}})}, 4)), HasSubstr("has no tokens for training"));
  fs::create_directories(folder_ / "folder");
  EXPECT_THAT(open(recipe_over({folder_ / "folder"}, 4)), HasSubstr("has no files of tokens"));
  auto recipe = recipe_over({b}, 4);
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.vocab_size = 40;
  EXPECT_THAT(open(recipe), HasSubstr("vocabulary of 50, but model.vocab_size = 40"));
  recipe.data.task = spec::DataTask::kSeq2Seq;
  EXPECT_THAT(open(recipe), HasSubstr("holds no pairs"));

  // A file that does not know its vocabulary may hold tokens that the model has not.
  std::string bin;
  for (const int word : {20240520, 1, 3}) put<std::int32_t>(bin, word);
  bin.resize(1024);
  for (const int token : {7, 8, 900}) put<std::uint16_t>(bin, token);
  write_all(folder_ / "c.bin", bin);
  recipe = recipe_over({folder_ / "c.bin"}, 4);
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.vocab_size = 40;
  const auto samples = open_samples(recipe, Split::kTrain);
  EXPECT_THAT(message_of<formats::FormatError>([&] { read_one(*samples, 0); }),
              HasSubstr("c.bin: token 2 is 900, but the vocabulary has 40 (byte 1028)"));
}

}  // namespace
}  // namespace trireme::data
