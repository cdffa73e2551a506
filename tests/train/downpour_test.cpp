// Downpour SGD: one replica is serial SGD, several are what their journal says, in every order of messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/train/support.h"
#include "trireme/base/error.h"
#include "trireme/ps/consistency.h"
#include "trireme/train/servers/downpour.h"

namespace trireme::train {
namespace {

spec::Recipe downpour_recipe(spec::OptimizerKind kind, std::int64_t steps) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2, spec::Precision::kFp64);
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.optim = {.kind = kind, .learning_rate = 0.05};
  if (kind == spec::OptimizerKind::kSgd) recipe.optim.momentum = 0;
  recipe.train.steps = steps;
  return recipe;
}

TEST(Downpour, OneReplicaIsSerialTraining) {
  for (const auto kind : {spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad}) {
    const spec::Recipe recipe = downpour_recipe(kind, 4);
    const DownpourReport report = run_downpour(recipe, {.replicas = 1, .servers = 2, .copies = 2, .seed = 1});
    ASSERT_EQ(report.points.size(), 4u);
    EXPECT_EQ(report.staleness, 0);
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      for (const DownpourReport::Point& point : report.points) {
        const double loss = trainer.step().loss;
        EXPECT_NEAR(point.loss, loss, 1e-12 * loss);
      }
    });
  }
}

TEST(Downpour, ReplicasAreWhatTheirJournalSaysInEveryOrderOfMessages) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const auto kind = seed % 2 == 0 ? spec::OptimizerKind::kSgd : spec::OptimizerKind::kAdagrad;
    const DownpourOptions options{.replicas = 3,
                                  .servers = 2,
                                  .n_fetch = seed == 3 ? 2 : 1,
                                  .n_push = seed == 3 ? 3 : 1,
                                  .tau = seed - 1,
                                  .warm_start = seed == 2 ? 1 : 0,
                                  .seed = seed,
                                  .verify = true};
    const DownpourReport report = run_downpour(downpour_recipe(kind, 3), options);
    ASSERT_TRUE(report.twin_difference.has_value());
    EXPECT_LT(*report.twin_difference, 1e-9) << "seed " << seed;
    EXPECT_LE(report.most_stale, options.tau);
    std::int64_t parts = 0;
    for (const std::int64_t each : report.parts_of) parts += each;
    EXPECT_EQ(parts, 9);
    if (seed == 2) {
      EXPECT_GE(report.parts_of[0], 3);
    }
  }
}

/// Filters change what travels, and the journal still says what came of it.
TEST(Downpour, FiltersSendLessAndTheTwinHoldsBackTheSame) {
  const spec::Recipe recipe = downpour_recipe(spec::OptimizerKind::kSgd, 6);
  const auto run = [&](const ps::Filters& filters, int n_push) {
    return run_downpour(
        recipe,
        {.replicas = 2, .servers = 2, .n_push = n_push, .tau = 1, .seed = 5, .verify = true, .filters = filters});
  };
  for (const int n_push : {1, 2}) {
    const DownpourReport plain = run({}, n_push);
    for (const ps::Filters& filters :
         {ps::Filters{.encoding = ps::Encoding::kZstd}, ps::Filters{.encoding = ps::Encoding::kFixed16},
          ps::Filters{.significant = 1e-2}, ps::Filters{.skip = 0.5, .seed = 3},
          ps::Filters{.encoding = ps::Encoding::kFixed16, .significant = 1e-2, .skip = 0.3, .seed = 4}}) {
      const DownpourReport report = run(filters, n_push);
      EXPECT_LT(report.twin_difference.value(), 1e-9)
          << "encoding " << static_cast<int>(filters.encoding) << ", significant " << filters.significant << ", skip "
          << filters.skip;
      if (filters.encoding == ps::Encoding::kFixed16) {  // a quarter, but for the first weights and the keys
        EXPECT_LT(report.sent_bytes, 0.5 * static_cast<double>(plain.sent_bytes));
      }
      EXPECT_LT(report.sent_bytes, plain.sent_bytes + (filters.keeps_all() ? 1 : plain.sent_bytes));
      EXPECT_LT(report.final_loss, 1.05 * plain.final_loss) << "it learns all the same";
    }
  }
}

