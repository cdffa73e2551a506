// Delayed scales: the rule on the CPU; what rounds with them needs a GPU (tests/gpu).
#include "trireme/nn/fp8.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/rank.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/nn/state.h"

namespace trireme::nn {
namespace {

using Row = Fp8History::Row;

/// Two matrices that are followed, and one that is not.
struct HistoryCase {
  Params params;
  HistoryCase() {
    for (const char* name : {"a", "plain", "b"}) {
      Param& param = params.add(name, {16, 16}, {}, true);
      if (param.name != "plain") param.gemm = spec::GemmPrecision::kFp8Delayed;
    }
  }
};

float* row_of(Params& params, const char* name, Row row) {
  Param& param = params.at(name);
  return param.scales.mutable_data_ptr<float>() + row * param.scales.size(1);
}
float scale_of(Params& params, const char* name, Row row) { return row_of(params, name, row)[1]; }
/// What rounding would note.
void note(Params& params, const char* name, Row row, float largest) {
  float* now = row_of(params, name, row);
  now[0] = std::max(now[0], largest);
}

TEST(Fp8History, FollowsTheMatricesThatAreRoundedSo) {
  HistoryCase c;
  const Fp8History history(c.params, 4, 0, at::kCPU);
  EXPECT_TRUE(c.params.at("a").scales.defined());
  EXPECT_FALSE(c.params.at("plain").scales.defined());
  EXPECT_EQ(history.table().size(0), 6);
  EXPECT_FALSE(c.params.at("a").scales_known);
}

TEST(Fp8History, AScaleIsTheLargestOfTheLastStepsOverTheFormats) {
  HistoryCase c;
  Fp8History history(c.params, 3, 0, at::kCPU);
  const float largest[] = {2, 5, 1, 0.5F, 0.25F, 8};
  for (std::size_t step = 0; step < std::size(largest); ++step) {
    note(c.params, "a", Row::kActivation, largest[step] / 2);  // two micros
    note(c.params, "a", Row::kActivation, largest[step]);
    note(c.params, "a", Row::kGradient, largest[step]);
    history.advance();
    float most = 0;
    for (std::size_t i = step < 2 ? 0 : step - 2; i <= step; ++i) most = std::max(most, largest[i]);
    EXPECT_FLOAT_EQ(scale_of(c.params, "a", Row::kActivation), most / 448) << step;
    EXPECT_FLOAT_EQ(scale_of(c.params, "a", Row::kGradient), most / 57344) << step;
    EXPECT_TRUE(c.params.at("a").scales_known);
  }
  EXPECT_EQ(scale_of(c.params, "b", Row::kWeight), 1);  // nothing was ever seen of it
}

TEST(Fp8History, TheMarginLeavesRoom) {
  HistoryCase c;
  Fp8History history(c.params, 2, 3, at::kCPU);
  note(c.params, "b", Row::kWeight, 448);
  history.advance();
  EXPECT_FLOAT_EQ(scale_of(c.params, "b", Row::kWeight), 8);
}

TEST(Fp8History, NumbersThatAreNoneDoNotCount) {
  HistoryCase c;
  Fp8History history(c.params, 2, 0, at::kCPU);
  note(c.params, "a", Row::kWeight, 448);
  history.advance();
  for (const float non_finite :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.0F}) {
    row_of(c.params, "a", Row::kWeight)[0] = non_finite;
    history.advance();
    EXPECT_FLOAT_EQ(scale_of(c.params, "a", Row::kWeight), 1);
    EXPECT_EQ(row_of(c.params, "a", Row::kWeight)[0], 0);
  }
}

/// Each rank sees some of a step's numbers: together they have the table of one that saw all.
TEST(Fp8History, RanksThatAgreeHaveTheTableOfOne) {
  constexpr int kRanks = 3;
  const auto seen = [](int rank, int step) { return static_cast<float>(1 + (5 * rank + 3 * step) % 7); };
  HistoryCase one;
  Fp8History alone(one.params, 2, 1, at::kCPU);
  for (int step = 0; step < 5; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      note(one.params, "a", Row::kGradient, seen(rank, step));
      if (rank == step % kRanks) note(one.params, "b", Row::kActivation, seen(rank, step));
    }
    alone.advance();
  }
  comm::run_ranks(kRanks, [&](comm::Rank& rank) {
    HistoryCase mine;
    Fp8History history(mine.params, 2, 1, at::kCPU);
    for (int step = 0; step < 5; ++step) {
      note(mine.params, "a", Row::kGradient, seen(rank.rank(), step));
      // The others had no rows for it.
      if (rank.rank() == step % kRanks) note(mine.params, "b", Row::kActivation, seen(rank.rank(), step));
      history.advance([&](at::Tensor& largest) {
        EXPECT_EQ(largest.sizes(), at::IntArrayRef({6}));
        rank.world().all_reduce(device::to_buffer(largest), comm::Reduce::kMax).wait();
      });
    }
    EXPECT_TRUE(history.table().equal(alone.table())) << rank.rank();
  });
}

TEST(Fp8History, OneRanksSickNumberDoesNotCountOnAny) {
  HistoryCase c;
  Fp8History history(c.params, 2, 0, at::kCPU);
  note(c.params, "a", Row::kWeight, 448);
  history.advance();
  note(c.params, "a", Row::kWeight, 2 * 448);
  history.advance([](at::Tensor& largest) { largest[Row::kWeight] = std::numeric_limits<float>::infinity(); });
  EXPECT_FLOAT_EQ(scale_of(c.params, "a", Row::kWeight), 1);
  EXPECT_EQ(row_of(c.params, "a", Row::kWeight)[0], 0);
}

TEST(Fp8History, NothingFollowedIsNothingToAgreeOn) {
  Params params;
  params.add("plain", {16, 16}, {}, true);
  Fp8History history(params, 2, 0, at::kCPU);
  history.advance([](at::Tensor&) { FAIL() << "asked about no tensor"; });
}

TEST(Fp8History, ComesBackFromACheckpoint) {
  HistoryCase c, other;
  Fp8History history(c.params, 3, 1, at::kCPU), again(other.params, 3, 1, at::kCPU);
  State state, read;
  history.add_state(state);
  again.add_state(read);
  for (const float largest : {1.0F, 7.0F, 0.3F, 0.1F}) {
    note(c.params, "a", Row::kWeight, largest);
    note(c.params, "b", Row::kGradient, 2 * largest);
    history.advance();
  }
  const auto text = state.value("fp8/scales").get().dump();
  read.value("fp8/scales").set(nlohmann::ordered_json::parse(text));
  EXPECT_TRUE(again.table().equal(history.table()));
  EXPECT_TRUE(other.params.at("b").scales_known);
  // And goes on in the same place of the ring.
  note(c.params, "a", Row::kWeight, 0.2F);
  note(other.params, "a", Row::kWeight, 0.2F);
  history.advance();
  again.advance();
  EXPECT_TRUE(again.table().equal(history.table()));

  Fp8History longer(other.params, 5, 1, at::kCPU);
  State wrong;
  longer.add_state(wrong);
  try {
    wrong.value("fp8/scales").set(nlohmann::ordered_json::parse(text));
    FAIL() << "scales of another history";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.block(), testing::HasSubstr("precision.fp8_history = 3"));
  }
}

}  // namespace
}  // namespace trireme::nn
