// What runs on parameter servers: L1 logistic regression and L-BFGS, each beside its serial version.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/mailbox_threads.h"
#include "trireme/comm/mailbox_timed.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/lasso.h"
#include "trireme/ps/logistic.h"
#include "trireme/ps/sandblaster.h"

namespace trireme::ps {
namespace {

using testing::HasSubstr;

formats::SparseSamples sparse_samples(std::size_t rows, std::uint32_t features) {
  const Random random(11, "test/lasso");
  std::uint64_t draws = 0;
  formats::SparseSamples samples;
  samples.feature_count = features;
  for (std::size_t row = 0; row < rows; ++row) {
    double margin = 0.3 * random.normal(draws++);
    for (std::uint32_t feature = 0; feature < features; ++feature) {
      if (random.uniform(draws++) > 0.25) continue;
      const double value = random.normal(draws++);
      samples.features.push_back(feature);
      samples.values.push_back(value);
      if (feature % 5 == 0) margin += value * (feature % 2 == 0 ? 1.5 : -1);
    }
    samples.rows.push_back(samples.features.size());
    samples.labels.push_back(margin > 0 ? 1 : -1);
  }
  return samples;
}

TEST(Lasso, MeetsTheOptimalityConditionsAndEqualsTheSerialSolver) {
  const formats::SparseSamples samples = sparse_samples(60, 24);
  const LassoResult serial = solve_lasso_serially(samples, 1.5, 1e-10);
  ASSERT_TRUE(serial.converged);
  EXPECT_GT(serial.nonzeros(), 2);
  EXPECT_LT(serial.nonzeros(), 24);
  for (const std::uint64_t tau : {std::uint64_t{0}, std::uint64_t{2}, kEventual}) {
    for (const bool kkt_filter : {false, true}) {
      if (tau != 2 && !kkt_filter) continue;
      LassoOptions options{.lambda = 1.5,
                           .tolerance = 1e-7,
                           .servers = 2,
                           .workers = 2,
                           .copies = 2,
                           .blocks = 3,
                           .tau = tau,
                           .kkt_filter = kkt_filter,
                           .filters = {.encoding = Encoding::kZstd}};
      LassoResult result;
      comm::run_thread_mailboxes(lasso_mailboxes(options), {.deadline = std::chrono::seconds(60)},
                                 [&](comm::Mailbox& mailbox) { run_lasso(mailbox, samples, options, result); });
      EXPECT_TRUE(result.converged) << "tau " << tau << ", violation " << result.violation;
      EXPECT_LE(kkt_violation(result.weights, lasso_gradient(samples, result.weights), 1.5), 1e-6);
      EXPECT_NEAR(result.objective, serial.objective, 1e-8);
      for (std::size_t i = 0; i < serial.weights.size(); ++i)
        EXPECT_NEAR(result.weights[i], serial.weights[i], 1e-5) << i;
      if (tau != kEventual) {
        EXPECT_LE(result.most_stale, tau);
      }
      if (kkt_filter) {
        EXPECT_LT(result.pushed_keys, result.all_keys);
      }
      if (!kkt_filter) {
        EXPECT_EQ(result.pushed_keys, result.all_keys);
      }
    }
  }
}

TEST(Lasso, TheSameSeedGivesTheSameBits) {
  const formats::SparseSamples samples = sparse_samples(20, 8);
  const LassoOptions options{
      .lambda = 1, .tolerance = 1e-4, .servers = 2, .workers = 2, .blocks = 2, .tau = 1, .checks = 3};
  const auto run = [&](std::uint64_t seed) {
    LassoResult result;
    comm::run_mailboxes(lasso_mailboxes(options), {.seed = seed},
                        [&](comm::Mailbox& mailbox) { run_lasso(mailbox, samples, options, result); });
    return result.weights;
  };
  EXPECT_EQ(run(1), run(1));
}

TEST(Lasso, RefusesWhatWouldChangeTheSolution) {
  const formats::SparseSamples samples = sparse_samples(10, 4);
  EXPECT_THROW(check_lasso(samples, {.filters = {.significant = 0.1}}), ConfigError);
  EXPECT_THROW(check_lasso(samples, {.servers = 1, .copies = 2}), ConfigError);
  EXPECT_NO_THROW(check_lasso(samples, {}));
}

/// A sum of squares whose terms have different curvatures: convex, and no iteration is like another.
double portion_loss(int portion, std::span<const double> weights, std::span<double> gradient) {
  const Random random(static_cast<std::uint64_t>(portion), "test/portion");
  double loss = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double scale = 0.1 + 3 * random.uniform(i), target = random.normal(i);
    const double off = weights[i] + 0.2 * weights[(i + 1) % weights.size()] - target;
    loss += 0.5 * scale * off * off + 0.05 * std::pow(weights[i], 4);
    gradient[i] += scale * off + 0.2 * std::pow(weights[i], 3);
    gradient[(i + 1) % weights.size()] += 0.2 * scale * off;
  }
  return loss;
}

TEST(Sandblaster, OnShardsIsTheSingleProcess) {
  constexpr std::uint64_t kKeys = 37;
  const std::vector<double> start(kKeys, 0.5);
  for (const auto& [servers, history] : {std::pair{1, 4}, {3, 4}, {3, 10}}) {
    SandblasterOptions options{.servers = servers,
                               .replicas = 2,
                               .portions = 6,
                               .lbfgs = {.history = history, .iterations = 20, .tolerance = 1e-9}};
    LocalVectors local(kKeys, lbfgs_slots(history), 6, portion_loss);
    std::ranges::copy(start, local.slot(kWeightSlot).begin());
    const LbfgsReport single = minimize_lbfgs(local, options.lbfgs);
    SandblasterResult result;
    comm::run_mailboxes(
        sandblaster_mailboxes(options), {.seed = static_cast<std::uint64_t>(servers)},
        [&](comm::Mailbox& mailbox) { run_sandblaster(mailbox, options, start, portion_loss, result); });
    EXPECT_GT(single.iterations, 8);
    EXPECT_LT(single.loss, 0.9 * single.losses.front());
    EXPECT_EQ(result.report.iterations, single.iterations);
    EXPECT_NEAR(result.report.loss, single.loss, 1e-12 * std::abs(single.loss));
    for (std::size_t i = 0; i < kKeys; ++i) {
      EXPECT_NEAR(result.weights[i], local.slot(kWeightSlot)[i], 1e-12) << i << " with " << servers << " servers";
    }
    for (std::size_t i = 0; i < single.losses.size(); ++i)
      EXPECT_NEAR(result.report.losses[i], single.losses[i], 1e-12 * std::abs(single.losses[i]));
    EXPECT_EQ(std::accumulate(result.portions_of.begin(), result.portions_of.end(), std::int64_t{0}),
              6 * result.report.evaluations);
  }
}

/// Logistic regression with the paper's ten pairs: its gradient is that of differences, its minimum has none, and
/// shards give what one process gives.
TEST(Sandblaster, LogisticRegressionOnShardsIsTheSingleProcess) {
  const formats::SparseSamples samples = sparse_samples(120, 30);
  constexpr int kPortions = 24;
  const PortionLoss loss = logistic_portions(samples, 0.5, kPortions);
  const auto whole = [&](std::span<const double> weights, std::span<double> gradient) {
    double sum = 0;
    for (int portion = 0; portion < kPortions; ++portion) sum += loss(portion, weights, gradient);
    return sum;
  };
  std::vector<double> at(30), gradient(30), ignored(30);
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = 0.1 * static_cast<double>(i) - 1;
  whole(at, gradient);
  for (const std::size_t i : {0, 7, 29}) {
    const double kept = at[i], step = 1e-6;
    at[i] = kept + step;
    const double above = whole(at, ignored);
    at[i] = kept - step;
    EXPECT_NEAR((above - whole(at, ignored)) / (2 * step), gradient[i], 1e-6) << i;
    at[i] = kept;
  }
  SandblasterOptions options{.servers = 3,
                             .replicas = 3,
                             .portions = kPortions,
                             .lbfgs = {.history = 10, .iterations = 60, .tolerance = 1e-6}};
  const std::vector<double> start(30);
  LocalVectors local(30, lbfgs_slots(10), kPortions, loss);
  const LbfgsReport single = minimize_lbfgs(local, options.lbfgs);
  SandblasterResult result;
  comm::run_thread_mailboxes(sandblaster_mailboxes(options), {},
                             [&](comm::Mailbox& mailbox) { run_sandblaster(mailbox, options, start, loss, result); });
  EXPECT_TRUE(result.report.converged);
  EXPECT_NEAR(result.report.loss, single.loss, 1e-12 * single.loss);
  for (std::size_t i = 0; i < start.size(); ++i) EXPECT_NEAR(result.weights[i], local.slot(kWeightSlot)[i], 1e-12) << i;
  EXPECT_GT(logistic_accuracy(samples, result.weights), 0.8);
  std::vector<double> rest(30);
  whole(result.weights, rest);
  for (const double each : rest) EXPECT_NEAR(each, 0, 1e-6);
}

TEST(Sandblaster, TwoSumKeepsWhatADoubleLoses) {
  TwoSum sum;
  for (const double value : {1e16, 1.0, -1e16, 1.0}) sum.add(value);
  EXPECT_EQ(sum.value(), 2.0);
  TwoSum product;
  product.add_product(1 + 0x1p-30, 1 - 0x1p-30);
  product.add(-1);
  EXPECT_EQ(product.value(), -0x1p-60);
}

TEST(Portions, OneReplicaTenTimesSlowCostsLittleWithBackupTasks) {
  constexpr int kReplicas = 8, kPortions = kPortionsPerReplica * kReplicas;
  std::vector<double> seconds(kReplicas, 1.0);
  const double balanced = batch_seconds(kPortions, seconds, true);
  EXPECT_DOUBLE_EQ(balanced, kPortionsPerReplica);
  seconds[3] = 10;
  EXPECT_LE(batch_seconds(kPortions, seconds, true), 1.3 * balanced);
  EXPECT_GE(batch_seconds_in_shares(kPortions, seconds), 5 * balanced);
  seconds[3] = 1e9;  // it never answers
  EXPECT_LE(batch_seconds(kPortions, seconds, true), 1.3 * balanced);
  EXPECT_GE(batch_seconds(kPortions, seconds, false), 5 * balanced);
}

/// The same in virtual time with all messages: one of eight replicas takes ten times as long over each portion.
TEST(Sandblaster, OneSlowReplicaCostsLittleWithBackupTasksAndMuchWithout) {
  constexpr int kReplicas = 8, kPortions = kReplicas * kPortionsPerReplica;
  const auto seconds_with = [&](bool backup, double slow_times, int portions) {
    const SandblasterOptions options{.servers = 2,
                                     .replicas = kReplicas,
                                     .portions = portions,
                                     .backup = backup,
                                     .lbfgs = {.history = 2, .iterations = 4, .tolerance = 0}};
    SandblasterResult result;
    double end = 0;
    comm::run_timed_mailboxes(sandblaster_mailboxes(options), {.latency_s = 1e-3}, [&](comm::TimedMailbox& mailbox) {
      const double each = 50.0 * kReplicas / portions, seconds = mailbox.address() == 3 ? slow_times * each : each;
      const auto loss = [&](int portion, std::span<const double> weights, std::span<double> gradient) {
        mailbox.advance(seconds);
        return portion_loss(portion, weights, gradient);
      };
      run_sandblaster(mailbox, options, std::vector<double>(8, 0.5), loss, result);
      if (mailbox.address() == 0) end = mailbox.now();
    });
    return end / static_cast<double>(result.report.evaluations);
  };
  const double balanced = seconds_with(true, 1, kPortions), helped = seconds_with(true, 10, kPortions);
  // Each has its share as one portion, and nobody takes it over.
  const double alone = seconds_with(false, 10, kReplicas);
  fmt::print("a batch: balanced {:.2f} s, with a slow replica {:.2f} s ({:.2f}x), in fixed shares {:.2f} s ({:.2f}x)\n",
             balanced, helped, helped / balanced, alone, alone / balanced);
  EXPECT_GE(alone, 5 * balanced);
  EXPECT_LE(helped, 1.3 * balanced);  // 8 / 7.1 = 1.13 is what so many replicas can do
}

TEST(Portions, EachCountsOnceAndFreshOnesGoFirst) {
  PortionScheduler scheduler(3, true);
  EXPECT_EQ(scheduler.next(0), 0);
  EXPECT_EQ(scheduler.next(1), 1);
  EXPECT_EQ(scheduler.next(1), 2);
  EXPECT_EQ(scheduler.next(1), 0);  // the oldest that it does not have itself
  EXPECT_EQ(scheduler.next(1), std::nullopt);
  EXPECT_TRUE(scheduler.done(0));
  EXPECT_FALSE(scheduler.done(0));
  EXPECT_TRUE(scheduler.done(1));
  EXPECT_FALSE(scheduler.complete());
  EXPECT_TRUE(scheduler.done(2));
  EXPECT_TRUE(scheduler.complete());
}

TEST(Libsvm, ReadsWhatItWritesAndNamesTheLineThatIsWrong) {
  const auto samples = formats::parse_libsvm("+1 1:0.5 3:-2 # a comment\n\n0 2:1e-3\r\n", "x");
  EXPECT_EQ(samples.labels, (std::vector<double>{1, -1}));
  EXPECT_EQ(samples.features, (std::vector<std::uint32_t>{0, 2, 1}));
  EXPECT_EQ(samples.feature_count, 3u);
  const auto again = formats::parse_libsvm(formats::libsvm_text(samples), "y");
  EXPECT_EQ(again.values, samples.values);
  EXPECT_EQ(again.rows, samples.rows);
  for (const auto& [text, why] :
       std::map<std::string, std::string>{{"1 2:1 1:1\n0 1:1", "x:1: index 1 comes after 2"},
                                          {"1 1:1\n0 1=1", "x:2: INDEX:VALUE"},
                                          {"1 1:1\n2 1:1\n3 1:1", "x:3: label 3 is a third"},
                                          {"1 1:1\n1 2:1", "1 different labels"},
                                          {"a 1:1", "the label is not a number"},
                                          {"1 1:1\n0 1:nan", "the value of index 1 is nan"}}) {
    try {
      formats::parse_libsvm(text, "x");
      ADD_FAILURE() << text;
    } catch (const IoError& error) {
      EXPECT_THAT(error.message(), HasSubstr(why));
    }
  }
}

}  // namespace
}  // namespace trireme::ps
