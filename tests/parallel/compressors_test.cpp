// Compressed gradients on several ranks: nothing is lost, all ranks get the same bits, skipped steps leave no trace,
// and a run goes on from its state to the bit. Against plain formulas they are held by tests/train/compress_test.cpp.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/parallel/matrix_copies.h"
#include "trireme/base/random.h"
#include "trireme/comm/rank.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/update.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::parallel {
namespace {

using spec::CompressConfig, spec::CompressKind;

void sum_over(comm::Rank& rank, at::Tensor& tensor) {
  if (rank.ranks() > 1) rank.world().all_reduce(device::to_buffer(tensor), comm::Reduce::kSum).wait();
}

/// What arrived and what all ranks keep is what was computed.
TEST(Compressors, LoseNothing) {
  for (const CompressConfig& config :
       std::vector<CompressConfig>{{.kind = CompressKind::kOnebitSgd},
                                   {.kind = CompressKind::kPowerSgd, .rank = 2},
                                   {.kind = CompressKind::kPowerSgd, .rank = 2, .alternate = true},
                                   {.kind = CompressKind::kDgc, .sparsity = 0.9},
                                   {.kind = CompressKind::kCsc, .density = 0.3, .chunk = 64}}) {
    for (const int ranks : {1, 3}) {
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        MatrixCopies copies(rank, config);
        at::Tensor arrived = at::zeros({480}, at::kDouble), computed = at::zeros({480}, at::kDouble);
        for (std::int64_t step = 0; step < 5; ++step) {
          arrived += reduce_step(copies, step, rank.rank()).at("left").view({-1});
          for (int other = 0; other < ranks; ++other)
            computed += matrix_gradient(copies.params.at("left"), step, other).view({-1});
        }
        nn::State state;
        copies.data_parallel->add_state(state);
        at::Tensor kept = state.at("reduce/residual/left").tensor.view({-1}).clone();
        if (const nn::StateTensor* owned = state.find("reduce/owned-residual/left")) {
          for (const layout::ContiguousRun& run : layout::runs(owned->placement))
            kept.narrow(0, run.global, run.count) += owned->tensor.narrow(0, run.local, run.count);
        }
        sum_over(rank, kept);
        EXPECT_GT(kept.abs().max().item<double>(), 1e-3) << "it does compress";
        EXPECT_LT((arrived + kept - computed).abs().max().item<double>(), 1e-11) << spec::compress_name(config.kind);
      });
    }
  }
}

TEST(Compressors, GiveAllRanksTheSameBits) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(4, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, config);
      for (std::int64_t step = 0; step < 4; ++step) {
        for (auto& [name, sum] : reduce_step(copies, step, rank.rank())) {
          at::Tensor first = sum.clone();
          rank.world().broadcast(device::to_buffer(first), 0).wait();
          EXPECT_TRUE(at::equal(first, sum)) << spec::compress_name(config.kind) << " " << name;
        }
      }
    });
  }
}

TEST(Compressors, AreNotTouchedByStepsThatAreSkipped) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, config), other(rank, config);
      for (std::int64_t step = 0; step < 5; ++step) {
        const Named sums = reduce_step(copies, step, rank.rank());
        if (step == 3) {
          reduce_step(other, 17, rank.rank(), /*taken=*/false, [](const nn::Param& param, std::int64_t, int) {
            return at::zeros(param.placement.shape, at::kDouble).fill_(std::nan(""));
          });
        }
        expect_equal_bits(reduce_step(other, step, rank.rank()), sums, spec::compress_name(config.kind));
      }
    });
  }
}

TEST(Compressors, GoOnFromTheirStateToTheBit) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies through(rank, config);
      for (std::int64_t step = 0; step < 3; ++step) reduce_step(through, step, rank.rank());
      MatrixCopies resumed(rank, config);
      nn::State from, to;
      through.data_parallel->add_state(from);
      resumed.data_parallel->add_state(to);
      for (const nn::StateTensor& entry : to.tensors()) at::Tensor(entry.tensor).copy_(from.at(entry.name).tensor);
      for (const nn::StateValue& entry : to.values()) entry.set(from.value(entry.name).get());
      for (std::int64_t step = 3; step < 6; ++step) {
        const Named sums = reduce_step(through, step, rank.rank());
        expect_equal_bits(reduce_step(resumed, step, rank.rank()), sums, spec::compress_name(config.kind));
      }
    });
  }
}

/// Each rank owns a part of the same sums.
TEST(Compressors, GiveTheSameWithZero1) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies whole(rank, config), sharded(rank, config, /*zero=*/1);
      for (std::int64_t step = 0; step < 3; ++step) {
        const Named all = reduce_step(whole, step, rank.rank()), parts = reduce_step(sharded, step, rank.rank());
        for (const nn::Param& param : sharded.data_parallel->owned()) {
          for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
            EXPECT_TRUE(at::equal(all.at(param.name).view({-1}).narrow(0, run.global, run.count),
                                  parts.at(param.name).view({-1}).narrow(0, run.local, run.count)))
                << spec::compress_name(config.kind);
          }
        }
      }
    });
  }
}

/// Zeros in, zeros out, and no NaN later.
TEST(Compressors, TakeZeroGradients) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, config);
      const auto zeros = [](const nn::Param& param, std::int64_t, int) {
        return at::zeros(param.placement.shape, at::kDouble);
      };
      for (const auto& [name, sum] : reduce_step(copies, 0, rank.rank(), true, zeros))
        EXPECT_EQ(sum.abs().max().item<double>(), 0);
      for (std::int64_t step = 1; step < 4; ++step) {
        for (const auto& [name, sum] : reduce_step(copies, step, rank.rank())) {
          EXPECT_TRUE(std::isfinite(sum.sum().item<double>()));
          if (step == 3 && name == "left") {
            EXPECT_GT(sum.abs().max().item<double>(), 0);
          }
        }
      }
    });
  }
}

