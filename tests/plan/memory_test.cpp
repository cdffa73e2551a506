#include "trireme/plan/memory.h"

#include <gtest/gtest.h>

#include "trireme/plan/published.h"
#include "trireme/plan/search.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/memory.h"

namespace trireme::plan {
namespace {

Job gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  Job job;
  job.shape = shape_of({.num_layers = layers, .hidden_size = hidden, .num_heads = heads, .vocab_size = 51200});
  job.arithmetic = cost::Arithmetic::kFp16;
  job.attention = AttentionKind::kUnfused;
  return job;
}

/// Korthikanti et al. 2022, table 2: bytes of one layer for s = 2048, b = 1, t = 8.
TEST(Activations, AreTheClosedFormsOfKorthikanti) {
  struct Row {
    std::int64_t hidden_size, num_heads;
    double none, tensor, sequence, selective, full;
  };
  for (const Row& row : {Row{6144, 64, 1769996288, 331350016, 221249536, 53477376, 25165824},
                         Row{12288, 96, 2868903936, 578813952, 358612992, 106954752, 50331648},
                         Row{20480, 128, 4110417920, 880803840, 513802240, 178257920, 83886080},
                         Row{25600, 160, 5138022400, 1101004800, 642252800, 222822400, 104857600}}) {
    const Job job = gpt(1, row.hidden_size, row.num_heads);
    EXPECT_DOUBLE_EQ(layer_activation_bytes(job, {.tp = 1}), row.none);
    EXPECT_DOUBLE_EQ(layer_activation_bytes(job, {.tp = 8}), row.tensor);
    EXPECT_DOUBLE_EQ(layer_activation_bytes(job, {.tp = 8, .sequence_parallel = true}), row.sequence);
    EXPECT_DOUBLE_EQ(
        layer_activation_bytes(job, {.tp = 8, .sequence_parallel = true, .recompute = Recompute::kSelective}),
        row.selective);
    EXPECT_DOUBLE_EQ(layer_activation_bytes(job, {.tp = 8, .recompute = Recompute::kFull}), row.full);
  }
}

TEST(Activations, OfWholeModelsAreThePublishedFigures) {
  for (const PublishedSource& source : load_published()) {
    for (const PublishedRun& run : source.file.activations) {
      const Job job = job_of(run);
      Layout layout{.tp = *run.tp, .pp = *run.pp, .virtual_stages = run.virtual_stages.value_or(1)};
      layout.micro_batch_size = *run.micro_batch_size;
      layout.schedule = layout.virtual_stages > 1 ? "interleaved" : "1f1b";
      const double layers = static_cast<double>(*run.num_layers) / layout.pp;
      const double held = in_flight(layout, micros_of(job, layout), 0);
      const double gib = layers * held / 1073741824.0;
      EXPECT_NEAR(layer_activation_bytes(job, layout) * gib, *run.tensor_parallel_gib, 0.01 * *run.tensor_parallel_gib);
      layout.sequence_parallel = true;
      layout.recompute = Recompute::kSelective;
      EXPECT_NEAR(layer_activation_bytes(job, layout) * gib, *run.selective_gib, 0.01 * *run.selective_gib);
      const double weights = count_weights(job).layer * layers / layout.tp;
      EXPECT_NEAR(model_states(weights, 1, 0, {}, job.arithmetic).total() / 1073741824.0, *run.states_gib,
                  0.005 * *run.states_gib);
    }
  }
}

/// Rajbhandari et al. 2019, table 1, in units of 10^9 bytes.
TEST(ModelStates, AreZerosTable) {
  const auto bytes = [](double billions, int ranks, int stage) {
    return model_states(billions * 1e9, ranks, stage, {.gradient_bytes = 2}, cost::Arithmetic::kFp16).total() / 1e9;
  };
  EXPECT_DOUBLE_EQ(bytes(7.5, 64, 0), 120);
  EXPECT_NEAR(bytes(7.5, 64, 1), 31.41, 0.005);
  EXPECT_NEAR(bytes(7.5, 64, 2), 16.64, 0.005);
  EXPECT_NEAR(bytes(7.5, 64, 3), 1.875, 0.0005);
  EXPECT_NEAR(bytes(1000, 1024, 1), 4011.72, 0.005);
  EXPECT_NEAR(bytes(1000, 1024, 3), 15.625, 0.0005);
}

/// 18 bytes a parameter, and what narrower gradients, moments and no masters take off.
TEST(ModelStates, FollowTheirTypes) {
  const auto bytes = [](const StateTypes& types, cost::Arithmetic arithmetic = cost::Arithmetic::kBf16) {
    return model_states(1, 1, 0, types, arithmetic).total();
  };
  EXPECT_EQ(bytes({}), 18);
  EXPECT_EQ(bytes({.gradient_bytes = 2}), 16);
  EXPECT_EQ(bytes({.gradient_bytes = 2, .moment_bytes = 2, .master_weights = false}), 8);
  EXPECT_EQ(bytes({}, cost::Arithmetic::kFp32), 16);
}

TEST(InFlight, IsWhatTheSchedulesThemselvesHold) {
  for (const char* kind : {"1f1b", "gpipe", "interleaved", "breadth-first"}) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int turns : {1, 2, 3}) {
        const bool takes_chunks = std::string_view(kind) == "interleaved" || std::string_view(kind) == "breadth-first";
        if (turns > 1 && !takes_chunks) continue;
        for (const int groups : {1, 2, 4}) {
          const Layout layout{.pp = stages, .virtual_stages = turns, .schedule = kind};
          const auto peaks = schedule::peak_in_flight(
              schedule::build(kind, {.ranks = stages, .micros = groups * stages, .chunks_per_rank = turns}));
          for (int stage = 0; stage < stages; ++stage)
            EXPECT_DOUBLE_EQ(in_flight(layout, groups * stages, stage) * turns, peaks[static_cast<std::size_t>(stage)])
                << kind << " " << stages << " stages, " << turns << " turns, " << groups << " groups, stage " << stage;
        }
      }
    }
  }
}

