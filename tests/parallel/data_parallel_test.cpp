// Copies of a few parameters: when buckets go, what is summed, and what is said when something is missing.
#include "trireme/parallel/data_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/parallel/support.h"
#include "trireme/base/error.h"

namespace trireme::parallel {
namespace {

TEST(DataParallel, SumWhatRanksFound) {
  for (const int zero : {0, 1, 2}) {
    comm::run_ranks(3, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero});
      for (int step = 0; step < 2; ++step) {
        copies.micro(false, rank.rank() + 1);
        copies.micro(true, 10);
        copies.data_parallel->finish();
        for (const nn::Param& param : copies.data_parallel->owned()) {  // (1 + 2 + 3) + 3 x 10
          EXPECT_TRUE(at::equal(param.gradient, at::full(param.gradient.sizes(), 36.0))) << param.name << zero;
          EXPECT_FALSE(param.gradient_empty);
        }
        nn::zero_grad(copies.data_parallel->owned());
      }
    });
  }
}

/// However many micros a step has, its gradients travel once; one pool makes one call of them all.
TEST(DataParallel, AccumulateBeforeTheySum) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{900}, std::int64_t{1}}) {
      Copies copies(rank, {.bucket_bytes = bytes});
      EXPECT_EQ(copies.data_parallel->buckets().size(), bytes == 0 ? 1U : bytes == 900 ? 2U : 4U);
      const std::uint64_t before = copies.group().calls();
      for (int micro = 0; micro < 5; ++micro) copies.micro(micro == 4, 1);
      copies.data_parallel->finish();
      EXPECT_EQ(copies.group().calls() - before, copies.data_parallel->buckets().size());
    }
  });
}

/// A recording has all sums in it: after it has run, nothing of them is left to do.
TEST(DataParallel, RecordedSumsAreNotMadeAgain) {
  for (const int zero : {0, 1}) {
    for (const bool narrow : {false, true}) {
      comm::run_ranks(3, [&](comm::Rank& rank) {
        Copies copies(rank, {.zero = zero, .bucket_bytes = 900, .reduce_bf16 = narrow});
        for (int step = 0; step < 2; ++step) {
          copies.micro(false, rank.rank() + 1);
          copies.micro(true, 10);
          copies.data_parallel->complete();
          const std::uint64_t before = copies.group().calls();
          copies.data_parallel->replayed();
          copies.data_parallel->finish();
          EXPECT_EQ(copies.group().calls(), before);
          for (const nn::Param& param : copies.data_parallel->owned()) {
            EXPECT_TRUE(at::equal(param.gradient, at::full(param.gradient.sizes(), 36.0))) << param.name << zero;
            EXPECT_FALSE(param.gradient_empty);
          }
          nn::zero_grad(copies.data_parallel->owned());
        }
      });
    }
  }
}

/// Layers keep what they derive from weights, such as 8-bit forms, until the weights are new.
TEST(DataParallel, LayersAreToldOfNewWeights) {
  for (const int zero : {1, 2, 3}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero});
      const std::int64_t before = copies.params.at("a").version;
      for (nn::Param& param : copies.data_parallel->owned()) ++param.version;  // as an update does
      copies.data_parallel->updated();
      copies.data_parallel->enter(0, /*backward=*/false);
      EXPECT_GT(copies.params.at("a").version, before) << zero;
      copies.data_parallel->leave(0);
    });
  }
}

/// A full bucket goes at once, in the order of buckets even where another is full first.
TEST(DataParallel, BucketsGoAsTheyFill) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    Copies copies(rank, {.bucket_bytes = 1});
    comm::Group& group = copies.group();
    const std::uint64_t before = group.calls();
    copies.data_parallel->begin_micro(true);
    copies.add("c", 1);
    EXPECT_EQ(group.calls() - before, 0U);  // "d" is first
    copies.add("d", 1);
    EXPECT_EQ(group.calls() - before, 2U);
    copies.add("a", 1);
    EXPECT_EQ(group.calls() - before, 2U);
    copies.add("b", 1);
    EXPECT_EQ(group.calls() - before, 4U);
    copies.data_parallel->finish();
  });
}

TEST(DataParallel, NameWhatHasNoGradientInsteadOfHanging) {
  for (const int zero : {0, 1, 2, 3}) {
    try {
      comm::run_ranks(2, [&](comm::Rank& rank) {
        Copies copies(rank, {.zero = zero, .bucket_bytes = 1});
        copies.data_parallel->begin_micro(true);
        for (const char* name : {"d", "b", "a"}) copies.add(name, 1);
        copies.data_parallel->finish();
      });
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), testing::HasSubstr("gradient to c"));
    }
  }
}