/// Of a sum whose rank is no higher than the approximation's nothing is lost.
TEST(PowerSgd, IsExactForMatricesOfLowRank) {
  comm::run_ranks(3, [](comm::Rank& rank) {
    MatrixCopies copies(rank, {.kind = CompressKind::kPowerSgd, .rank = 2});
    const auto low = [](const nn::Param& param, std::int64_t step, int number) {
      if (param.placement.shape.size() < 2) return matrix_gradient(param, step, number);
      const at::Tensor full = matrix_gradient(param, step, 0);  // the same column space on all ranks
      return full.narrow(1, 0, 2).matmul(matrix_gradient(param, step, number + 1).narrow(0, 0, 2)).contiguous();
    };
    for (std::int64_t step = 0; step < 3; ++step) {
      const Named sums = reduce_step(copies, step, rank.rank(), true, low);
      at::Tensor exact = at::zeros_like(sums.at("left"));
      for (int other = 0; other < 3; ++other) exact += low(copies.params.at("left"), step, other);
      EXPECT_LT((sums.at("left") - exact).abs().max().item<double>(), 1e-12 * exact.abs().max().item<double>() * 10);
    }
  });
}

/// What the next step begins with is everybody's, or copies would sum factors of different bases.
/// Operators that read a tensor, by where it begins: those that are called from outside, without views.
struct Reads {
  std::map<const void*, int> times;
  int depth = 0;
};
thread_local Reads* reads = nullptr;
struct Counted : at::ObserverContext {};

std::unique_ptr<at::ObserverContext> count_reads(const at::RecordFunction& call) {
  static const std::set<std::string> views{"aten::view",  "aten::narrow",     "aten::slice",
                                           "aten::t",     "aten::transpose",  "aten::numpy_T",
                                           "aten::alias", "aten::as_strided", "aten::reshape"};
  const bool outer = reads->depth++ == 0;
  if (outer && !views.contains(call.name())) {
    const auto inputs = call.inputs();
    const auto name = call.operator_name();
    const bool has_out = name && name->overload_name == "out";
    for (std::size_t i = 0; i < inputs.size() - (has_out ? 1 : 0); ++i) {
      if (inputs[i].isTensor() && inputs[i].toTensor().defined()) ++reads->times[inputs[i].toTensor().const_data_ptr()];
    }
  }
  return std::make_unique<Counted>();
}

/// For P = M Q, for Q = M^T P and for the residual: neither the norm of M nor what it is made of costs another pass.
TEST(PowerSgd, ReadsAMatrixThreeTimes) {
  for (const bool alternate : {false, true}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, {.kind = CompressKind::kPowerSgd, .rank = 1, .alternate = alternate});
      reduce_step(copies, 0, rank.rank());
      Reads mine;
      reads = &mine;
      copies.data_parallel->begin_micro(true);
      for (nn::Param& param : copies.params) nn::add_gradient(param, matrix_gradient(param, 1, rank.rank()));
      const auto handle = at::addThreadLocalCallback(
          at::RecordFunctionCallback(count_reads,
                                     [](const at::RecordFunction&, at::ObserverContext*) { --reads->depth; })
              .needsInputs(true)
              .scopes({at::RecordScope::FUNCTION}));
      for (const char* name : {"bias", "right", "left"}) copies.data_parallel->added(copies.params.at(name));
      copies.data_parallel->finish();
      at::removeCallback(handle);
      for (const char* name : {"right", "left"})
        EXPECT_EQ(mine.times[copies.params.at(name).gradient.const_data_ptr()], alternate ? 2 : 3) << name;
    });
  }
}

TEST(PowerSgd, HasTheSameFactorsOnAllCopies) {
  for (const bool alternate : {false, true}) {
    comm::run_ranks(4, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, {.kind = CompressKind::kPowerSgd, .rank = 2, .alternate = alternate});
      nn::State state;
      copies.data_parallel->add_state(state);
      int factors = 0;
      for (std::int64_t step = 0; step < 4; ++step) {
        reduce_step(copies, step, rank.rank());
        for (const nn::StateTensor& entry : state.tensors()) {
          if (!entry.name.starts_with("reduce/right/") && !entry.name.starts_with("reduce/left/")) continue;
          at::Tensor first = entry.tensor.clone();
          rank.world().broadcast(device::to_buffer(first), 0).wait();
          EXPECT_TRUE(at::equal(first, entry.tensor)) << entry.name << " " << step;
          ++factors;
        }
      }
      EXPECT_EQ(factors, alternate ? 16 : 8);
    });
  }
}

/// By the local factor each rank's residual stays where it is; by the mean of them it would walk off like sqrt(steps).
TEST(PowerSgd, KeepsResidualsBounded) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    MatrixCopies copies(rank, {.kind = CompressKind::kPowerSgd, .rank = 2});
    nn::State state;
    copies.data_parallel->add_state(state);
    double early = 0, late = 0;
    for (std::int64_t step = 0; step < 2000; ++step) {
      reduce_step(copies, step, rank.rank());
      const double norm = state.at("reduce/residual/left").tensor.norm().item<double>();
      if (step >= 100 && step < 300) early = std::max(early, norm);
      if (step >= 1800) late = std::max(late, norm);
    }
    EXPECT_LT(late, 1.5 * early);
  });
}

