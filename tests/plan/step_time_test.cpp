#include "trireme/plan/step_time.h"

#include <gtest/gtest.h>

#include "trireme/plan/estimate.h"
#include "trireme/plan/published.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/compare.h"
#include "trireme/schedule/replay.h"

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
    EXPECT_NEAR(hardware_flops(job, {.recompute = spec::RecomputeKind::kFull}), row.hardware, 1e-4 * row.hardware);
  }
}

TEST(Flops, SelectiveRecomputationDoesAttentionOnceMore) {
  Job job = gpt3(1);
  job.attention = AttentionKind::kUnfused;
  const double s = 2048, l = 96, h = 12288, V = 51200;
  const double expected = 72 * s * l * h * h * (1 + s / (3 * h) + V / (12 * h * l));
  // The formula adds a third of attention's three; ours adds one forward.
  EXPECT_NEAR(hardware_flops(job, {.recompute = spec::RecomputeKind::kSelective}),
              model_flops(job) + (expected - model_flops(job)) / 3, 1e-6 * expected);
}

/// Layers of equal times, embedding and head of none: every chunk takes as long as its layers.
LayerPasses equal_layers(double forward, double backward_input, double backward_weight, double message) {
  LayerPasses passes;
  passes.layer.forward.matmul = forward;
  passes.layer.backward.matmul = backward_input + backward_weight;
  passes.layer.backward_weight = backward_weight;
  passes.message = message;
  return passes;
}

ParallelConfig timed_stages(const char* kind, int stages, int turns = 1) {
  return {.layout = {.pp = stages}, .pipeline = {.schedule = kind, .virtual_stages = turns}};
}

Job layers_of_one(int layers, std::int64_t batch) {
  Job job;
  job.shape = shape_of({.num_layers = layers, .hidden_size = 64, .num_heads = 1, .vocab_size = 64});
  job.batch = batch;
  return job;
}

TEST(Pipeline, TheClosedFormIsTheReplayWhereStagesAreEqual) {
  const LayerPasses passes = equal_layers(1.25, 1.5, 1, 0.25);
  for (const char* kind : {"1f1b", "gpipe", "interleaved", "breadth-first"}) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int turns : {1, 2, 4}) {
        // Of kinds with several chunks a rank, no stage has fewer than the kind is made of.
        const int least = schedule::find_kind(kind).default_chunks;
        if (least == 1 ? turns > 1 : turns < least) continue;
        for (const int groups : {1, 2, 5}) {
          const Job job = layers_of_one(stages * turns, groups * stages);
          const ParallelConfig config = timed_stages(kind, stages, turns);
          ScheduleCache schedules(job);
          const double closed =
              pipeline_closed_form(config, groups * stages, passes, stage_loads(job, config), schedules);
          EXPECT_NEAR(pipeline_replayed(job, config, passes, schedules), closed, 1e-9 * closed)
              << kind << " " << stages << " stages " << turns << " turns " << groups << " groups";
        }
      }
    }
  }
}

TEST(Pipeline, TheClosedFormIsTheReplayWhereTheLastStageIsSlower) {
  LayerPasses passes = equal_layers(1, 1, 1, 0);
  passes.head.forward.matmul = 0.1;
  passes.head.backward.matmul = 0.3;
  const Job job = layers_of_one(4, 32);
  ScheduleCache schedules(job);
  const double closed =
      pipeline_closed_form(timed_stages("1f1b", 4), 32, passes, stage_loads(job, timed_stages("1f1b", 4)), schedules);
  EXPECT_NEAR(pipeline_replayed(job, timed_stages("1f1b", 4), passes, schedules), closed, 0.01 * closed);
}

/// Every kind that a search looks at, with passes of other ratios than the papers': within 3 % of the replay.
TEST(Pipeline, TheClosedFormIsNearTheReplayForEverySearchedSchedule) {
  for (const char* kind : kSearchedSchedules) {
    const int turns = schedule::find_kind(kind).default_chunks;
    for (const int stages : {2, 4, 8}) {
      for (const int micros : {2 * stages, 6 * stages, 16 * stages}) {
        const Job job = layers_of_one(8 * stages, micros);
        const ParallelConfig config = timed_stages(kind, stages, turns);
        ScheduleCache schedules(job);
        for (const LayerPasses& passes : {equal_layers(1, 1, 1, 0), equal_layers(1, 1.3, 0.9, 0.01)}) {
          const double closed = pipeline_closed_form(config, micros, passes, schedules.loads(config).all, schedules);
          const double replayed = pipeline_replayed(job, config, passes, schedules);
          EXPECT_NEAR(closed, replayed, 0.03 * replayed) << kind << " " << stages << " stages " << micros << " micros";
        }
      }
    }
  }
}

