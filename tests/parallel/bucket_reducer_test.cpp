// Reducers behind one interface: the dense one, one that keeps residuals, and one that sums nothing at most steps.
#include "trireme/parallel/bucket_reducer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/parallel/support.h"
#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/coverage.h"
#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/parallel/residuals.h"

namespace trireme::parallel {
namespace {

/// Rounds what is sent to bf16 and adds what that left out to the next gradient; the first two steps go dense.
class RoundingFeedback final : public BucketReducer {
 public:
  static constexpr std::int64_t kStart = 2;
  explicit RoundingFeedback(const ReducerParts& parts)
      : dense_(make_dense_reducer(parts)), residuals_(parts.plan, parts.groups, parts.options) {}

  std::string description() const override { return "+ residual, rounded to bf16, " + dense_->description(); }
  double sent_bytes(const Bucket& bucket, int launches) const override { return dense_->sent_bytes(bucket, launches); }
  void begin_step(std::int64_t step) override { rounds_ = step >= kStart; }
  void launch(Bucket& bucket) override {
    if (rounds_) {
      const at::Tensor complete = bucket.sending + residuals_.kept(bucket);
      bucket.sending = complete.to(at::kBFloat16).to(complete.scalar_type());
      residuals_.next(bucket).copy_(complete - bucket.sending);
    }
    dense_->launch(bucket);
  }
  void settle(Bucket& bucket) override { dense_->settle(bucket); }
  void finish(std::span<Bucket> buckets) override { dense_->finish(buckets); }
  void step_taken(const TakenStep&) override {
    if (rounds_) residuals_.keep();
  }
  bool has_state() const override { return true; }
  void add_state(nn::State& state) override { residuals_.add_state(state, "reduce/residual"); }
  std::int64_t bytes() const override { return residuals_.bytes(); }

 private:
  std::unique_ptr<BucketReducer> dense_;
  Residuals residuals_;
  bool rounds_ = false;
};

std::unique_ptr<BucketReducer> make_rounding(const ReducerParts& parts) {
  return std::make_unique<RoundingFeedback>(parts);
}

/// Local SGD: ranks step by their own gradients, and take the mean of their weights every few steps.
template <int kEvery>
class LocalSteps final : public BucketReducer {
 public:
  explicit LocalSteps(const ReducerParts& parts) : plan_(parts.plan) {}

  std::string description() const override { return fmt::format("mean of weights every {} steps", kEvery); }
  double sent_bytes(const Bucket&, int) const override { return 0; }
  void begin_step(std::int64_t step) override { step_ = step; }
  /// The loss is divided by the tokens of all ranks; a rank by itself has fewer.
  void launch(Bucket& bucket) override { bucket.arriving = bucket.sending * (bucket.group ? bucket.group->size() : 1); }
  void settle(Bucket&) override {}
  void finish(std::span<Bucket>) override {}
  void step_taken(const TakenStep&) override {
    if ((step_ + 1) % kEvery != 0) return;
    for (const Bucket& bucket : plan_.buckets) {
      for (const BucketMember& member : bucket.members) {
        bucket.group->all_reduce(device::to_buffer(member.param->master), comm::Reduce::kAvg).wait();
        nn::publish(*member.param);
        ++member.param->version;
      }
    }
  }
  bool has_state() const override { return true; }

 private:
  BucketPlan& plan_;
  std::int64_t step_ = 0;
};

template <int kEvery>
std::unique_ptr<BucketReducer> make_local(const ReducerParts& parts) {
  return std::make_unique<LocalSteps<kEvery>>(parts);
}

/// Gradients that bf16 does not hold, other ones in each step and on each rank.
at::Tensor gradient_of(int step, int rank, const std::string& name) {
  return at::linspace(0.1 * (rank + 1), 1.7 * (step + 1) + name[0], 100);
}

void backward(Copies& copies, int step, int rank) {
  copies.data_parallel->begin_micro(true);
  for (const char* name : {"d", "c", "b", "a"}) {
    nn::Param& param = copies.params.at(name);
    nn::add_gradient(param, gradient_of(step, rank, name));
    copies.data_parallel->added(param);
  }
  copies.data_parallel->finish();
}

using Gradients = std::vector<std::pair<std::string, at::Tensor>>;
/// A step, taken or not; the sums that this rank owns.
Gradients step(Copies& copies, int number, int rank, bool taken = true) {
  backward(copies, number, rank);
  Gradients sums;
  for (const nn::Param& param : copies.data_parallel->owned()) sums.emplace_back(param.name, param.gradient.clone());
  if (taken) copies.data_parallel->step_taken();
  nn::zero_grad(copies.data_parallel->owned());
  return sums;
}

void expect_same_bits(const Gradients& a, const Gradients& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << where << " " << a[i].first;
  }
}

/// What a checkpoint takes over: bits of tensors, and values as text.
struct Saved {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> values;
  explicit Saved(DataParallel& data_parallel) {
    nn::State state;
    data_parallel.add_state(state);
    for (const nn::StateTensor& entry : state.tensors()) tensors[entry.name] = entry.tensor.clone();
    for (const nn::StateValue& entry : state.values()) values[entry.name] = entry.get().dump();
  }
  void restore(DataParallel& data_parallel) const {
    nn::State state;
    data_parallel.add_state(state);
    ASSERT_EQ(state.tensors().size(), tensors.size());
    for (const nn::StateTensor& entry : state.tensors()) at::Tensor(entry.tensor).copy_(tensors.at(entry.name));
    for (const nn::StateValue& entry : state.values()) entry.set(nlohmann::ordered_json::parse(values.at(entry.name)));
  }
};

TEST(Reducers, AreFoundByName) {
  EXPECT_EQ(reducer_named("dense"), &make_dense_reducer);
  for (const ReducerKind& kind : reducer_kinds()) EXPECT_EQ(reducer_named(kind.name), kind.make);
  try {
    reducer_named("dens");
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("did you mean \"dense\""));
  }
}