/// Without sparsity: masking clears all of the momentum in every step (plain SGD), without it this is momentum SGD.
TEST(Dgc, WithoutSparsityIsSgdOrMomentumSgd) {
  for (const bool masking : {true, false}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, {.kind = CompressKind::kDgc, .momentum = 0.9, .sparsity = 0, .masking = masking});
      at::Tensor velocity = at::zeros({24, 20}, at::kDouble), vector = at::zeros({20}, at::kDouble);
      for (std::int64_t step = 0; step < 5; ++step) {
        const Named sums = reduce_step(copies, step, rank.rank());
        velocity *= masking ? 0 : 0.9;
        vector *= 0.9;
        for (int other = 0; other < 2; ++other) {
          velocity += matrix_gradient(copies.params.at("left"), step, other);
          vector += matrix_gradient(copies.params.at("bias"), step, other);
        }
        EXPECT_LT((sums.at("left") - velocity).abs().max().item<double>(), 1e-12) << step;
        EXPECT_LT((sums.at("bias") - vector).abs().max().item<double>(), 1e-12) << step;
      }
    });
  }
}

/// What is sent is as much as was asked for, and gone from both buffers.
TEST(Dgc, SendsTheLargestAndClearsThem) {
  comm::run_ranks(1, [](comm::Rank& rank) {
    MatrixCopies copies(rank, {.kind = CompressKind::kDgc, .momentum = 0.9, .sparsity = 0.9});
    nn::State state;
    copies.data_parallel->add_state(state);
    for (std::int64_t step = 0; step < 3; ++step) {
      const at::Tensor sum = reduce_step(copies, step, 0).at("left"), sent = sum.ne(0);
      EXPECT_EQ(sent.sum().item<std::int64_t>(), 48);
      EXPECT_EQ(state.at("reduce/residual/left").tensor.view({24, 20}).masked_select(sent).abs().max().item<double>(),
                0);
      EXPECT_EQ(state.at("reduce/momentum/left").tensor.view({24, 20}).masked_select(sent).abs().max().item<double>(),
                0);
      EXPECT_LE(state.at("reduce/residual/left").tensor.abs().max().item<double>(),
                sum.masked_select(sent).abs().min().item<double>());
    }
  });
}

TEST(Csc, WithAllChunksIsDense) {
  comm::run_ranks(3, [](comm::Rank& rank) {
    MatrixCopies copies(rank, {.kind = CompressKind::kCsc, .density = 1, .chunk = 64});
    for (std::int64_t step = 0; step < 3; ++step) {
      const Named sums = reduce_step(copies, step, rank.rank());
      for (const auto& [name, sum] : sums) {
        at::Tensor exact = at::zeros_like(sum);
        for (int other = 0; other < 3; ++other) exact += matrix_gradient(copies.params.at(name), step, other);
        EXPECT_LT((sum - exact).abs().max().item<double>(), 1e-12);
      }
    }
  });
}

/// Chunks of the pool in plain words: [start, end) of the parameters one after the other, by name.
std::vector<at::Tensor> chunks_of(const at::Tensor& left, const at::Tensor& right, std::int64_t size) {
  const at::Tensor pool = at::cat({left.reshape({-1}), right.reshape({-1})});
  std::vector<at::Tensor> chunks;
  for (std::int64_t at = 0; at < pool.numel(); at += size)
    chunks.push_back(pool.narrow(0, at, std::min(size, pool.numel() - at)));
  return chunks;
}

/// Copies agree on the chunks whose norms, summed over copies, are largest; those are sums, the others stay with their
/// copy. What is copied is what travels: into the message and out of it.
TEST(Csc, SendsTheChunksOfTheLargestNorms) {
  constexpr std::int64_t kChunk = 64, kChunks = (480 + 528 + kChunk - 1) / kChunk, kSent = 5;
  comm::run_ranks(3, [](comm::Rank& rank) {
    MatrixCopies copies(rank, {.kind = CompressKind::kCsc, .density = 0.3, .chunk = kChunk});
    const CompressionReport& report = *copies.data_parallel->reducer().report();
    std::vector<at::Tensor> left(3, at::zeros({24, 20}, at::kDouble)), right(3, at::zeros({16, 33}, at::kDouble));
    std::int64_t copied = 0;
    for (std::int64_t step = 0; step < 4; ++step) {
      const Named sums = reduce_step(copies, step, rank.rank());
      std::vector<std::vector<at::Tensor>> own;
      for (std::size_t copy = 0; copy < 3; ++copy) {
        left[copy] = left[copy] + matrix_gradient(copies.params.at("left"), step, static_cast<int>(copy));
        right[copy] = right[copy] + matrix_gradient(copies.params.at("right"), step, static_cast<int>(copy));
        own.push_back(chunks_of(left[copy], right[copy], kChunk));
      }
      std::vector<std::pair<double, std::size_t>> norms;
      for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
        double norm = 0;
        for (const auto& chunks : own) norm += chunks[chunk].abs().sum().item<double>();
        norms.emplace_back(-norm, chunk);
      }
      std::ranges::sort(norms);
      std::set<std::size_t> chosen;
      for (std::size_t i = 0; i < kSent; ++i) chosen.insert(norms[i].second);
      const std::vector<at::Tensor> arrived = chunks_of(sums.at("left"), sums.at("right"), kChunk);
      std::int64_t hash = 0;  // of the set that arrived
      for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
        const bool sent = arrived[chunk].abs().max().item<double>() > 0;
        EXPECT_EQ(sent, chosen.contains(chunk)) << step << " " << chunk;
        if (!sent) continue;
        hash = hash * 31 + static_cast<std::int64_t>(chunk) + 1;
        copied += 2 * arrived[chunk].numel();
        at::Tensor sum = at::zeros_like(arrived[chunk]);
        for (const auto& chunks : own) sum += chunks[chunk];
        EXPECT_LT((arrived[chunk] - sum).abs().max().item<double>(), 1e-12);
      }
      std::int64_t largest = hash, smallest = hash;
      rank.world().all_reduce(comm::Buffer{&largest, 1, comm::DType::kI64}, comm::Reduce::kMax).wait();
      rank.world().all_reduce(comm::Buffer{&smallest, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
      EXPECT_EQ(largest, smallest) << "all copies chose the same";
      EXPECT_EQ(report.chunks, (step + 1) * kChunks);
      EXPECT_EQ(report.chunks_sent, (step + 1) * kSent);
      EXPECT_EQ(report.copied_elements, copied) << "no copy beside those";
      for (std::size_t copy = 0; copy < 3; ++copy) {  // what was sent is gone
        left[copy] = left[copy].masked_fill(sums.at("left").ne(0), 0);
        right[copy] = right[copy].masked_fill(sums.at("right").ne(0), 0);
      }
    }
  });
}

