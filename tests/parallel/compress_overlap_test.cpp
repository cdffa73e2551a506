// Compressed exchanges of buckets beside backward: they begin before its end, whatever has arrived is worked on, and
// all bits are those of the same exchanges after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/parallel/matrix_copies.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/nn/state.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/compress/staged_reductions.h"

namespace trireme::parallel {
namespace {

using spec::CompressConfig, spec::CompressKind;

CompressConfig after_backward(CompressConfig config) {
  config.overlap = false;
  return config;
}

/// Ranks add gradients at different times: they find exchanges arrived in different orders.
Named uneven_step(MatrixCopies& copies, std::int64_t step, int rank) {
  copies.data_parallel->begin_micro(true);
  const Random pauses(3, fmt::format("pause {} {}", step, rank));
  std::uint64_t pause = 0;
  for (const char* name : {"bias", "right", "left"}) {
    nn::Param& param = copies.params.at(name);
    nn::add_gradient(param, matrix_gradient(param, step, rank));
    std::this_thread::sleep_for(std::chrono::microseconds(pauses.below(2000, pause++)));
    copies.data_parallel->added(param);
  }
  copies.data_parallel->finish();
  Named sums;
  for (const nn::Param& param : copies.data_parallel->owned()) sums[param.name] = param.gradient.clone();
  copies.data_parallel->step_taken(0.1);
  nn::zero_grad(copies.data_parallel->owned());
  return sums;
}

Named state_of(MatrixCopies& copies) {
  nn::State state;
  copies.data_parallel->add_state(state);
  Named tensors;
  for (const nn::StateTensor& entry : state.tensors()) tensors[entry.name] = entry.tensor;
  return tensors;
}

TEST(CompressOverlap, GivesTheSameBits) {
  for (const CompressConfig& config : gradient_kinds()) {
    if (config.kind == CompressKind::kCsc) continue;  // one exchange for all
    for (const int ranks : {1, 2, 4, 5}) {
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        MatrixCopies beside(rank, config), after(rank, after_backward(config));
        ASSERT_GE(beside.data_parallel->buckets().size(), 2U);
        for (std::int64_t step = 0; step < 5; ++step) {
          const Named sums = reduce_step(after, step, rank.rank());
          expect_equal_bits(uneven_step(beside, step, rank.rank()), sums, spec::compress_name(config.kind));
          expect_equal_bits(state_of(beside), state_of(after), spec::compress_name(config.kind));
        }
      });
    }
  }
}

/// A bucket of small parameters alone has one stage, others two and more: the second of one behind it still waits for
/// the second of one before it, or ranks would call the second group in different orders.
TEST(StagedReductions, KeepTheOrderOfAllBefore) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    std::vector<std::string> order;
    double number = 1;
    const auto stage = [&](const char* name) {
      return [&order, name] { return order.emplace_back(name), comm::Work(); };
    };
    const auto slow = [&] {
      order.emplace_back("first 1");
      if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return rank.world().all_reduce(comm::Buffer{&number, 1, comm::DType::kF64}, comm::Reduce::kSum);
    };
    StagedReductions reductions;
    reductions.add({}, {slow, stage("first 2"), stage("first 3")});
    reductions.add({}, {stage("small")});
    reductions.add({}, {stage("last 1"), stage("last 2"), stage("last 3")});
    reductions.finish();
    const auto place = [&](const char* name) { return std::ranges::find(order, name) - order.begin(); };
    EXPECT_LT(place("first 1"), place("last 1"));
    EXPECT_LT(place("first 2"), place("last 2"));
    EXPECT_LT(place("first 3"), place("last 3"));
    EXPECT_EQ(order.size(), 7U);
    EXPECT_EQ(number, 2);
  });
}

