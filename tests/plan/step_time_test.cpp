#include "trireme/plan/step_time.h"

#include <gtest/gtest.h>

#include "trireme/plan/estimate.h"
#include "trireme/plan/published.h"

namespace trireme::plan {
namespace {

Job gpt3(std::int64_t batch) {
  Job job;
  job.shape = shape_of({.num_layers = 96, .hidden_size = 12288, .num_heads = 96, .vocab_size = 51200});
  job.batch = batch;
  return job;
}

/// 72 B s l h^2 (1 + s/(6h) + V/(12 h l)) and 96 B s l h^2 (1 + s/(6h) + V/(16 l h)).
TEST(Flops, AreTheFormulasOfThePapers) {
  struct Row {
    std::int64_t num_layers, hidden_size, num_heads, batch;
    double hardware, model;
  };
  for (const Row& row :
       {Row{24, 2304, 24, 512, 1.5467e16, 1.1786e16}, Row{40, 6144, 48, 1024, 3.2484e17, 2.4462e17},
        Row{96, 12288, 96, 1536, 4.5110e18, 3.3862e18}, Row{128, 25600, 160, 3072, 5.1391e19, 3.8555e19}}) {
    Job job;
    job.shape = shape_of({.num_layers = row.num_layers,
                          .hidden_size = row.hidden_size,
                          .num_heads = row.num_heads,
                          .vocab_size = 51200});
    job.batch = row.batch;
    EXPECT_NEAR(model_flops(job), row.model, 1e-4 * row.model);
    EXPECT_NEAR(hardware_flops(job, Recompute::kFull), row.hardware, 1e-4 * row.hardware);
  }
}

TEST(Flops, SelectiveRecomputationDoesAttentionOnceMore) {
  Job job = gpt3(1);
  job.attention = AttentionKind::kUnfused;
  const double s = 2048, l = 96, h = 12288, V = 51200;
  const double expected = 72 * s * l * h * h * (1 + s / (3 * h) + V / (12 * h * l));
  // The formula adds a third of attention's three; ours adds one forward.
  EXPECT_NEAR(hardware_flops(job, Recompute::kSelective), model_flops(job) + (expected - model_flops(job)) / 3,
              1e-6 * expected);
}

TEST(Stages, UnevenLayersLeaveTheEndsLighter) {
  EXPECT_EQ(stage_layers(126, 16, 1), (std::vector<int>{7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7}));
  EXPECT_EQ(stage_layers(96, 8, 3), std::vector<int>(8, 12));
  for (const auto& [layers, stages, turns] : {std::tuple{126, 16, 8}, {5, 2, 2}, {105, 35, 3}, {7, 3, 1}}) {
    int sum = 0;
    for (const int count : stage_layers(layers, stages, turns)) sum += count;
    EXPECT_EQ(sum, layers);
  }
}

TEST(Pipeline, TheClosedFormIsTheReplayWhereStagesAreEqual) {
  for (const char* kind : {"1f1b", "gpipe", "interleaved", "breadth-first"}) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int turns : {1, 2, 4}) {
        const bool takes_chunks = std::string_view(kind) == "interleaved" || std::string_view(kind) == "breadth-first";
        if (turns > 1 && !takes_chunks) continue;
        for (const int groups : {1, 2, 5}) {
          const Layout layout{.pp = stages, .virtual_stages = turns, .schedule = kind};
          const std::vector<StageTime> times(static_cast<std::size_t>(stages),
                                             {.forward = 1.25, .backward = 2.5, .backward_weight = 1, .exposed = 0.5});
          const double closed = pipeline_closed_form(layout, groups * stages, times);
          EXPECT_NEAR(pipeline_replayed(layout, groups * stages, times, 0), closed, 1e-9 * closed)
              << kind << " " << stages << " stages " << turns << " turns " << groups << " groups";
        }
      }
    }
  }
}

