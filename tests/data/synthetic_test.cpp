#include "trireme/data/synthetic.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/data/sample_files.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kNoNext = kNoTarget;
using spec::DataTask;
using spec::SyntheticKind;

spec::DataConfig task(SyntheticKind kind, std::int64_t sequence, std::int64_t vocabulary = 16) {
  return {.seq_len = sequence, .synthetic = {.kind = kind, .vocab_size = vocabulary}};
}

/// Mean of -log p(token | all before) over every row the chain can make: the definition, by enumeration.
double enumerated_loss(const MarkovChain& chain, std::int64_t length) {
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i <= length; ++i) rows *= chain.vocabulary();
  std::vector<std::map<std::vector<std::int64_t>, double>> prefixes(static_cast<std::size_t>(length) + 2);
  for (std::int64_t number = 0; number < rows; ++number) {
    std::vector<std::int64_t> row;
    for (std::int64_t i = 0, left = number; i <= length; ++i, left /= chain.vocabulary())
      row.push_back(left % chain.vocabulary());
    // The row's probability, summing over contexts where it is shorter than one.
    double probability = 0;
    for (std::int64_t context = 0; context < chain.contexts(); ++context) {
      std::vector<std::int64_t> digits(static_cast<std::size_t>(chain.order()));
      for (std::int64_t i = chain.order() - 1, left = context; i >= 0; --i, left /= chain.vocabulary())
        digits[static_cast<std::size_t>(i)] = left % chain.vocabulary();
      double p = chain.stationary(context);
      std::int64_t state = context;
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (i < digits.size()) {
          p *= row[i] == digits[i] ? 1 : 0;
        } else {
          p *= chain.probability(state, row[i]);
          state = chain.next_context(state, row[i]);
        }
      }
      probability += p;
    }
    for (std::size_t size = 0; size <= row.size(); ++size)
      prefixes[size][{row.begin(), row.begin() + static_cast<std::ptrdiff_t>(size)}] += probability;
  }
  double loss = 0;
  for (std::size_t size = 2; size < prefixes.size(); ++size) {
    for (const auto& [prefix, p] : prefixes[size])
      loss -= p * std::log(p / prefixes[size - 1][{prefix.begin(), prefix.end() - 1}]);
  }
  return loss / static_cast<double>(length);
}

TEST(Markov, BestLossIsTheEntropyOfTheRowsThereCanBe) {
  for (const std::int64_t order : {1, 2, 3}) {
    for (const std::int64_t length : {1, 2, 5}) {
      const MarkovChain chain(3, order, 1.5, 7);
      EXPECT_NEAR(chain.best_loss(length), enumerated_loss(chain, length), 1e-12) << order << " " << length;
    }
  }
  EXPECT_NEAR(MarkovChain(8, 1, 0, 1).best_loss(10), std::log(8.0), 1e-12);  // sharpness 0: all tokens alike
}

TEST(Markov, SamplesFollowTheChain) {
  for (const std::int64_t order : {1, 2}) {
    auto data = task(SyntheticKind::kMarkov, 64, 8);
    data.synthetic.order = order;
    const auto samples = synthetic_samples(data, DataTask::kCausal, Split::kTrain, 3);
    EXPECT_EQ(samples->epoch(), 0);
    const MarkovChain chain(8, order, data.synthetic.sharpness, 3);
    // The chain itself is the best model; its loss on samples must be the best loss.
    const Batch batch = samples->read(numbers(0, 3000));
    double loss = 0, squares = 0;
    for (std::int64_t row = 0; row < 3000; ++row) {
      std::vector<std::int64_t> tokens(batch.tokens.ids.begin() + row * 64, batch.tokens.ids.begin() + (row + 1) * 64);
      tokens.push_back(batch.targets[static_cast<std::size_t>(row) * 64 + 63]);
      double row_loss = 0;
      for (std::size_t i = 1; i < tokens.size(); ++i) {
        ASSERT_EQ(batch.targets[static_cast<std::size_t>(row) * 64 + i - 1], tokens[i]);
        if (i < static_cast<std::size_t>(order)) {  // given the first token only, for order 2
          double joint = chain.stationary(tokens[0] * 8 + tokens[1]), first = 0;
          for (std::int64_t t = 0; t < 8; ++t) first += chain.stationary(tokens[0] * 8 + t);
          row_loss -= std::log(joint / first);
        } else {
          const std::int64_t context = order == 1 ? tokens[i - 1] : tokens[i - 2] * 8 + tokens[i - 1];
          row_loss -= std::log(chain.probability(context, tokens[i]));
        }
      }
      loss += row_loss / 64;
      squares += row_loss / 64 * row_loss / 64;
    }
    const double mean = loss / 3000, deviation = std::sqrt((squares / 3000 - mean * mean) / 3000);
    EXPECT_NEAR(mean, *samples->best_loss(), 4 * deviation);
    EXPECT_LT(*samples->best_loss(), std::log(8.0) - 0.3);  // there is something to learn
  }
}