TEST(Downpour, OnRealThreadsToo) {
  const DownpourReport report = run_downpour(downpour_recipe(spec::OptimizerKind::kAdagrad, 6),
                                             {.replicas = 2, .servers = 2, .tau = ps::kEventual, .verify = true});
  // Which order pushes come in is another in each run, and with it what Adagrad makes of rounding: up to 1.4e-9 seen.
  EXPECT_LT(report.twin_difference.value(), 1e-8);
}

// ---- in virtual time

/// Two of four replicas three times as slow: what a run takes follows from that alone, and faster ones take more parts.
TEST(DownpourTime, FastReplicasTakeMorePartsAndARunTakesWhatItsRowsTake) {
  const spec::Recipe recipe = [] {
    spec::Recipe made = downpour_recipe(spec::OptimizerKind::kAdagrad, 16);
    made.batch.global_batch_tokens = 8 * 12;  // two rows a part
    return made;
  }();
  const auto run = [&](double slow, double jitter_s) {
    return run_downpour(
        recipe,
        {.replicas = 4,
         .servers = 2,
         .tau = 1,
         .timed = {{.links = {.latency_s = 1e-3, .jitter_s = jitter_s, .seed = 3}, .row_s = {1, 1, slow, slow}}}});
  };
  const DownpourReport even = run(1, 0), uneven = run(3, 0);
  EXPECT_EQ(even.parts_of, (std::vector<std::int64_t>{16, 16, 16, 16}));
  EXPECT_NEAR(even.seconds, 32, 0.2) << "messages are nothing beside rows";
  EXPECT_EQ(uneven.parts_of, (std::vector<std::int64_t>{24, 24, 8, 8}));
  EXPECT_NEAR(uneven.seconds, 48, 0.3) << "twice as fast as waiting for the slow ones in each of 16 steps";
  ASSERT_EQ(uneven.parts.size(), 64u);
  for (std::size_t i = 1; i < 64; ++i) EXPECT_LE(uneven.parts[i - 1].seconds, uneven.parts[i].seconds);
  const DownpourReport first = run(3, 0.1), again = run(3, 0.1);
  EXPECT_EQ(first.seconds, again.seconds);
  EXPECT_EQ(first.final_loss, again.final_loss) << "the same messages in the same order";
  EXPECT_GT(first.seconds, uneven.seconds);
}

// ---- train.mode = "downpour": replicas are ranks of a run

spec::Recipe ranks_recipe(spec::OptimizerKind kind, int ranks, std::int64_t steps) {
  spec::Recipe recipe = downpour_recipe(kind, steps);
  recipe.train.mode = spec::TrainMode::kDownpour;
  recipe.layout.dp = ranks;
  recipe.train.hash_every = recipe.checkpoint.every = 0;
  return recipe;
}

std::vector<at::Tensor> weights_after(const spec::Recipe& recipe, std::int64_t steps) {
  std::vector<at::Tensor> weights;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    for (std::int64_t step = 0; step < steps; ++step) trainer.step();
    for (const nn::Param& param : trainer.params()) weights.push_back(param.master.clone());
  });
  return weights;
}

/// Updates that go through elements one by one, with all that belongs to them.
std::vector<spec::OptimConfig> server_updates() {
  using Kind = spec::OptimizerKind;
  return {{.kind = Kind::kSgd, .learning_rate = 0.05, .momentum = 0},
          {.kind = Kind::kSgd, .learning_rate = 0.05, .weight_decay = 0.1, .momentum = 0.8, .nesterov = true},
          {.kind = Kind::kAdagrad, .learning_rate = 0.05},
          {.kind = Kind::kAdagrad, .learning_rate = 0.05, .weight_decay = 0.1, .grad_clip_norm = 0.5},
          {.kind = Kind::kAdam, .learning_rate = 0.01, .weight_decay = 0.1},
          {.kind = Kind::kAdamw,
           .learning_rate = 0.01,
           .weight_decay = 0.1,
           .grad_clip_norm = 0.5,
           .groups = {{.pattern = "*norm*", .rate = 0.5, .weight_decay = 0.2}}},
          {.kind = Kind::kLion, .learning_rate = 0.003, .weight_decay = 0.1, .beta2 = 0.99}};
}