TEST(Pipeline, TheClosedFormIsTheReplayWhereTheLastStageIsSlower) {
  const Layout layout{.pp = 4, .schedule = "1f1b"};
  std::vector<StageTime> times(4, {.forward = 1, .backward = 2});
  times.back() = {.forward = 1.1, .backward = 2.3};
  const double closed = pipeline_closed_form(layout, 32, times);
  EXPECT_NEAR(pipeline_replayed(layout, 32, times, 0), closed, 0.01 * closed);
}

TEST(Pipeline, ZeroBubbleSchedulesWaitLess) {
  const std::vector<StageTime> times(8, {.forward = 1, .backward = 2, .backward_weight = 1});
  const double plain = pipeline_closed_form({.pp = 8, .schedule = "1f1b"}, 32, times);
  EXPECT_LT(pipeline_closed_form({.pp = 8, .schedule = "zb-h1"}, 32, times), plain);
  EXPECT_NEAR(pipeline_replayed({.pp = 8, .schedule = "zb-h1"}, 32, times, 0),
              pipeline_closed_form({.pp = 8, .schedule = "zb-h1"}, 32, times), 1e-9 * plain);
}

TEST(StepTime, ItsPartsAddUp) {
  const StepTime time =
      estimate_step(cost::load_hardware("selene"), gpt3(1536), {.tp = 8, .pp = 12, .dp = 16}, Pipeline::kReplay);
  EXPECT_GT(time.bubble, 0);
  EXPECT_GT(time.pipeline, 0);
  EXPECT_GT(time.replicas, 0);
  EXPECT_NEAR(time.total(), time.work.total() + time.pipeline + time.bubble + time.replicas + time.optimizer, 1e-12);
}

TEST(StepTime, BetterHardwareIsNeverSlower) {
  const cost::Hardware hardware = cost::load_hardware("selene");
  const Job job = gpt3(1536);
  for (const Layout& layout : {Layout{.tp = 8, .pp = 12, .dp = 16}, Layout{.tp = 1, .pp = 1, .dp = 1536, .zero = 3},
                               Layout{.tp = 4, .pp = 8, .dp = 48, .zero = 1, .sequence_parallel = true}}) {
    const double before = estimate(hardware, job, layout).step_seconds();
    const auto with = [&](auto change) {
      cost::Hardware better = hardware;
      change(better);
      return estimate(better, job, layout).step_seconds();
    };
    EXPECT_LE(with([](cost::Hardware& h) { h.cluster.network.gb_per_s *= 2; }), before);
    EXPECT_LE(with([](cost::Hardware& h) { h.cluster.link.gb_per_s *= 2; }), before);
    EXPECT_LE(with([](cost::Hardware& h) { h.device.memory_gb_per_s *= 2; }), before);
    EXPECT_LE(with([](cost::Hardware& h) { h.device.bf16_tflops *= 2; }), before);
    EXPECT_LE(with([](cost::Hardware& h) { h.cluster.network.latency_us /= 2; }), before);
  }
}

/// Korthikanti et al. 2022, table 4: one layer of the 22B model on eight A100.
TEST(LayerTime, IsNearTheMeasuredLayer) {
  int seen = 0;
  for (const PublishedSource& source : load_published()) {
    for (const PublishedRun& run : source.file.layer_times) {
      Layout layout{
          .tp = *run.tp, .micro_batch_size = *run.micro_batch_size, .sequence_parallel = *run.sequence_parallel};
      layout.recompute = *run.recompute;
      const PassTimes times = layer_times(cost::load_hardware(run.cluster), job_of(run), layout);
      const double measured = *run.forward_ms + *run.backward_ms;
      EXPECT_NEAR(1e3 * times.all().total(), measured, 0.15 * measured) << run.id;
      ++seen;
    }
  }
  EXPECT_EQ(seen, 5);
}

TEST(LayerTime, FullRecomputationRepeatsTheForward) {
  const cost::Hardware hardware = cost::load_hardware("selene");
  const Job job = gpt3(8);
  const PassTimes none = layer_times(hardware, job, {.tp = 8});
  const PassTimes full = layer_times(hardware, job, {.tp = 8, .recompute = Recompute::kFull});
  EXPECT_DOUBLE_EQ(full.all().total(), none.all().total() + none.forward.total());
}

}  // namespace
}  // namespace trireme::plan