TEST(Synthetic, CopyRepeatsWhatIsNew) {
  for (const std::int64_t length : {2, 3, 8, 9}) {
    const auto samples = synthetic_samples(task(SyntheticKind::kCopy, length), DataTask::kCausal, Split::kTrain, 1);
    const Batch batch = samples->read(numbers(0, 200));
    const std::int64_t half = (length + 2) / 2;
    double fresh = 0;
    for (std::int64_t row = 0; row < 200; ++row) {
      std::vector<std::int64_t> tokens = {batch.tokens.ids[static_cast<std::size_t>(row * length)]};
      for (std::int64_t i = 0; i < length; ++i)
        tokens.push_back(batch.targets[static_cast<std::size_t>(row * length + i)]);
      for (std::int64_t i = 1; i <= length; ++i) {
        if (i < half) {
          ++fresh;
        } else {
          ASSERT_EQ(tokens[static_cast<std::size_t>(i)], tokens[static_cast<std::size_t>(i - half)]);
        }
      }
    }
    EXPECT_NEAR(*samples->best_loss(), fresh / static_cast<double>(200 * length) * std::log(16.0), 1e-12);
  }
}

TEST(Synthetic, MaskedCopyHidesBothCopiesAsOftenAsItSays) {
  for (const std::int64_t length : {32, 33}) {
    const auto samples = synthetic_samples(task(SyntheticKind::kCopy, length), DataTask::kMasked, Split::kTrain, 1);
    const Batch batch = samples->read(numbers(0, 4000));
    double hidden = 0, unknown = 0;
    const std::int64_t half = (length + 1) / 2;
    for (std::int64_t row = 0; row < 4000; ++row) {
      for (std::int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<std::size_t>(row * length + i);
        if (batch.targets[at] == kNoNext) continue;
        ASSERT_EQ(batch.tokens.ids[at], 16);
        ++hidden;
        const std::int64_t twin = i < half ? i + half : i - half;
        const auto twin_at = static_cast<std::size_t>(row * length + twin);
        if (twin >= length || batch.targets[twin_at] != kNoNext) {
          ++unknown;
        } else {
          ASSERT_EQ(batch.tokens.ids[twin_at], batch.targets[at]);
        }
      }
    }
    EXPECT_NEAR(unknown / hidden * std::log(16.0), *samples->best_loss(), 0.04);
  }
}

TEST(Synthetic, ReverseIsTheSourceBackwards) {
  auto data = task(SyntheticKind::kReverse, 12);
  data.source_seq_len = 9;
  const auto samples = synthetic_samples(data, DataTask::kSeq2Seq, Split::kTrain, 1);
  const Batch batch = samples->read(numbers(0, 300));
  std::set<std::int64_t> sizes;
  for (std::int64_t row = 0; row < 300; ++row) {
    const auto source = std::span(batch.source.ids).subspan(static_cast<std::size_t>(row) * 9, 9);
    const auto ids = std::span(batch.tokens.ids).subspan(static_cast<std::size_t>(row) * 12, 12);
    const auto targets = std::span(batch.targets).subspan(static_cast<std::size_t>(row) * 12, 12);
    const auto size = std::ranges::find(source, 18) - source.begin();
    sizes.insert(size);
    std::vector<std::int64_t> expected(source.begin(), source.begin() + size);
    std::ranges::reverse(expected);
    expected.push_back(17);
    std::vector<std::int64_t> read = {16};
    read.insert(read.end(), expected.begin(), expected.end() - 1);
    read.resize(12, 18);
    expected.resize(12, kNoNext);
    EXPECT_TRUE(std::ranges::equal(targets, expected));
    EXPECT_TRUE(std::ranges::equal(ids, read));
    for (std::int64_t i = 0; i < 12; ++i)
      EXPECT_EQ(batch.tokens.documents[static_cast<std::size_t>(row * 12 + i)], i > size ? 1 : 0);
    for (std::int64_t i = 0; i < 9; ++i)
      EXPECT_EQ(batch.source.documents[static_cast<std::size_t>(row * 9 + i)], i >= size ? 1 : 0);
  }
  EXPECT_EQ(sizes.size(), 9U);
  EXPECT_EQ(samples->best_loss(), 0.0);
}

TEST(Synthetic, SamplesAreAFunctionOfSeedSplitAndNumber) {
  for (const auto& [kind, what] : {std::pair(SyntheticKind::kMarkov, DataTask::kCausal),
                                   {SyntheticKind::kCopy, DataTask::kCausal},
                                   {SyntheticKind::kCopy, DataTask::kMasked},
                                   {SyntheticKind::kReverse, DataTask::kSeq2Seq}}) {
    const auto open = [&](Split split, std::uint64_t seed) {
      return synthetic_samples(task(kind, 24), what, split, seed);
    };
    const auto samples = open(Split::kTrain, 1);
    const std::int64_t both[] = {70, 3};
    const Batch two = samples->read(both);
    const Batch one = read_one(*open(Split::kTrain, 1), 3);
    EXPECT_TRUE(std::equal(one.tokens.ids.begin(), one.tokens.ids.end(), two.tokens.ids.begin() + 24));
    EXPECT_TRUE(std::equal(one.targets.begin(), one.targets.end(), two.targets.begin() + 24));
    EXPECT_NE(read_one(*open(Split::kTrain, 2), 3).tokens.ids, one.tokens.ids);
    EXPECT_NE(read_one(*open(Split::kValidation, 1), 3).tokens.ids, one.tokens.ids);
    EXPECT_NE(read_one(*samples, 4).tokens.ids, one.tokens.ids);
  }
}

TEST(Synthetic, TasksThatCannotBeAreRefused) {
  EXPECT_THROW(synthetic_samples(task(SyntheticKind::kMarkov, 8), DataTask::kMasked, Split::kTrain, 1), ConfigError);
  EXPECT_THROW(synthetic_samples(task(SyntheticKind::kReverse, 8), DataTask::kCausal, Split::kTrain, 1), ConfigError);
}

}  // namespace
}  // namespace trireme::data