/// Weights after so many steps of Adam, in double, whose variance has the gradients of the first `frozen` steps only
/// and whose momentum goes on: the mean of what copies have, which no compression touches.
at::Tensor frozen_adam(const at::Tensor& start, const spec::OptimConfig& config, std::int64_t steps,
                       std::int64_t frozen, const std::function<at::Tensor(std::int64_t)>& gradient) {
  at::Tensor weights = start.clone(), m = at::zeros_like(start), v = at::zeros_like(start);
  for (std::int64_t step = 1; step <= steps; ++step) {
    const at::Tensor g = gradient(step - 1);
    m = config.beta1 * m + (1 - config.beta1) * g;
    if (step <= frozen) v = config.beta2 * v + (1 - config.beta2) * g * g;
    const double by_m = 1 - std::pow(config.beta1, static_cast<double>(step)),
                 by_v = 1 - std::pow(config.beta2, static_cast<double>(std::min(step, frozen)));
    weights = weights * (1 - 0.01 * config.weight_decay);
    weights = weights - 0.01 * (m / by_m) / ((v / by_v).sqrt() + spec::epsilon_of(config));
  }
  return weights;
}

/// Elements of one size are their signs and a scale, so the code is the identity: 1-bit Adam is then Adam with a frozen
/// variance. So it is for small parameters, which go dense, whatever their gradients are.
TEST(OnebitAdam, WithAnExactCodeIsAdamWithAFrozenVariance) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kSteps = 7, kFrozen = 3;
  const spec::OptimConfig config{.kind = spec::OptimizerKind::kAdamw, .weight_decay = 0.1};
  const MakeGradient even = [](const nn::Param& param, std::int64_t step, int rank) {
    if (param.placement.shape.size() < 2) return matrix_gradient(param, step, rank);
    const double size = 1 + 0.25 * static_cast<double>(step) + 0.5 * rank;
    return size * matrix_gradient(param, 99, 0).sign();
  };
  comm::run_ranks(kRanks, [&](comm::Rank& rank) {
    MatrixCopies copies(rank, {.kind = CompressKind::kOnebitAdam, .freeze_after = kFrozen});
    Named start;
    for (const nn::Param& param : copies.params) start[param.name] = param.master.clone();
    const auto optimizer = optim::make_optimizer(config, copies.params);
    copies.data_parallel->attach(*optimizer);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      copies.data_parallel->begin_micro(true);
      for (const char* name : {"bias", "right", "left"}) {
        nn::Param& param = copies.params.at(name);
        nn::add_gradient(param, even(param, step, rank.rank()));
        copies.data_parallel->added(param);
      }
      copies.data_parallel->finish();
      optimizer->step({.learning_rate = 0.01});
      copies.data_parallel->step_taken(0.01);
      copies.data_parallel->updated();
    }
    const CompressionReport& report = *copies.data_parallel->reducer().report();
    EXPECT_EQ(report.rounds, kSteps - kFrozen);
    EXPECT_LT(report.relative_error, 1e-12) << "the code is exact";
    for (const nn::Param& param : copies.params) {
      const at::Tensor expected = frozen_adam(start.at(param.name), config, kSteps, kFrozen, [&](std::int64_t step) {
        at::Tensor sum = at::zeros_like(param.master);
        for (int other = 0; other < kRanks; ++other) sum += even(param, step, other);
        return sum;
      });
      EXPECT_LT((param.master - expected).abs().max().item<double>(), 1e-12) << param.name;
      EXPECT_GT((param.master - start.at(param.name)).abs().max().item<double>(), 1e-2) << param.name;
    }
  });
}

/// A copy without tokens for a parameter (rows of an embedding) says zeros beside others' numbers.
TEST(Compressors, TakeACopyOfZeros) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(3, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, config);
      for (std::int64_t step = 0; step < 4; ++step) {
        const Named sums =
            reduce_step(copies, step, rank.rank(), true, [&](const nn::Param& param, std::int64_t number, int of) {
              const at::Tensor gradient = matrix_gradient(param, number, of);
              return of == 1 ? at::zeros_like(gradient) : gradient;
            });
        EXPECT_TRUE(std::isfinite(sums.at("left").sum().item<double>())) << spec::compress_name(config.kind);
      }
    });
  }
}