/// Chunks of DualPipe and Chimera are 1/p of the model, those of interleaved 1/(v p): each has the time of its layers,
/// so the idle share is what `schedule compare` says. Of ZB-V that says the share between steps that overlap; a planned
/// step ends everywhere before the next begins, as its update needs the gradient norm of all stages.
TEST(Pipeline, BubblesAreThoseOfScheduleCompare) {
  for (const char* kind : {"1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "chimera"}) {
    const schedule::Kind& known = schedule::find_kind(kind);
    const Job job = layers_of_one(96, 32);
    const ParallelConfig config = timed_stages(kind, 8, known.default_chunks);
    const LayerPasses passes = equal_layers(1, 1, 1, 0);
    ScheduleCache schedules(job);
    const double makespan = pipeline_replayed(job, config, passes, schedules), work = 96 / 8 * 3 * 32;
    const schedule::Shape shape{.ranks = 8, .micros = 32, .chunks_per_rank = known.default_chunks};
    const double bubble =
        known.steady ? schedule::replay(schedule::build(kind, shape)).bubble() : schedule::measure(known, shape).bubble;
    EXPECT_NEAR(1 - work / makespan, bubble, 1e-9) << kind;
  }
}

/// GPT-3 175B on eight stages: the planner's own pass times in both.
TEST(Pipeline, OfGpt3BubblesAreThoseOfScheduleCompare) {
  const cost::Hardware hardware = cost::load_hardware("selene");
  for (const char* kind : {"dualpipe", "chimera"}) {
    ParallelConfig config = timed_stages(kind, 8, 2);
    config.layout.tp = 8;
    config.layout.sequence_parallel = true;
    const Job job = gpt3(32);
    const PassTimes layer = layer_times(hardware, job, config);
    const schedule::Times times{.forward = layer.forward.total(),
                                .backward_input = layer.backward.total() - layer.backward_weight,
                                .backward_weight = layer.backward_weight};
    const schedule::Measures measured =
        schedule::measure(schedule::find_kind(kind), {.ranks = 8, .micros = 32, .chunks_per_rank = 2}, times);
    const StepTime step = estimate_step(hardware, job, config, Pipeline::kReplay);
    const double pipeline = step.work.total() + step.pipeline + step.bubble;
    EXPECT_GT(measured.bubble, 0.03);
    EXPECT_NEAR(step.bubble / pipeline, measured.bubble, 0.02) << kind;
    // Twelve layers of 96 for each of 32 micro-batches, and the head's share.
    EXPECT_NEAR(step.work.matmul, 32 * 12 * (layer.forward.matmul + layer.backward.matmul), 0.05 * step.work.matmul);
  }
}

TEST(Pipeline, AsynchronousKindsAreTimedInTheirSteadyState) {
  const LayerPasses passes = equal_layers(1, 1, 1, 0);
  const Job job = layers_of_one(8, 8);
  ScheduleCache schedules(job);
  EXPECT_NEAR(pipeline_replayed(job, timed_stages("pipedream-2bw", 4), passes, schedules), 8 * 2 * 3, 1e-9);
}

TEST(StepTime, ItsPartsAddUp) {
  const StepTime time = estimate_step(cost::load_hardware("selene"), gpt3(1536),
                                      {.layout = {.dp = 16, .tp = 8, .pp = 12}}, Pipeline::kReplay);
  EXPECT_GT(time.bubble, 0);
  EXPECT_GT(time.pipeline, 0);
  EXPECT_GT(time.replicas, 0);
  EXPECT_NEAR(time.total(), time.work.total() + time.pipeline + time.bubble + time.replicas + time.optimizer, 1e-12);
}

TEST(StepTime, BetterHardwareIsNeverSlower) {
  const cost::Hardware hardware = cost::load_hardware("selene");
  const Job job = gpt3(1536);
  for (const spec::LayoutConfig& axes :
       {spec::LayoutConfig{.dp = 16, .tp = 8, .pp = 12}, spec::LayoutConfig{.dp = 1536, .zero = 3},
        spec::LayoutConfig{.dp = 48, .tp = 4, .pp = 8, .zero = 1, .sequence_parallel = true}}) {
    const ParallelConfig layout{.layout = axes};
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
      const ParallelConfig layout{.layout = {.tp = *run.tp, .sequence_parallel = *run.sequence_parallel},
                                  .micro_batch_size = *run.micro_batch_size,
                                  .recompute = *run.recompute};
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
  const PassTimes none = layer_times(hardware, job, {.layout = {.tp = 8}});
  const PassTimes full = layer_times(hardware, job, {.layout = {.tp = 8}, .recompute = spec::RecomputeKind::kFull});
  EXPECT_DOUBLE_EQ(full.all().total(), none.all().total() + none.forward.total());
}

}  // namespace
}  // namespace trireme::plan
