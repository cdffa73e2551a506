// The validator finds what was broken on purpose.
#include "trireme/schedule/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

std::vector<std::string> faults_of(const std::string& ranks, const std::string& header = "micros: 2\nchunks: 0 1\n") {
  return check(parse(header + ranks)).faults;
}

TEST(Check, NamesWhatIsMissing) {
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1\nrank 1: F0 B0\n"),
              AllOf(Contains("rank 1: micro 1 never goes forward through chunk 1"),
                    Contains("rank 1: micro 1 never goes backward through chunk 1"),
                    Contains("rank 1: micro 1 never gives its weight gradient of chunk 1")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 I1\n"),
              Contains("rank 1: micro 1 never gives its weight gradient of chunk 1"));
}

TEST(Check, NamesWhatComesTwiceTooEarlyOrOnTheWrongRank) {
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 B0 B1\n"),
              Contains(HasSubstr("(backward): micro 0 was backward through chunk 1 already")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1\nrank 1: B0 F0 F1 B1\n"),
              Contains(HasSubstr("B0.1 (backward): micro 0 has not been forward through chunk 1 before")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1\nrank 1: W0 F0 I0 F1 B1\n"),
              Contains(HasSubstr("micro 0 has no gradient of inputs of chunk 1 before")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1\nrank 1: F0.0 F0 B0 F1 B1\n"),
              Contains(HasSubstr("micro 0 meets chunk 0 on rank 0")));
}

TEST(Check, FindsADeadlockOfOrders) {
  // Rank 0 wants the gradient of micro 1 before it sends micro 0, which rank 1 wants first.
  EXPECT_THAT(faults_of("rank 0: F1 B1 F0 B0\nrank 1: F0 B0 F1 B1\n"),
              Contains(HasSubstr("deadlock: rank 0 waits for ever at WRG1.0 (wait for the gradient of micro 1)")));
}

TEST(Check, FindsMessagesThatDoNotMatch) {
  EXPECT_THAT(faults_of("rank 0: F0 SA0 F1 WSA0 SA1 WSA1 RG0 RG1 WRG0 B0 WRG1 B1\n"
                        "rank 1: RA1 RA0 WRA0 F0 B0 SG0 WRA1 F1 B1 WSG0 SG1 WSG1\n"),
              Contains("message 0 from rank 0 to rank 1: sent is SA0.0, received is RA1.1"));
}

TEST(Check, FindsTransfersThatAreNotWaitedFor) {
  Schedule schedule = add_transfers(build("1f1b", {.ranks = 2, .micros = 2}));
  std::erase_if(schedule.ranks[1], [](const Instruction& it) { return it.op == Op::kWaitRecvActivation; });
  EXPECT_THAT(check(schedule).faults, Contains(HasSubstr("the activation of micro 0 was not waited for")));
}

TEST(Check, FindsGradientsAfterTheUpdate) {
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 G O B1\nrank 1: F0 B0 F1 B1\n"),
              AllOf(Contains(HasSubstr("G.0 (reduction of gradients): 1 of the gradients of step 0 are still to come")),
                    Contains(HasSubstr("B1.0 (backward): the gradients of step 0 of chunk 0 were reduced before")),
                    Contains("rank 1: 0 optimizer steps, but the micros make 1")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1 O\nrank 1: F0 B0 F1 B1 G O\n"),
              Contains(HasSubstr("O (optimizer step): the gradients of chunk 0 were not reduced for it")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 B1 G G O\nrank 1: F0 B0 F1 B1 G O\n"),
              Contains(HasSubstr("position 5, G.0 (reduction of gradients): there are 1 steps only")));
}

TEST(Check, FindsReductionsInDifferentOrders) {
  Schedule schedule = build("chimera", {.ranks = 2, .micros = 2, .chunks_per_rank = 2});
  EXPECT_TRUE(check(schedule).fine());
  auto& list = schedule.ranks[1];
  std::iter_swap(list.end() - 3, list.end() - 2);
  EXPECT_THAT(check(schedule).faults, Contains(HasSubstr("do not reduce them in the same order")));
}

TEST(Check, HoldsWeightVersionsAgainstTheLawOfTheTable) {
  const std::string two_steps = "micros: 2\nupdate-every: 1\nchunks: 0\n";
  // Micro 1 goes forward before the update that it should see.
  const std::string early = "rank 0: F0 F1 B0 G O B1 G O\n";
  EXPECT_THAT(
      faults_of(early, two_steps),
      Contains(HasSubstr("the forward of micro 1 through chunk 0 computes with version 0 of the weights; by the "
                         "law \"flush\" it is version 1")));
  EXPECT_EQ(check(parse(two_steps + "weights: stale\n" + early)).delay, 1);
  EXPECT_THAT(faults_of(early, two_steps + "weights: stash\n"),
              Contains(HasSubstr("the backward of micro 1 through chunk 0 computes with version 1")));
  const std::string stash = two_steps + "weights: stash\n";
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 VS0 G O VL0 B1 VD0 G O\n", stash), testing::IsEmpty());
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 VS0 G O VL0 B1 G O\n", stash),
              Contains("rank 0: version 0 of chunk 0 is never dropped"));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 G O VL0 B1 G O\n", stash), Contains(HasSubstr("this version is not held")));
  EXPECT_THAT(faults_of("rank 0: F0 F1 B0 VS1 G O VL1 B1 VD1 G O\n", stash),
              Contains(HasSubstr("version 0 is present")));
  EXPECT_THAT(faults_of("rank 0: F0 VP1 F1 B0 G O B1 G O\n", stash), Contains(HasSubstr("stash predicts nothing")));
  EXPECT_THAT(faults_of("rank 0: F0 VP1 F1 B0 G O B1 G O\n", two_steps + "weights: predict-momentum\n"),
              testing::IsEmpty());
}

TEST(Check, ReportsTheSlotsAChannelNeeds) {
  // With nobody ahead of anybody a rendezvous is enough. Here rank 0 sends both micros before rank 1 posts anything.
  EXPECT_EQ(check(build("gpipe", {.ranks = 1, .micros = 2})).slots, 0);
  const Schedule eager = parse(
      "micros: 2\nchunks: 0 1\n"
      "rank 0: F0 SA0 F1 SA1 WSA0 WSA1 RG0 RG1 WRG0 B0 WRG1 B1\n"
      "rank 1: RA0 WRA0 F0 B0 SG0 WSG0 RA1 WRA1 F1 B1 SG1 WSG1\n");
  const Report report = check(eager);
  EXPECT_EQ(report.faults, std::vector<std::string>{});
  EXPECT_EQ(report.slots, 1) << "rank 1 waits for its send to be taken before it posts the second receive";
}

TEST(Check, NumbersOutOfRangeAreFaultsNotCrashes) {
  Schedule schedule = build("1f1b", {.ranks = 2, .micros = 2});
  schedule.ranks[0][0].micro = 7;
  EXPECT_THAT(check(schedule).faults, Contains(HasSubstr("there are 2 chunks and 2 micros")));
  schedule.ranks[0][0] = make(Op::kForward, 5, 0);
  EXPECT_FALSE(check(schedule).fine());
  EXPECT_THROW(require_fine(schedule), ConfigError);
}

/// Each instruction dropped, doubled or given to another micro, chunk or version must be noticed.
TEST(Check, EveryMutationOfEveryKindIsRejected) {
  std::mt19937 random(11);
  for (const Kind& kind : kinds()) {
    const Schedule plain =
        build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks, .steps = 2});
    for (const Schedule& schedule : {plain, add_transfers(plain)}) {
      for (int round = 0; round < 200; ++round) {
        Schedule broken = schedule;
        auto& list = broken.ranks[random() % broken.ranks.size()];
        const auto at = static_cast<std::ptrdiff_t>(random() % list.size());
        const Instruction old = list[static_cast<std::size_t>(at)];
        Instruction& changed = list[static_cast<std::size_t>(at)];
        switch (random() % 4) {
          case 0:
            list.erase(list.begin() + at);
            break;
          case 1:
            list.insert(list.begin() + at, old);
            break;
          case 2:
            if (old.micro < 0) continue;
            changed.micro = (old.micro + 1) % broken.micros;
            break;
          default:
            if (old.chunk < 0) continue;
            changed.chunk = static_cast<std::int16_t>((old.chunk + 1) % broken.chunks());
        }
        EXPECT_FALSE(check(broken).fine()) << kind.name << " after changing " << to_text(old, true);
      }
    }
  }
}

/// Swapping a micro's forward and backward on a rank breaks its data, wherever it happens.
TEST(Check, ABackwardBeforeItsForwardIsRejectedEverywhere) {
  for (const Kind& kind : kinds()) {
    const Schedule schedule = build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks});
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (int micro = 0; micro < schedule.micros; ++micro) {
        Schedule broken = schedule;
        auto& list = broken.ranks[rank];
        const auto forward =
            std::ranges::find_if(list, [&](const auto& it) { return it.op == Op::kForward && it.micro == micro; });
        const auto backward = std::ranges::find_if(list, [&](const auto& it) {
          return (it.op == Op::kBackward || it.op == Op::kBackwardInput) && it.micro == micro &&
                 (forward == list.end() || it.chunk == forward->chunk);
        });
        if (forward == list.end() || backward == list.end()) continue;
        std::iter_swap(forward, backward);
        EXPECT_FALSE(check(broken).fine()) << kind.name << ", rank " << rank << ", micro " << micro;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::schedule