/// A NaN or an Inf of one copy reaches all of them, so that all skip the step.
TEST(Compressors, PassOnWhatIsNotFinite) {
  for (const CompressConfig& config : gradient_kinds()) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      comm::run_ranks(3, [&](comm::Rank& rank) {
        MatrixCopies copies(rank, config);
        for (std::int64_t step = 0; step < 3; ++step) reduce_step(copies, step, rank.rank());
        const Named sums = reduce_step(copies, 3, rank.rank(), /*taken=*/false,
                                       [&](const nn::Param& param, std::int64_t step, int number) {
                                         at::Tensor gradient = matrix_gradient(param, step, number);
                                         if (number == 1 && param.name == "left") gradient[7][11] = bad;
                                         return gradient;
                                       });
        EXPECT_FALSE(std::isfinite(sums.at("left").sum().item<double>()))
            << spec::compress_name(config.kind) << " " << bad;
      });
    }
  }
}

/// fp16: what is kept has no loss scale. It changes from step to step, and a step overflows; sums have its scale and
/// are otherwise those of a run without one, to the bit.
TEST(Compressors, KeepNoLossScale) {
  for (const CompressConfig& config : gradient_kinds()) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      MatrixCopies plain(rank, config), scaled(rank, config);
      double scale = 1024;
      for (std::int64_t step = 0; step < 6; ++step) {
        if (step == 3) {
          scaled.data_parallel->set_loss_scale(scale);
          const double huge = std::numeric_limits<double>::infinity();
          const Named sums = reduce_step(scaled, 77, rank.rank(), /*taken=*/false,
                                         [&](const nn::Param& param, std::int64_t number, int of) {
                                           at::Tensor gradient = matrix_gradient(param, number, of).mul_(scale);
                                           return of == 1 ? gradient.fill_(huge) : gradient;
                                         });
          EXPECT_FALSE(std::isfinite(sums.at("left").sum().item<double>())) << spec::compress_name(config.kind);
        }
        scale *= step % 2 == 0 ? 0.25 : 16;
        scaled.data_parallel->set_loss_scale(scale);
        const Named sums = reduce_step(plain, step, rank.rank());
        Named without =
            reduce_step(scaled, step, rank.rank(), true, [&](const nn::Param& param, std::int64_t number, int of) {
              return matrix_gradient(param, number, of).mul_(scale);
            });
        for (auto& [name, sum] : without) sum.div_(scale);
        expect_equal_bits(without, sums, spec::compress_name(config.kind));
      }
    });
  }
}

/// The formula is what groups count.
TEST(Compressors, SendWhatTheySay) {
  for (const CompressConfig& config : gradient_kinds()) {
    if (config.start > 0 || config.coding == spec::QsgdCoding::kElias || config.alternate) continue;
    comm::run_ranks(4, [&](comm::Rank& rank) {
      MatrixCopies copies(rank, config);
      for (comm::Group* group : copies.groups->all()) group->reset_counters();
      reduce_step(copies, 0, rank.rank());
      double counted = 0, formula = 0;
      for (const comm::Group* group : copies.groups->all()) {
        for (int op = 0; op < comm::kOps; ++op)
          counted += static_cast<double>(group->counters(static_cast<comm::Op>(op)).sent_bytes);
      }
      for (const Bucket& bucket : copies.data_parallel->buckets())
        formula += copies.data_parallel->reducer().sent_bytes(bucket, 1);
      // Lengths of messages, shares that differ by a row, buckets that end in the midst of a byte.
      EXPECT_NEAR(counted, formula, 200 + 0.05 * formula) << spec::compress_name(config.kind);
      EXPECT_NEAR(copies.data_parallel->reducer().report()->sent_bytes, counted, 200)
          << spec::compress_name(config.kind);
    });
  }
}

/// A step of local updates by hand: SGD.
void local_step(MatrixCopies& copies, optim::Optimizer& optimizer, std::int64_t step, int rank,
                const MakeGradient& gradient) {
  copies.data_parallel->begin_micro(true);
  for (const char* name : {"bias", "right", "left"}) {
    nn::Param& param = copies.params.at(name);
    nn::add_gradient(param, gradient(param, step, rank));
    copies.data_parallel->added(param);
  }
  copies.data_parallel->finish();
  optimizer.step({.learning_rate = 0.01});
  copies.data_parallel->step_taken(0.01);
  copies.data_parallel->updated();
}

double farthest(const MatrixCopies& a, const MatrixCopies& b) {
  double most = 0;
  for (const nn::Param& param : a.params)
    most = std::max(most, (param.master - b.params.find(param.name)->master).abs().max().item<double>());
  return most;
}

struct LocalRun {
  MatrixCopies copies;
  std::unique_ptr<optim::Optimizer> optimizer;
  LocalRun(comm::Rank& rank, const CompressConfig& config)
      : copies(rank, config),
        optimizer(optim::make_optimizer({.kind = spec::OptimizerKind::kSgd, .momentum = 0}, copies.params)) {
    copies.data_parallel->attach(*optimizer);
  }
  void step(std::int64_t number, int rank, const MakeGradient& gradient = matrix_gradient) {
    local_step(copies, *optimizer, number, rank, gradient);
  }
};