TEST(Memory, EveryPublishedRunFits) {
  for (const PublishedSource& source : load_published()) {
    for (const PublishedRun& run : source.file.runs) {
      if (!counts(run)) continue;
      const SearchResult found =
          search(cost::load_hardware(run.cluster), job_of(run), run.gpus, {.given = choices_of(run), .replay = false});
      EXPECT_FALSE(found.best.empty()) << run.id << " needs " << found.smallest->memory.peak() / 1e9 << " GB";
    }
  }
}

TEST(Memory, WhatRanOutOfItDoesNotFit) {
  int seen = 0;
  for (const PublishedSource& source : load_published()) {
    for (const PublishedRun& run : source.file.out_of_memory) {
      const SearchResult found =
          search(cost::load_hardware(run.cluster), job_of(run), run.gpus, {.given = choices_of(run), .replay = false});
      EXPECT_TRUE(found.best.empty()) << run.id;
      const Memory& memory = found.smallest->memory;
      EXPECT_GT(memory.peak(), 0.9 * memory.device);
      ++seen;
    }
  }
  EXPECT_GE(seen, 1);
}

TEST(Memory, MoreDevicesUnderZeroNeverNeedMore) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  Job job = gpt(32, 4096, 32);
  job.batch = 1024;
  for (int zero = 0; zero <= 3; ++zero) {
    double before = 1e18;
    for (const int dp : {1, 2, 8, 64, 512}) {
      const double peak = estimate_memory(hardware, job, {.dp = dp, .zero = zero}).peak();
      if (dp > 1) {
        EXPECT_LE(peak, before + 2e8);  // a bucket appears with the second rank
      }
      before = peak;
    }
  }
}

TEST(Memory, TheFirstStageIsTheFullestUnderOneForwardOneBackward) {
  Job job = gpt(32, 4096, 32);
  job.batch = 64;
  const Memory memory = estimate_memory(cost::load_hardware("selene"), job,
                                        {.tp = 2, .pp = 8, .micro_batch_size = 1, .schedule = "1f1b"});
  EXPECT_EQ(memory.stage, 0);
  EXPECT_EQ(memory.in_flight, 8);
  EXPECT_NE(memory.why().find("activations"), std::string::npos);
}

}  // namespace
}  // namespace trireme::plan