/// Its momentum comes from an optimizer.
TEST(CompressOverlap, GivesTheSameBitsWithOnebitAdam) {
  comm::run_ranks(3, [&](comm::Rank& rank) {
    const CompressConfig config{.kind = CompressKind::kOnebitAdam, .freeze_after = 2};
    MatrixCopies beside(rank, config), after(rank, after_backward(config));
    std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
    for (MatrixCopies* copies : {&beside, &after}) {
      optimizers.push_back(optim::make_optimizer({.kind = spec::OptimizerKind::kAdamw}, copies->params));
      copies->data_parallel->attach(*optimizers.back());
    }
    for (std::int64_t step = 0; step < 6; ++step) {
      for (MatrixCopies* copies : {&beside, &after}) {
        copies->data_parallel->begin_micro(true);
        for (const char* name : {"bias", "right", "left"}) {
          nn::Param& param = copies->params.at(name);
          nn::add_gradient(param, matrix_gradient(param, step, rank.rank()));
          copies->data_parallel->added(param);
        }
        copies->data_parallel->finish();
        optimizers[copies == &after]->step({.learning_rate = 0.01});
        copies->data_parallel->step_taken(0.01);
        copies->data_parallel->updated();
      }
      for (const nn::Param& param : beside.params) {
        EXPECT_TRUE(at::equal(param.master, after.params.find(param.name)->master)) << param.name << " " << step;
        at::Tensor first = param.master.clone();
        rank.world().broadcast(device::to_buffer(first), 0).wait();
        EXPECT_TRUE(at::equal(first, param.master)) << "copies differ: " << param.name << " " << step;
      }
      expect_equal_bits(state_of(beside), state_of(after), "state");
    }
    EXPECT_EQ(beside.data_parallel->reducer().report()->rounds, 4);
  });
}

std::uint64_t calls_of(const MatrixCopies& copies) {
  std::uint64_t calls = 0;
  for (const comm::Group* group : copies.groups->all()) calls += group->calls();
  return calls;
}

/// The first matrix's codes travel, are answered and arrive before the second's gradient is there.
TEST(CompressOverlap, WorksBesideBackward) {
  for (const bool overlap : {true, false}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, {.kind = CompressKind::kOnebitSgd, .overlap = overlap});
      const std::uint64_t before = calls_of(copies);
      copies.data_parallel->begin_micro(true);
      for (const char* name : {"bias", "right"}) {
        nn::Param& param = copies.params.at(name);
        nn::add_gradient(param, matrix_gradient(param, 0, rank.rank()));
        copies.data_parallel->added(param);
      }
      EXPECT_EQ(calls_of(copies) - before, overlap ? 1U : 0U) << "to the owners";
      rank.world().barrier().wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      nn::Param& last = copies.params.at("left");
      nn::add_gradient(last, matrix_gradient(last, 0, rank.rank()));
      copies.data_parallel->added(last);
      // The owners' answers and the next codes; the next answer too where the other rank was quick.
      const std::uint64_t calls = calls_of(copies) - before;
      EXPECT_TRUE(overlap ? calls == 3 || calls == 4 : calls == 0) << calls;
      copies.data_parallel->finish();
      EXPECT_EQ(calls_of(copies) - before, 5U) << "two matrices and a vector";
      const CompressionReport& report = *copies.data_parallel->reducer().report();
      EXPECT_GT(report.kernel_seconds, 0);
      EXPECT_LE(report.kernel_seconds, report.seconds);
    });
  }
}

/// The norm of all of a copy's gradient is known at the end only.
TEST(CompressOverlap, WaitsWhereAllGradientsAreLookedAt) {
  for (const CompressConfig& config :
       std::vector<CompressConfig>{{.kind = CompressKind::kCsc, .density = 0.3, .chunk = 64},
                                   {.kind = CompressKind::kOnebitSgd, .local_clip = true}}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, config);
      const std::uint64_t before = calls_of(copies);
      copies.data_parallel->begin_micro(true);
      for (const char* name : {"bias", "right", "left"}) {
        nn::Param& param = copies.params.at(name);
        nn::add_gradient(param, matrix_gradient(param, 0, rank.rank()));
        copies.data_parallel->added(param);
      }
      EXPECT_EQ(calls_of(copies), before);
      copies.data_parallel->finish();
      EXPECT_GT(calls_of(copies), before);
    });
  }
}

}  // namespace
}  // namespace trireme::parallel