/// fp16: copies that step by themselves agree on what all of them skip. With a loss scale that changes and a step that
/// one copy cannot take their weights are those of a run without either, to the bit.
TEST(LocalUpdates, SkipTogetherWhatOneCopyCannotTake) {
  const std::vector<CompressConfig> kinds{
      {.kind = CompressKind::kLocalSgd, .interval = 3},
      {.kind = CompressKind::kElasticAveraging, .start = 1, .interval = 2},
      {.kind = CompressKind::kDiloco, .interval = 4, .fragments = 2, .delay = 1, .mixing = 0.5},
      {.kind = CompressKind::kZeroOneAdam, .variance_scale = 1, .local_scale = 2, .max_local_steps = 2}};
  for (const CompressConfig& config : kinds) {
    comm::run_ranks(3, [&](comm::Rank& rank) {
      MatrixCopies plain(rank, config), scaled(rank, config);
      std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
      for (MatrixCopies* copies : {&plain, &scaled}) {
        optimizers.push_back(optim::make_optimizer({.kind = spec::OptimizerKind::kAdamw}, copies->params));
        copies->data_parallel->attach(*optimizers.back());
      }
      optim::LossScale scale({.initial = 1024, .growth = 4, .backoff = 0.5, .interval = 2});
      const auto all_finite = [&](bool finite) {
        double worst = finite ? 0 : 1;
        rank.world().all_reduce(comm::Buffer{&worst, 1, comm::DType::kF64}, comm::Reduce::kMax).wait();
        return worst == 0;
      };
      const auto take = [&](MatrixCopies& copies, std::int64_t step, bool with_scale, bool overflows) {
        const double factor = with_scale ? scale.scale() : 1;
        copies.data_parallel->set_loss_scale(factor);
        copies.data_parallel->begin_micro(true);
        for (const char* name : {"bias", "right", "left"}) {
          nn::Param& param = copies.params.at(name);
          at::Tensor gradient = matrix_gradient(param, step, rank.rank()).mul_(factor);
          if (overflows && rank.rank() == 1) gradient.fill_(std::numeric_limits<double>::infinity());
          nn::add_gradient(param, gradient);
          copies.data_parallel->added(param);
        }
        copies.data_parallel->finish();
        const bool taken = optim::update(*optimizers[with_scale ? 1 : 0], {.learning_rate = 0.01,
                                                                           .loss_scale = with_scale ? &scale : nullptr,
                                                                           .all_finite = all_finite})
                               .taken;
        if (taken) copies.data_parallel->step_taken(0.01);
        if (taken) copies.data_parallel->updated();
        return taken;
      };
      for (std::int64_t step = 0; step < 9; ++step) {
        if (step == 2 || step == 5) {
          const double before = scale.scale();
          EXPECT_FALSE(take(scaled, 77, true, true)) << spec::compress_name(config.kind) << " " << step;
          EXPECT_EQ(scale.scale(), before / 2);
        }
        EXPECT_TRUE(take(plain, step, false, false));
        EXPECT_TRUE(take(scaled, step, true, false));
        EXPECT_EQ(farthest(plain, scaled), 0) << spec::compress_name(config.kind) << " " << step;
      }
      EXPECT_GE(plain.data_parallel->reducer().report()->rounds, 2);
    });
  }
}

TEST(LocalUpdates, OfEveryStepAreSynchronousSgd) {
  comm::run_ranks(3, [](comm::Rank& rank) {
    LocalRun local(rank, {.kind = CompressKind::kLocalSgd, .interval = 1}),
        synchronous(rank, {.kind = CompressKind::kLocalSgd, .start = 100}),
        outer(rank, {.kind = CompressKind::kDiloco,
                     .interval = 1,
                     .outer_learning_rate = 1,
                     .outer_momentum = 0,
                     .outer_nesterov = false});
    for (std::int64_t step = 0; step < 4; ++step) {
      for (LocalRun* run : {&local, &synchronous, &outer}) run->step(step, rank.rank());
      EXPECT_LT(farthest(local.copies, synchronous.copies), 1e-12);
      EXPECT_LT(farthest(outer.copies, synchronous.copies), 1e-12);
    }
  });
}

/// Stich 2019: on a convex task as good as synchronous steps at equal samples, as long as H <= sqrt(T / (K b)),
/// here 11.
TEST(LocalUpdates, RarelySynchronousAreAsGoodOnAConvexTask) {
  constexpr int kRanks = 3, kSteps = 400;
  comm::run_ranks(kRanks, [](comm::Rank& rank) {
    LocalRun local(rank, {.kind = CompressKind::kLocalSgd, .interval = 10}),
        synchronous(rank, {.kind = CompressKind::kLocalSgd, .start = 10'000});
    const MakeGradient noisy = [](const nn::Param& param, std::int64_t step, int from) {
      return (param.master.tanh() + matrix_gradient(param, step, from)) / kRanks;
    };
    const auto error = [](const LocalRun& run) {
      double sum = 0;
      for (const nn::Param& param : run.copies.params) sum += param.master.cosh().log().sum().item<double>();
      return sum;
    };
    const double before = error(local);
    for (std::int64_t step = 0; step < kSteps; ++step)
      for (LocalRun* run : {&local, &synchronous}) run->step(step, rank.rank(), noisy);
    EXPECT_LT(error(synchronous), before / 10);
    EXPECT_LT(error(local), 1.05 * error(synchronous));
    EXPECT_GT(farthest(local.copies, synchronous.copies), 1e-6) << "they differ in between";
  });
}

TEST(LocalUpdates, ElasticWithoutPullAreIndependent) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    LocalRun elastic(rank, {.kind = CompressKind::kElasticAveraging, .interval = 1, .elastic_rate = 0}),
        alone(rank, {.kind = CompressKind::kLocalSgd, .interval = 1000});
    for (std::int64_t step = 0; step < 4; ++step) {
      elastic.step(step, rank.rank()), alone.step(step, rank.rank());
      EXPECT_EQ(farthest(elastic.copies, alone.copies), 0);
    }
  });
}

/// The interval follows the learning rate: (0.02 / 0.01)^2 = 4.
TEST(LocalUpdates, FollowTheQuadraticRule) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    LocalRun run(rank, {.kind = CompressKind::kLocalSgd, .interval = 2, .quadratic = 0.02});
    for (std::int64_t step = 0; step < 8; ++step) run.step(step, rank.rank());
    EXPECT_EQ(run.copies.data_parallel->reducer().report()->rounds, 2);
  });
}