/// The formula is what groups count.
TEST(DenseReducer, SendsWhatItSays) {
  struct Case {
    int zero = 0;
    layout::AxisNames shard = {};
    bool bf16 = false;
  };
  for (const Case& one : std::vector<Case>{{0}, {1}, {2}, {1, {"dp%2"}}, {2, {"dp%2"}}, {0, {}, true}, {1, {}, true}}) {
    comm::run_ranks(4, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = one.zero, .shard = one.shard, .bucket_bytes = 900, .reduce_bf16 = one.bf16});
      for (comm::Group* group : copies.groups->all()) group->reset_counters();
      copies.micro(false, 1);
      copies.micro(true, 1);
      copies.data_parallel->finish();
      double sent = 0, formula = 0;
      for (const comm::Group* group : copies.groups->all()) {
        for (int op = 0; op < comm::kOps; ++op) {
          sent += static_cast<double>(group->counters(static_cast<comm::Op>(op)).sent_bytes);
        }
      }
      for (const Bucket& bucket : copies.data_parallel->buckets()) {
        formula += copies.data_parallel->reducer().sent_bytes(bucket, one.zero >= 2 ? 2 : 1);
      }
      EXPECT_EQ(sent, formula) << one.zero << " " << one.bf16;
    });
  }
}

TEST(DenseReducer, KeepsNothing) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    Copies copies(rank, {});
    nn::State state;
    copies.data_parallel->add_state(state);
    EXPECT_TRUE(state.tensors().empty());
    EXPECT_TRUE(state.values().empty());
    EXPECT_EQ(copies.data_parallel->bytes().reducer, 0);
  });
}

/// What arrived and what is kept are together what was computed.
TEST(Residuals, LoseNothing) {
  for (const int zero : {0, 1}) {
    comm::run_ranks(2, [&](comm::Rank& rank) {
      Copies copies(rank, {.zero = zero, .reducer = make_rounding});
      EXPECT_EQ(copies.data_parallel->bytes().reducer, copies.data_parallel->buckets()[0].elements * 2 * 4);
      at::Tensor arrived = at::zeros({100}), computed = at::zeros({100});
      for (int number = 0; number < 6; ++number) {
        for (const auto& [name, sum] : step(copies, number, rank.rank())) {
          if (name != "c") continue;
          // Each rank has its part of the sum, and adds what lies there.
          const nn::Param& owned = copies.data_parallel->owned().at(name);
          for (std::int64_t at = 0; at < sum.numel(); ++at) {
            const auto element = layout::global_index(owned.placement, at);
            if (element) arrived.data_ptr<float>()[*element] += sum.data_ptr<float>()[at];
          }
        }
        for (int other = 0; other < 2; ++other) computed += gradient_of(number, other, "c");
      }
      if (zero > 0) rank.world().all_reduce(device::to_buffer(arrived), comm::Reduce::kSum).wait();
      const Saved saved(*copies.data_parallel);
      at::Tensor kept = saved.tensors.at("reduce/residual/c").clone();
      EXPECT_GT(kept.abs().max().item<double>(), 0);
      rank.world().all_reduce(device::to_buffer(kept), comm::Reduce::kSum).wait();
      EXPECT_LT((arrived + kept - computed).abs().max().item<double>(), 1e-2) << zero;
      EXPECT_GT((arrived - computed).abs().max().item<double>(), 1e-2) << "rounding can be seen";
    });
  }
}

/// A step that is not taken might never have been.
TEST(Residuals, AreNotTouchedByStepsThatAreSkipped) {
  comm::run_ranks(2, [](comm::Rank& rank) {
    Copies copies(rank, {.reducer = make_rounding}), other(rank, {.reducer = make_rounding});
    for (int number = 0; number < 6; ++number) {
      const Gradients sums = step(copies, number, rank.rank());
      if (number == 4) step(other, 17, rank.rank(), /*taken=*/false);
      expect_same_bits(step(other, number, rank.rank()), sums, fmt::format("step {}", number));
    }
  });
}