TEST(DownpourRanks, OneReplicaIsSerialTrainingBitForBit) {
  for (const spec::OptimConfig& optim : server_updates()) {
    for (const auto precision : {spec::Precision::kFp32, spec::Precision::kFp64, spec::Precision::kBf16}) {
      spec::Recipe recipe = ranks_recipe(optim.kind, 1, 5);
      recipe.optim = optim;
      recipe.precision.compute = precision;
      spec::Recipe serial = recipe;
      serial.train.mode = spec::TrainMode::kSynchronous;
      const auto found = weights_after(recipe, 5), expected = weights_after(serial, 5);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(found[i].equal(expected[i])) << i << " of optimizer " << static_cast<int>(optim.kind);
    }
  }
}

/// A checkpoint has what servers keep beside weights: going on from it, at another number of servers too, changes no
/// bit.
TEST(DownpourRanks, GoOnFromTheOptimizersState) {
  for (const spec::OptimConfig& optim : server_updates()) {
    spec::Recipe recipe = ranks_recipe(optim.kind, 1, 4);
    recipe.optim = optim;
    const auto expected = weights_after(recipe, 4);
    recipe.checkpoint.every = 2;
    recipe.downpour.servers = 3;  // on one rank
    std::vector<at::Tensor> found;
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 2; ++step) trainer.step();
      trainer.loaded();  // servers begin with this state
      for (int step = 0; step < 2; ++step) trainer.step();
      for (const nn::Param& param : trainer.params()) found.push_back(param.master.clone());
    });
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].equal(expected[i])) << i << " of optimizer " << static_cast<int>(optim.kind);
  }
}

/// Lossless filters change no bit: one replica, sequential.
TEST(DownpourRanks, CompressionWithoutLossChangesNoBit) {
  spec::Recipe recipe = ranks_recipe(spec::OptimizerKind::kAdagrad, 1, 4);
  const auto expected = weights_after(recipe, 4);
  recipe.downpour.encoding = spec::PushEncoding::kZstd;
  const auto found = weights_after(recipe, 4);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  // Rounded gradients are near the others; with Adagrad's first steps, which have the size of the rate however small
  // the gradient is, weights would not be.
  recipe = ranks_recipe(spec::OptimizerKind::kSgd, 1, 4);
  const auto exact = weights_after(recipe, 4);
  recipe.downpour.encoding = spec::PushEncoding::kFixed16;
  const auto rounded = weights_after(recipe, 4);
  bool other = false;
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    other = other || !rounded[i].equal(exact[i]);
    EXPECT_TRUE(rounded[i].allclose(exact[i], 1e-3, 1e-5)) << i;
  }
  EXPECT_TRUE(other);
}

TEST(DownpourRanks, EqualTheirSerialTwin) {
  spec::Recipe recipe = ranks_recipe(spec::OptimizerKind::kAdagrad, 3, 6);
  recipe.downpour = {.servers = 2, .copies = 2, .n_fetch = 2, .n_push = 2, .tau = 1, .warm_start = 2};
  recipe.train.hash_every = 3;  // a rest in the midst
  const auto check = [&](const char* what) {
    const VerifyResult result = verify_beside_one_rank(recipe, 3, 6);
    EXPECT_TRUE(result.equal) << what << ": " << result.weights.name << " differs by " << result.weights.relative;
    EXPECT_LT(result.weights.relative, 1e-9) << what;
    EXPECT_EQ(result.steps.size(), 6u);
  };
  check("as it is");
  recipe.downpour.encoding = spec::PushEncoding::kFixed16;
  recipe.downpour.significant = 1e-4;
  recipe.downpour.skip = 0.25;
  check("with filters");
}