/// DiLoCo in plain words, weights of all copies here: theta' - theta_i, their mean, b <- 0.9 b + delta, theta' <-
/// theta'
/// - 0.7 (delta + 0.9 b).
TEST(StreamingDiloco, WithOneFragmentAndNoDelayIsDiloco) {
  constexpr int kCopies = 2;
  comm::run_ranks(kCopies, [](comm::Rank& rank) {
    LocalRun streaming(rank, {.kind = CompressKind::kDiloco, .interval = 2, .fragments = 1, .delay = 0, .mixing = 0});
    Named common, momentum;
    std::vector<Named> local(kCopies);
    for (const nn::Param& param : streaming.copies.params) {
      common[param.name] = param.master.clone();
      momentum[param.name] = at::zeros_like(param.master);
      for (Named& weights : local) weights[param.name] = param.master.clone();
    }
    for (std::int64_t step = 0; step < 6; ++step) {
      streaming.step(step, rank.rank());
      for (const nn::Param& param : streaming.copies.params) {
        // Gradients are parts of a mean over all copies, and a copy's own mean is so many times larger.
        for (int copy = 0; copy < kCopies; ++copy)
          local[static_cast<std::size_t>(copy)][param.name] -= 0.01 * kCopies * matrix_gradient(param, step, copy);
        if (step % 2 == 1) {
          at::Tensor delta = at::zeros_like(param.master);
          for (const Named& weights : local) delta += (common[param.name] - weights.at(param.name)) / kCopies;
          momentum[param.name] = 0.9 * momentum[param.name] + delta;
          common[param.name] = common[param.name] - 0.7 * (delta + 0.9 * momentum[param.name]);
          for (Named& weights : local) weights[param.name] = common[param.name].clone();
        }
        const at::Tensor& expected = local[static_cast<std::size_t>(rank.rank())][param.name];
        EXPECT_LT((param.master - expected).abs().max().item<double>(), 1e-13) << param.name << " " << step;
      }
    }
    EXPECT_EQ(streaming.copies.data_parallel->reducer().report()->rounds, 3);
  });
}

/// What rounding leaves out comes later: after many rounds the sum of what was applied is the sum of what was found.
TEST(Diloco, RoundedPseudoGradientsStayNearExactOnes) {
  for (const auto type : {spec::DeltaDtype::kFp16, spec::DeltaDtype::kInt8}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      LocalRun exact(rank,
                     {.kind = CompressKind::kDiloco, .interval = 2, .outer_momentum = 0, .outer_nesterov = false}),
          rounded(rank, {.kind = CompressKind::kDiloco,
                         .interval = 2,
                         .outer_momentum = 0,
                         .outer_nesterov = false,
                         .delta_dtype = type});
      for (std::int64_t step = 0; step < 40; ++step) exact.step(step, rank.rank()), rounded.step(step, rank.rank());
      EXPECT_LT(farthest(exact.copies, rounded.copies), type == spec::DeltaDtype::kFp16 ? 1e-4 : 1e-3);
      EXPECT_LT(
          rounded.copies.data_parallel->reducer().report()->sent_bytes,
          exact.copies.data_parallel->reducer().report()->sent_bytes / (type == spec::DeltaDtype::kFp16 ? 3.9 : 7));
    });
  }
}

/// A copy whose number was not saved joins in the midst of an interval: it begins with the weights of the last round,
/// and counts in the next mean by the steps that it has taken.
TEST(Diloco, ACopyThatJoinsCountsByItsSteps) {
  comm::run_ranks(3, [](comm::Rank& rank) {
    LocalRun run(rank, {.kind = CompressKind::kDiloco,
                        .interval = 4,
                        .outer_learning_rate = 1,
                        .outer_momentum = 0,
                        .outer_nesterov = false});
    const at::Tensor start = run.copies.params.at("left").master.clone();
    for (std::int64_t step = 0; step < 2; ++step) run.step(step, rank.rank());
    nn::State state;
    run.copies.data_parallel->add_state(state);
    if (rank.rank() == 2) at::Tensor(state.at("reduce/local-steps").tensor).zero_();  // as a checkpoint of two copies
    run.copies.data_parallel->loaded();
    if (rank.rank() == 2) {
      EXPECT_TRUE(at::equal(run.copies.params.at("left").master, start));
    }
    for (std::int64_t step = 2; step < 4; ++step) run.step(step, rank.rank());
    // Local gradients are multiplied by the number of copies: they are parts of a mean over all.
    at::Tensor expected = at::zeros_like(start);
    for (int copy = 0; copy < 3; ++copy) {
      const std::int64_t first = copy == 2 ? 2 : 0;
      at::Tensor weights = start.clone();
      for (std::int64_t step = first; step < 4; ++step)
        weights -= 0.03 * matrix_gradient(run.copies.params.at("left"), step, copy);
      expected += weights * (static_cast<double>(4 - first) / 10);
    }
    EXPECT_LT((run.copies.params.at("left").master - expected).abs().max().item<double>(), 1e-12);
  });
}