/// With find_unused a branch that one rank did not take adds nothing; what nobody took is left as it is, moments too.
TEST(DataParallel, FindsWhatNobodyUsed) {
  for (const auto& [zero, bytes] : {std::pair{0, 900}, {1, 900}, {2, 900}, {3, 900}, {2, 1}, {3, 1}, {2, 0}}) {
    comm::run_ranks(3, [&, zero = zero, bytes = bytes](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero, .bucket_bytes = bytes, .find_unused = true});
      const auto optimizer = optim::make_optimizer({.kind = spec::OptimizerKind::kAdamw, .weight_decay = 0.5},
                                                   copies.data_parallel->owned());
      for (int step = 0; step < 3; ++step) {
        const bool all = step == 1;
        copies.data_parallel->begin_micro(true);
        copies.add("d", 1);
        if (rank.rank() == 1 || all) copies.add("c", 1);
        if (all) copies.add("b", 1);
        copies.add("a", 1);
        copies.data_parallel->end_pass();
        copies.data_parallel->finish();
        std::map<std::string, at::Tensor> before;
        for (nn::Param& param : copies.data_parallel->owned()) {
          before[param.name] = param.master.clone();
          EXPECT_EQ(param.unused, param.name == "b" && !all) << param.name;
          const double sum = param.name == "b" && !all ? 0 : param.name == "c" && !all ? 1 : 3;
          EXPECT_TRUE(at::equal(param.gradient, at::full(param.gradient.sizes(), sum))) << param.name;
        }
        optimizer->step({.learning_rate = 0.1});
        copies.data_parallel->updated();
        copies.data_parallel->wait_for_weights();
        for (nn::Param& param : copies.data_parallel->owned()) {
          const bool moved = param.master.numel() > 0 && !at::equal(param.master, before[param.name]);
          EXPECT_EQ(moved, param.master.numel() > 0 && (param.name != "b" || all)) << param.name << " step " << step;
        }
      }
    });
  }
}

/// With ZeRO 2 and 3 every micro-batch has its sums: ranks use other branches in other orders, and make the same calls.
TEST(DataParallel, FindsTheUnusedInEachMicroBatch) {
  for (const int zero : {2, 3}) {
    comm::run_ranks(3, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero, .bucket_bytes = 1, .find_unused = true});
      for (int step = 0; step < 2; ++step) {
        const std::uint64_t before = copies.group().calls();
        for (int micro = 0; micro < 3; ++micro) {
          copies.data_parallel->begin_micro(micro == 2);
          // "a" first on one rank and last on another; "c" on one rank alone; "b" in one micro-batch alone.
          if (rank.rank() == 0) copies.add("a", 1);
          if (rank.rank() == micro) copies.add("c", 1);
          if (micro == 1 && step == 1) copies.add("b", 1);
          copies.add("d", 1);
          if (rank.rank() != 0) copies.add("a", 1);
          copies.data_parallel->end_pass();
        }
        copies.data_parallel->finish();
        EXPECT_EQ(copies.group().calls() - before, 3U * 4 + 1) << "a sum a bucket and micro-batch, and who used what";
        for (nn::Param& param : copies.data_parallel->owned()) {
          const double sum = param.name == "b" ? 3 * step : param.name == "c" ? 3 : 9;
          EXPECT_EQ(param.unused, param.name == "b" && step == 0) << param.name;
          EXPECT_TRUE(at::equal(param.gradient, at::full(param.gradient.sizes(), sum))) << param.name << " " << step;
        }
        nn::zero_grad(copies.data_parallel->owned());
      }
    });
  }
}

/// Buckets take groups of the same ranks in turn, and are launched in one order on each.
TEST(DataParallel, BucketsTakeGroupsInTurn) {
  for (const int zero : {0, 1, 2}) {
    comm::run_ranks(3, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero, .bucket_bytes = 1, .reduce_groups = 2});
      std::vector<comm::Group*> lanes;
      for (const Bucket& bucket : copies.data_parallel->buckets()) lanes.push_back(bucket.group);
      ASSERT_EQ(lanes.size(), 4U);
      EXPECT_TRUE(lanes[0] == lanes[2] && lanes[1] == lanes[3] && lanes[0] != lanes[1]);
      const std::uint64_t first = lanes[0]->calls(), second = lanes[1]->calls();
      copies.micro(true, rank.rank());
      copies.data_parallel->finish();
      for (const nn::Param& param : copies.data_parallel->owned()) {
        EXPECT_TRUE(at::equal(param.gradient, at::full(param.gradient.sizes(), 3.0))) << param.name << zero;
      }
      EXPECT_EQ(lanes[0]->calls() - first, 2U);
      EXPECT_EQ(lanes[1]->calls() - second, 2U);
    });
  }
}

/// A copy that had no rows in a step adds nothing and takes part.
TEST(DataParallel, ARankWithoutRowsTakesPart) {
  for (const int zero : {0, 1}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero});
      for (int step = 0; step < 2; ++step) {
        if (rank.rank() == 0) copies.micro(true, 7);
        copies.data_parallel->finish();
        for (const nn::Param& param : copies.data_parallel->owned()) {
          EXPECT_TRUE(at::equal(param.gradient, at::full(param.gradient.sizes(), 7.0)));
        }
        nn::zero_grad(copies.data_parallel->owned());
      }
    });
  }
}

/// Whatever is shared out, layers see the numbers that one rank alone would draw; frozen ones too.
TEST(DataParallel, FetchWhatOthersKeep) {
  nn::Params alone;
  for (const char* name : {"a", "b", "c", "d"}) {
    alone.add(name, {100}, {.kind = nn::Init::Kind::kNormal, .scale = 1}, true);
  }
  for (const auto precision : {nn::Precision::kFp32, nn::Precision::kBf16}) {
    nn::initialise(alone, precision, 1);
    for (const int zero : {1, 2, 3}) {
      comm::run_ranks(3, [&](comm::Rank& rank) {
        Copies copies(rank, {.zero = zero, .precision = precision}, {"b"});
        for (std::size_t unit = 0; unit < 4; ++unit) {
          copies.data_parallel->enter(unit, /*backward=*/false);
          const std::string name(1, static_cast<char>('a' + unit));
          EXPECT_TRUE(at::equal(copies.params.at(name).value, alone.at(name).value)) << name << zero;
          copies.data_parallel->leave(unit);
          if (zero < 3) continue;
          EXPECT_FALSE(copies.params.at(name).value.defined()) << "freed after use";
        }
      });
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