TEST(DownpourRanks, OfEveryUpdateEqualTheirSerialTwin) {
  for (const spec::OptimConfig& optim : server_updates()) {
    for (const bool filters : {false, true}) {
      spec::Recipe recipe = ranks_recipe(optim.kind, 2, 4);
      // No biases: those of keys have a gradient of rounding alone, whose sign is what Lion would follow.
      recipe.model = small_recipe(spec::Family::kLlama, spec::Precision::kFp64).model;
      recipe.optim = optim;
      recipe.downpour.servers = 3;
      recipe.downpour.tau = 1;
      if (filters) recipe.downpour.skip = 0.3;
      const VerifyResult result = verify_beside_one_rank(recipe, 2, 4);
      EXPECT_TRUE(result.equal) << "optimizer " << static_cast<int>(optim.kind) << ": " << result.weights.name
                                << " differs by " << result.weights.relative;
    }
  }
}

TEST(DownpourRanks, RestWithTheSameWeightsAndGoOnFromTheState) {
  spec::Recipe recipe = ranks_recipe(spec::OptimizerKind::kAdagrad, 2, 4);
  recipe.checkpoint.every = 2;
  std::mutex mutex;
  std::map<int, std::vector<at::Tensor>> weights;
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
    EXPECT_EQ(trainer.step().position.step, 1);
    EXPECT_FALSE(trainer.at_rest());
    const StepReport second = trainer.step();
    EXPECT_TRUE(trainer.at_rest());
    EXPECT_TRUE(second.staleness.has_value());
    const auto queues = trainer.driver().queues();
    ASSERT_EQ(queues.size(), rank.rank() == 0 ? 4u : 3u) << "pushes, outbox, mail, and a server's";
    for (const observe::NamedQueue& queue : queues) {
      EXPECT_EQ(queue.reading.arrivals, queue.reading.departures) << queue.name << " is empty at rest";
      EXPECT_NEAR(queue.reading.length(), queue.reading.rate() * queue.reading.wait(),
                  0.05 * queue.reading.length() + 1e-3)
          << queue.name;
    }
    // As a checkpoint that is read does: servers begin with this state, Adagrad's sums included.
    trainer.loaded();
    trainer.step();
    trainer.step();
    EXPECT_TRUE(trainer.at_rest());
    EXPECT_GT(trainer.state().at("optim/sum/" + trainer.params().begin()->name).tensor.sum().item<double>(), 0);
    const std::lock_guard lock(mutex);
    for (const nn::Param& param : trainer.params()) weights[rank.rank()].push_back(param.master.clone());
  });
  for (std::size_t i = 0; i < weights[0].size(); ++i) EXPECT_TRUE(weights[0][i].equal(weights[1][i]));
}

TEST(DownpourRanks, AReplicaThatFailsEndsTheOthers) {
  const spec::Recipe recipe = ranks_recipe(spec::OptimizerKind::kSgd, 2, 4);
  const auto begin = std::chrono::steady_clock::now();
  try {
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      trainer.on_micro([&](std::int64_t, double) {
        if (rank.rank() == 1) throw IoError("the disk is gone");
      });
      for (int step = 0; step < 4; ++step) trainer.step();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("the disk is gone"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Downpour, RefusesWhatServersCannotDo) {
  spec::Recipe recipe = downpour_recipe(spec::OptimizerKind::kLamb, 2);
  EXPECT_THROW(check_downpour(recipe, {}), ConfigError);
  EXPECT_THROW(check_downpour(downpour_recipe(spec::OptimizerKind::kSgd, 2), {.timed = {{.row_s = {1}}}}), ConfigError);
  recipe.optim.kind = spec::OptimizerKind::kAdagrad;
  EXPECT_NO_THROW(check_downpour(recipe, {}));
  EXPECT_THROW(check_downpour(recipe, {.servers = 1, .copies = 2}), ConfigError);
  EXPECT_THROW(check_downpour(recipe, {.synchronous = true, .verify = true}), ConfigError);
}

}  // namespace
}  // namespace trireme::train
