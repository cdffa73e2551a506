#include "trireme/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/llama_405b.h"
#include "tests/thread_seconds.h"
#include "trireme/plan/published.h"

namespace trireme::plan {
namespace {

using ::testing::HasSubstr;

Job small(std::int64_t batch) {
  Job job;
  job.shape = shape_of({.num_layers = 24, .hidden_size = 2048, .num_heads = 16, .vocab_size = 51200});
  job.batch = batch;
  return job;
}

/// Every combination of everything, with no thought at all.
std::optional<double> brute_force(const cost::Hardware& hardware, const Job& job, int gpus) {
  std::optional<double> best;
  for (int tp = 1; tp <= gpus; ++tp) {
    for (int pp = 1; tp * pp <= gpus; ++pp) {
      if (gpus % (tp * pp) != 0) continue;
      for (int turns = 1; turns <= job.shape.num_layers; ++turns) {
        if (turns > 1 && (job.shape.num_layers % pp != 0 || (job.shape.num_layers / pp) % turns != 0)) continue;
        for (std::int64_t micro = 1; micro <= std::min<std::int64_t>(job.batch, 64); ++micro) {
          for (int zero = 0; zero <= 3; ++zero) {
            for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
              const Layout layout{.tp = tp,
                                  .pp = pp,
                                  .dp = gpus / (tp * pp),
                                  .virtual_stages = turns,
                                  .micro_batch_size = micro,
                                  .zero = zero,
                                  .sequence_parallel = tp > 1,
                                  .recompute = recompute,
                                  .schedule = turns > 1 ? "interleaved" : "1f1b"};
              if (!find_problems(job, layout, gpus).empty()) continue;
              if (turns > 1 && micros_of(job, layout) % pp != 0) continue;
              const Estimate result = estimate(hardware, job, layout, Pipeline::kClosedForm);
              if (result.memory.fits && (!best || result.step_seconds() < *best)) best = result.step_seconds();
            }
          }
        }
      }
    }
  }
  return best;
}

TEST(Search, FindsWhatTryingEverythingFinds) {
  for (const char* cluster : {"dgx-h100", "dgx2-v100"}) {
    cost::Hardware hardware = cost::load_hardware(cluster);
    for (const double gib : {8.0, 24.0, 80.0}) {
      hardware.device.memory_gib = gib;
      for (const int gpus : {1, 4, 6, 8}) {
        Job job = small(24);
        job.arithmetic = cost::Arithmetic::kFp16;
        const SearchResult found = search(hardware, job, gpus, {.replay = false});
        const std::optional<double> expected = brute_force(hardware, job, gpus);
        ASSERT_EQ(found.best.empty(), !expected) << cluster << " " << gib << " GiB, " << gpus << " devices";
        if (expected) {
          EXPECT_DOUBLE_EQ(found.best.front().step_seconds(), *expected)
              << cluster << " " << gib << " GiB, " << gpus << " devices";
        }
      }
    }
  }
}

TEST(Search, KeepsToWhatIsGiven) {
  const SearchResult found =
      search(cost::load_hardware("selene"), small(64), 16,
             {.given = {.tp = 2, .pp = 4, .micro_batch_size = 2, .zero = 0, .recompute = Recompute::kFull}});
  for (const Estimate& one : found.best) {
    EXPECT_EQ(one.layout.tp, 2);
    EXPECT_EQ(one.layout.pp, 4);
    EXPECT_EQ(one.layout.dp, 2);
    EXPECT_EQ(one.layout.micro_batch_size, 2);
    EXPECT_EQ(one.layout.zero, 0);
    EXPECT_EQ(one.layout.recompute, Recompute::kFull);
  }
}

TEST(Search, MoreMemoryIsNeverSlower) {
  cost::Hardware hardware = cost::load_hardware("selene");
  double before = 1e18;
  for (const double gib : {10., 16., 24., 40., 80.}) {
    hardware.device.memory_gib = gib;
    const SearchResult found = search(hardware, small(64), 16, {.replay = false});
    ASSERT_FALSE(found.best.empty());
    EXPECT_LE(found.best.front().step_seconds(), before);
    before = found.best.front().step_seconds();
  }
}

TEST(Search, TheParetoFrontTradesTimeForMemory) {
  const SearchResult found = search(cost::load_hardware("selene"), small(64), 16, {.replay = false});
  ASSERT_GT(found.pareto.size(), 1u);
  for (std::size_t index = 1; index < found.pareto.size(); ++index) {
    EXPECT_GE(found.pareto[index].step_seconds(), found.pareto[index - 1].step_seconds());
    EXPECT_LT(found.pareto[index].memory.peak(), found.pareto[index - 1].memory.peak());
  }
}

TEST(Search, SaysWhatContradictsItself) {
  const cost::Hardware hardware = cost::load_hardware("selene");
  try {
    search(hardware, small(64), 16, {.given = {.tp = 3, .pp = 2}});
    FAIL();
  } catch (const config::ProblemsError& error) {
    EXPECT_THAT(error.block(), HasSubstr("3 does not divide the 16 heads"));
  }
  EXPECT_THROW(search(hardware, small(63), 16, {.given = {.dp = 2}}), config::ProblemsError);
  EXPECT_THROW(search(hardware, small(64), 16, {.given = {.tp = 4, .pp = 4, .dp = 4}}), config::ProblemsError);
}

/// The layouts that their authors found best are the planner's, or close to it.
TEST(Search, PublishedLayoutsAreNearTheBest) {
  for (const PublishedSource& source : load_published()) {
    if (source.name != "megatron-sc21" && source.name != "llama3") continue;
    for (const PublishedRun& run : source.file.runs) {
      if (!counts(run) || run.zero == 3) continue;
      const cost::Hardware hardware = cost::load_hardware(run.cluster);
      // What the software of the time could not do stays out: tensor, pipeline and data parallelism are free.
      Choices open = choices_of(run);
      open.tp = open.pp = open.dp = std::nullopt;
      open.cp = 1;
      const SearchResult own = search(hardware, job_of(run), run.gpus, {.given = choices_of(run), .replay = false});
      const SearchResult all = search(hardware, job_of(run), run.gpus, {.given = open, .replay = false});
      ASSERT_FALSE(own.best.empty()) << run.id;
      const double ratio = own.best.front().step_seconds() / all.best.front().step_seconds();
      RecordProperty(run.id, std::to_string(ratio) + " " + to_text(all.best.front().layout));
      EXPECT_LT(ratio, 1.35) << run.id << ": " << to_text(all.best.front().layout);
    }
  }
}

TEST(Search, OfLlama405BOn16384DevicesTakesUnderTwoSeconds) {
  const Job job = llama_405b();
  const cost::Hardware hardware = cost::load_hardware("llama3-h100-16k");
  const double begin = thread_seconds();
  const SearchResult found = search(hardware, job, 16384, {});
  const double took_s = thread_seconds() - begin;
  RecordProperty("seconds", std::to_string(took_s));
  ASSERT_FALSE(found.best.empty());
  EXPECT_LT(took_s, 10);  // 2 s on a quiet core; tests share its caches
  const SearchResult published =
      search(hardware, job, 16384, {.given = {.tp = 8, .pp = 16, .dp = 128, .cp = 1, .zero = 2}});
  EXPECT_LE(found.best.front().step_seconds(), published.best.front().step_seconds());
}

}  // namespace
}  // namespace trireme::plan