/// From a checkpoint a run goes on to the bit, with other buckets too: what is kept has the names of parameters.
TEST(Residuals, SurviveCheckpoints) {
  for (const int zero : {0, 1}) {
    for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{900}}) {
      for (const int pause : {1, 3}) {  // before rounding begins, and after
        comm::run_ranks(4, [&](comm::Rank& rank) {
          Copies through(rank, {.zero = zero, .bucket_bytes = 0, .reducer = make_rounding});
          std::unique_ptr<Saved> saved;
          std::vector<Gradients> sums;
          for (int number = 0; number < 6; ++number) {
            if (number == pause) saved = std::make_unique<Saved>(*through.data_parallel);
            sums.push_back(step(through, number, rank.rank()));
          }
          Copies resumed(rank, {.zero = zero, .bucket_bytes = bytes, .reducer = make_rounding});
          saved->restore(*resumed.data_parallel);
          for (int number = pause; number < 6; ++number) {
            const Gradients again = step(resumed, number, rank.rank());
            if (zero > 0 && bytes != 0) continue;  // other buckets share out other parts
            expect_same_bits(again, sums[static_cast<std::size_t>(number)], fmt::format("step {}", number));
          }
          const Saved first(*through.data_parallel), second(*resumed.data_parallel);
          for (const auto& [name, tensor] : first.tensors) EXPECT_TRUE(at::equal(tensor, second.tensors.at(name)));
          EXPECT_EQ(first.values, second.values);
        });
      }
    }
  }
}

/// Every rank keeps its own: in a checkpoint they stand side by side, each element once.
TEST(Residuals, OfAllRanksMakeOneTensor) {
  std::mutex mutex;
  std::map<std::string, std::vector<layout::Placement>> all;
  comm::run_ranks(3, [&](comm::Rank& rank) {
    Copies copies(rank, {.zero = 1, .reducer = make_rounding});
    nn::State state;
    copies.data_parallel->add_state(state);
    const std::lock_guard lock(mutex);
    for (const nn::StateTensor& entry : state.tensors()) {
      all[entry.name].resize(3);
      all[entry.name][static_cast<std::size_t>(rank.rank())] = entry.placement;
    }
  });
  EXPECT_EQ(all.size(), 4U);
  for (const auto& [name, placements] : all) {
    EXPECT_EQ(layout::find_problem(layout::Mesh({{"dp", 3}}), placements), "");
    EXPECT_THAT(placements[0].shape, testing::ElementsAre(3, 100));
  }
}

void train(Copies& copies, optim::Optimizer& optimizer, int number, int rank) {
  backward(copies, number, rank);
  optim::update(optimizer, {.learning_rate = 0.01, .across = copies.data_parallel->across()});
  copies.data_parallel->step_taken();
  copies.data_parallel->updated();
}

/// With plain SGD the mean of weights that each took one step is the step by the mean gradient.
TEST(PeriodicReducer, OfEveryStepIsTheDenseOne) {
  const spec::OptimConfig sgd{.kind = spec::OptimizerKind::kSgd, .momentum = 0};
  comm::run_ranks(4, [&](comm::Rank& rank) {
    Copies dense(rank, {.precision = nn::Precision::kFp64}),
        local(rank, {.precision = nn::Precision::kFp64, .reducer = make_local<1>});
    const auto one = optim::make_optimizer(sgd, dense.params), two = optim::make_optimizer(sgd, local.params);
    for (int number = 0; number < 4; ++number) {
      train(dense, *one, number, rank.rank());
      train(local, *two, number, rank.rank());
      for (const nn::Param& param : dense.params) {
        const double off = (param.value - local.params.at(param.name).value).abs().max().item<double>();
        EXPECT_LT(off, 1e-12) << param.name;
      }
    }
  });
}

/// In between ranks say nothing to each other, and part.
TEST(PeriodicReducer, MeetsEveryFewSteps) {
  const spec::OptimConfig sgd{.kind = spec::OptimizerKind::kSgd, .momentum = 0};
  comm::run_ranks(2, [&](comm::Rank& rank) {
    Copies copies(rank, {.reducer = make_local<3>});
    const auto optimizer = optim::make_optimizer(sgd, copies.params);
    for (int number = 0; number < 6; ++number) {
      const std::uint64_t before = copies.group().calls();
      train(copies, *optimizer, number, rank.rank());
      const bool met = number % 3 == 2;
      EXPECT_EQ(copies.group().calls() - before, met ? 4U : 0U) << number;
      at::Tensor spread = copies.params.at("b").value.clone();
      rank.world().all_reduce(device::to_buffer(spread), comm::Reduce::kMax).wait();
      spread = spread - copies.params.at("b").value;
      const double most = spread.abs().max().item<double>();
      if (met) {
        EXPECT_EQ(most, 0) << number;
      } else if (rank.rank() == 1) {  // whose gradients are larger, and weights smaller
        EXPECT_GT(most, 0) << number;
      }
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
