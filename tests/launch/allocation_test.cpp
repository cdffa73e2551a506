#include "trireme/launch/allocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/errors.h"

namespace trireme::launch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

EnvironmentLookup with(std::map<std::string, std::string, std::less<>> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(SlurmCounts, AreSpelledOut) {
  EXPECT_THAT(slurm_counts("4", "X"), ElementsAre(4));
  EXPECT_THAT(slurm_counts("2(x3),1", "X"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(slurm_counts("72(x2),36,72", "X"), ElementsAre(72, 72, 36, 72));
  for (const char* wrong : {"", "x", "2(x3", "2(x0)", "0", "-1", "2(x3),", "2(y3)", "2(x99999999)", "9999999999"}) {
    EXPECT_THAT(words_of([&] { slurm_counts(wrong, "SLURM_TASKS_PER_NODE"); }), HasSubstr("SLURM_TASKS_PER_NODE"))
        << wrong;
  }
}

TEST(SlurmAllocation, HasTheSlotsThatItWasMadeForOrAsManyAsAsked) {
  const auto environment = with({{"SLURM_JOB_NODELIST", "n[1-2],big"},
                                 {"SLURM_TASKS_PER_NODE", "2(x2),4"},
                                 {"SLURM_JOB_CPUS_PER_NODE", "16(x2),64"},
                                 {"SLURM_MEM_PER_NODE", "64000"}});
  const Allocation by_tasks = slurm_allocation(0, environment);
  EXPECT_THAT(by_tasks.nodes, ElementsAre(Allocation::Node{"n1", 2, 16, 64000}, Allocation::Node{"n2", 2, 16, 64000},
                                          Allocation::Node{"big", 4, 64, 64000}));
  EXPECT_EQ(by_tasks.cores_per_slot(), 8) << "of the node that gives least";
  EXPECT_EQ(by_tasks.megabytes_per_slot(), 16000);
  const Allocation asked = slurm_allocation(8, environment);
  EXPECT_EQ(asked.nodes[2].slots, 8);
  EXPECT_EQ(asked.cores_per_slot(), 2);
  EXPECT_THAT(words_of([&] { slurm_allocation(32, environment); }),
              AllOf(HasSubstr("node n1 has 16 cores"), HasSubstr("--slots 16")));
}

TEST(SlurmAllocation, NeedsNoMoreThanTheNodes) {
  const Allocation bare = slurm_allocation(0, with({{"SLURM_JOB_NODELIST", "a"}}));
  EXPECT_THAT(bare.nodes, ElementsAre(Allocation::Node{"a", 1, 1, 0}));
}

TEST(SlurmAllocation, SaysWhatIsWrong) {
  EXPECT_THAT(words_of([] { slurm_allocation(0, with({})); }),
              AllOf(HasSubstr("no Slurm allocation"), HasSubstr("salloc")));
  EXPECT_THAT(words_of([] {
                slurm_allocation(0, with({{"SLURM_JOB_NODELIST", "n[1-"}}));
              }),
              HasSubstr("list of nodes"));
  EXPECT_THAT(words_of([] {
                slurm_allocation(0, with({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}}));
              }),
              HasSubstr("list of 3 counts"));
}

TEST(SlurmStep, AsksForWhatItUsesAndNoMore) {
  EXPECT_THAT(
      srun_words({.nodes = {"n1", "n3"}, .tasks = 4, .cores_per_task = 8, .mpi = "pmix"}),
      ElementsAre("srun", "--nodes=2", "--nodelist=n1,n3", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=8",
                  "--exact", "--input=none", "--kill-on-bad-exit=0", "--wait=600", "--mpi=pmix"));
  const auto words = srun_words({.nodes = {"n1"}, .megabytes_per_node = 4000, .gpus_per_task = 2});
  EXPECT_THAT(words, Contains("--mem=4000M"));
  EXPECT_THAT(words, Contains("--gpus-per-task=2"));
  EXPECT_THAT(srun_words({.nodes = {"n1"}}), Not(Contains(HasSubstr("--mem"))));
}

}  // namespace
}  // namespace trireme::launch