/// A copy that leaves in the midst of an interval is missing in the next mean, which is over the rest: what three had
/// saved is read by two.
TEST(Diloco, ACopyThatLeavesIsMissingInTheMean) {
  const CompressConfig config{.kind = CompressKind::kDiloco,
                              .interval = 4,
                              .outer_learning_rate = 1,
                              .outer_momentum = 0,
                              .outer_nesterov = false};
  std::vector<Named> saved(3);
  std::vector<std::map<std::string, nlohmann::ordered_json>> values(3);
  at::Tensor start;
  comm::run_ranks(3, [&](comm::Rank& rank) {
    LocalRun run(rank, config);
    if (rank.rank() == 0) start = run.copies.params.at("left").master.clone();
    for (std::int64_t step = 0; step < 2; ++step) run.step(step, rank.rank());
    nn::State state;
    run.copies.data_parallel->add_state(state);
    const auto me = static_cast<std::size_t>(rank.rank());
    for (const nn::StateTensor& entry : state.tensors()) saved[me][entry.name] = entry.tensor.clone();
    for (const nn::StateValue& entry : state.values()) values[me][entry.name] = entry.get();
  });
  comm::run_ranks(2, [&](comm::Rank& rank) {
    LocalRun run(rank, config);
    nn::State state;
    run.copies.data_parallel->add_state(state);
    const auto me = static_cast<std::size_t>(rank.rank());
    for (const nn::StateTensor& entry : state.tensors()) at::Tensor(entry.tensor).copy_(saved[me].at(entry.name));
    for (const nn::StateValue& entry : state.values()) entry.set(values[me].at(entry.name));
    run.copies.data_parallel->loaded();
    for (std::int64_t step = 2; step < 4; ++step) run.step(step, rank.rank());
    at::Tensor expected = at::zeros_like(start);
    for (int copy = 0; copy < 2; ++copy) {
      at::Tensor weights = start.clone();
      for (std::int64_t step = 0; step < 4; ++step)
        weights -= (step < 2 ? 0.03 : 0.02) * matrix_gradient(run.copies.params.at("left"), step, copy);
      expected += weights / 2;
    }
    EXPECT_LT((run.copies.params.at("left").master - expected).abs().max().item<double>(), 1e-12);
  });
}

/// What `--explain` prints is the order in which it happens: what a method clips, and what it does not, included.
TEST(Compressors, TellTheOrderOfAStep) {
  const auto told = [](const CompressConfig& config) {
    std::string text;
    comm::run_ranks(2, [&](comm::Rank& rank) {
      const MatrixCopies copies(rank, config);
      if (rank.rank() == 0) text = copies.data_parallel->reducer().description();
    });
    return text;
  };
  const auto expect_order = [](const std::string& text, const std::vector<const char*>& parts) {
    std::size_t at = 0;
    for (const char* part : parts) {
      const std::size_t found = text.find(part, at);
      ASSERT_NE(found, std::string::npos) << part << " after " << text.substr(0, at) << " in " << text;
      at = found + 1;
    }
  };
  for (const CompressConfig& config : gradient_kinds()) {
    CompressConfig clipped = config;
    clipped.local_clip = true;
    const std::string text = told(clipped);
    const bool has_momentum = config.momentum.has_value(), has_residual = config.kind != CompressKind::kQsgd;
    expect_order(text, {"mean-scaled gradient", "local clip to 0.7071", has_momentum ? "momentum 0.5" : "->",
                        has_residual ? "+ residual" : "->", "global norm, clip", "optimizer"});
  }
  const std::string onebit = told({.kind = CompressKind::kOnebitAdam, .freeze_after = 3});
  expect_order(onebit, {"mean-scaled gradient", "momentum + residual", "signs and a scale", "+ residual", "all-gather",
                        "nothing clipped", "until step 3", "global norm, clip"});
  const std::string rare = told({.kind = CompressKind::kZeroOneAdam});
  expect_order(rare, {"a copy's norm, clip", "step of Adam", "sum of steps + residual", "signs and a scale", "weights",
                      "variance steps", "global norm, clip"});
  const std::string diloco = told({.kind = CompressKind::kDiloco, .delta_dtype = spec::DeltaDtype::kInt8});
  expect_order(diloco, {"a copy's own tokens", "a copy's norm, clip", "optimizer",
                        "pseudo-gradient + residual, rounded", "mean", "outer SGD 0.7 / 0.9 (Nesterov)"});
}

/// In the midst of an interval, with a fragment on its way.
TEST(LocalUpdates, GoOnFromTheirStateToTheBit) {
  const std::vector<CompressConfig> kinds{
      {.kind = CompressKind::kLocalSgd, .interval = 3},
      {.kind = CompressKind::kElasticAveraging, .interval = 2},
      {.kind = CompressKind::kDiloco, .interval = 4, .fragments = 2, .delay = 2, .mixing = 0.5},
      {.kind = CompressKind::kDiloco, .interval = 2, .delta_dtype = spec::DeltaDtype::kInt8}};
  for (const CompressConfig& config : kinds) {
    for (const std::int64_t pause : {4, 5}) {
      comm::run_ranks(2, [&](comm::Rank& rank) {
        LocalRun through(rank, config), resumed(rank, config);
        for (std::int64_t step = 0; step < pause; ++step) through.step(step, rank.rank());
        nn::State from, to;
        through.copies.data_parallel->add_state(from);
        resumed.copies.data_parallel->add_state(to);
        for (const nn::StateTensor& entry : to.tensors()) at::Tensor(entry.tensor).copy_(from.at(entry.name).tensor);
        for (const nn::StateValue& entry : to.values()) entry.set(from.value(entry.name).get());
        resumed.copies.data_parallel->loaded();
        EXPECT_EQ(farthest(through.copies, resumed.copies), 0);
        for (std::int64_t step = pause; step < 10; ++step) {
          through.step(step, rank.rank()), resumed.step(step, rank.rank());
          EXPECT_EQ(farthest(through.copies, resumed.copies), 0) << spec::compress_name(config.kind) << " " << step;
        }
      });
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
