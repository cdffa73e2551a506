// Calls on GPU memory that go wrong: every rank learns what, and nothing goes on waiting on its GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/fake_nccl/fake_ranks.h"
#include "tests/comm/outcomes.h"
#include "trireme/comm/nccl/nccl_abi.h"
#include "trireme/comm/transports/emulated.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

const fake::Library& failing_fakes() {
  static const fake::Library library(TRIREME_FAKE_NCCL);
  return library;
}

/// The memory of a rank outlives it: a pretended GPU may touch it until it is told to stop.
struct Data {
  std::vector<float> values = std::vector<float>(1000, 1.0f);
  Buffer on_gpu(const Rank& rank) {
    return {values.data(), values.size(), DType::kF32, {DeviceKind::kCuda, rank.rank()}};
  }
};

class NcclFailures : public testing::Test {
 protected:
  void SetUp() override { failing_fakes().misbehave({}); }
  void TearDown() override { failing_fakes().misbehave({}); }

  Outcomes run(int ranks, const std::function<void(Rank&, Data&)>& body, std::chrono::milliseconds deadline = 60s,
               bool apart = false) {
    data_.resize(static_cast<std::size_t>(ranks));
    RanksOptions options = test_options(deadline);
    if (apart) {
      options.wrap = [](std::unique_ptr<Transport> inner) { return make_emulated_transport(std::move(inner), {}); };
    }
    return run_to_the_end(
        ranks,
        [&](Rank& rank) {
          failing_fakes().give_gpu(rank);
          body(rank, data_[static_cast<std::size_t>(rank.rank())]);
          failing_fakes().gpu().synchronise();
        },
        options);
  }
  std::vector<Data> data_;
};

/// Goes on until the error that was found in the background reaches this rank.
void call_until_it_fails(Rank& rank) {
  const auto until = std::chrono::steady_clock::now() + kSoon;
  while (std::chrono::steady_clock::now() < until) {
    rank.world().barrier().wait();
    std::this_thread::sleep_for(5ms);
  }
}

TEST_F(NcclFailures, CallsThatDifferAreFoundOnTheHost) {
  for (const bool apart : {false, true}) {
    const std::uint64_t calls = failing_fakes().usage().calls;
    const auto counts = run(
        2,
        [](Rank& rank, Data& data) {
          Buffer buffer = data.on_gpu(rank);
          buffer.count = rank.rank() == 0 ? 100 : 200;
          rank.world().all_reduce(buffer, Reduce::kSum).wait();
        },
        60s, apart);
    EXPECT_THAT(counts.rethrown, AllOf(HasSubstr("do not agree on call number 0"), HasSubstr("counts"),
                                       HasSubstr("100"), HasSubstr("on a GPU")));
    const auto places = run(
        2,
        [](Rank& rank, Data& data) {
          Buffer buffer = data.on_gpu(rank);
          if (rank.rank() == 1) buffer.device = {};
          rank.world().all_reduce(buffer, Reduce::kSum).wait();
        },
        60s, apart);
    EXPECT_THAT(places.rethrown, AllOf(HasSubstr("do not agree"), HasSubstr("memory of")));
    EXPECT_EQ(failing_fakes().usage().calls, calls) << "NCCL was given calls that do not match";
  }
}

TEST_F(NcclFailures, BlocksOfAnAllToAllThatDifferAreFoundOnTheHost) {
  const std::uint64_t calls = failing_fakes().usage().calls;
  const auto outcomes = run(2, [](Rank& rank, Data& data) {
    std::vector<float> out(1000);
    const std::vector<std::size_t> send = {300, 100}, recv = rank.rank() == 0 ? std::vector<std::size_t>{300, 300}
                                                                              : std::vector<std::size_t>{99, 100};
    Buffer in = data.on_gpu(rank), to{out.data(), recv[0] + recv[1], DType::kF32, in.device};
    in.count = 400;
    rank.world().all_to_all_v(in, to, send, recv).wait();
  });
  EXPECT_THAT(outcomes.rethrown, AllOf(HasSubstr("do not agree on sizes"), HasSubstr("bytes")));
  EXPECT_EQ(failing_fakes().usage().calls, calls);
}

TEST_F(NcclFailures, AMessageOfAnotherLengthIsFoundOnTheHost) {
  for (const int peer_offset : {0, 1}) {  // to itself, and to the other
    const auto outcomes = run(2, [&](Rank& rank, Data& data) {
      Buffer buffer = data.on_gpu(rank);
      buffer.count = 10;
      Work sent = rank.world().send(buffer, (rank.rank() + peer_offset) % 2);
      buffer.count = 20;
      buffer.data = data.values.data() + 500;
      rank.world().recv(buffer, (rank.rank() + peer_offset) % 2).wait();
    });
    EXPECT_THAT(outcomes.rethrown, AllOf(HasSubstr("do not agree"), HasSubstr("counts")));
  }
}

TEST_F(NcclFailures, BuffersOfAnotherGpuOrInTwoPlacesAreRefused) {
  const auto elsewhere = run(1, [](Rank& rank, Data& data) {
    Buffer buffer = data.on_gpu(rank);
    buffer.device.index = 3;
    rank.world().all_reduce(buffer, Reduce::kSum).wait();
  });
  EXPECT_THAT(elsewhere.rethrown, HasSubstr("a buffer on GPU 3, but this rank's is GPU 0"));
  const auto mixed = run(1, [](Rank& rank, Data& data) {
    std::vector<float> host(1000);
    rank.world().all_reduce(data.on_gpu(rank), {host.data(), host.size(), DType::kF32}, Reduce::kSum).wait();
  });
  EXPECT_THAT(mixed.rethrown, HasSubstr("one of input and output is on a GPU"));
  const auto algorithm = run(2, [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum, {.algorithm = Algorithm::kRing}).wait();
  });
  EXPECT_THAT(algorithm.rethrown, HasSubstr("on a GPU there is no algorithm 'ring'"));
}

/// The hosts have given the call to their GPUs and wait for nothing; on one GPU it never ends.
TEST_F(NcclFailures, ACallThatAGpuNeverEndsPassesItsDeadlineThoughNobodyWaits) {
  const std::uint64_t aborted = failing_fakes().usage().aborted;
  failing_fakes().misbehave({.rank = 1, .hangs_from = 2});
  const auto outcomes = run(3, [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kMax, {.algorithm = Algorithm::kAuto, .deadline = 1s}).wait();
    call_until_it_fails(rank);
  });
  EXPECT_THAT(outcomes.rethrown,
              AllOf(HasSubstr("all_reduce of 1000 x f32 (max, on a GPU, native), number 1 of group 'world'"),
                    HasSubstr("passed its deadline of 1 s"), HasSubstr("although the GPU was given it"),
                    HasSubstr("had begun it and waited for the others")));
  for (int r = 0; r < 3; ++r) {
    EXPECT_FALSE(outcomes[r].error.empty()) << r;
    EXPECT_LT(outcomes[r].took, kSoon) << r;
  }
  EXPECT_EQ(failing_fakes().usage().aborted - aborted, 3u) << "every rank's kernels must be freed";
}

TEST_F(NcclFailures, AGpuThatIsBusyWithSomethingElseIsToldFromOneThatWaits) {
  const auto outcomes = run(2, [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
    failing_fakes().gpu().synchronise();
    if (rank.rank() == 1) failing_fakes().gpu().fill(data.values.data(), 4, 0, /*after_ms=*/3000);
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum, {.algorithm = Algorithm::kAuto, .deadline = 1s}).wait();
    call_until_it_fails(rank);
  });
  EXPECT_THAT(outcomes.rethrown, HasSubstr("rank 1 had not begun it: work given to that GPU before is not over"));
  EXPECT_THAT(outcomes.rethrown, HasSubstr("rank 0 had begun it and waited for the others"));
}

TEST_F(NcclFailures, ARankThatNeverCallsIsNamed) {
  for (const bool apart : {false, true}) {
    Gate gate;
    const auto outcomes = run(
        3,
        [&](Rank& rank, Data& data) {
          if (rank.rank() == 2) {
            gate.wait();
            return;
          }
          try {
            rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
          } catch (...) {
            gate.open();
            throw;
          }
        },
        300ms, apart);
    EXPECT_THAT(outcomes.rethrown, HasSubstr("rank 2 had not arrived"));
  }
}

TEST_F(NcclFailures, AMessageWithoutAPartnerPassesItsDeadline) {
  Gate gate;
  const auto outcomes = run(
      2,
      [&](Rank& rank, Data& data) {
        if (rank.rank() == 1) return gate.wait();
        try {
          rank.world().recv(data.on_gpu(rank), 1).wait();
        } catch (...) {
          gate.open();
          throw;
        }
      },
      300ms);
  EXPECT_THAT(outcomes.rethrown, HasSubstr("rank 1 has made 0 sends to rank 0"));
}

TEST_F(NcclFailures, RanksThatNcclNeverConnectsPassTheDeadline) {
  const std::uint64_t aborted = failing_fakes().usage().aborted;
  failing_fakes().misbehave({.rank = 1, .init_hangs = true});
  const auto outcomes = run(
      2, [](Rank& rank, Data& data) { rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait(); }, 300ms);
  EXPECT_THAT(outcomes.rethrown, HasSubstr("while waiting for NCCL to connect the ranks"));
  EXPECT_EQ(failing_fakes().usage().aborted - aborted, 2u);
}

TEST_F(NcclFailures, WhatNcclSaysReachesTheCaller) {
  const auto all_reduce = [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
  };
  failing_fakes().misbehave({.rank = 1, .init_result = nccl::kSystemError});
  EXPECT_THAT(run(2, all_reduce).rethrown,
              AllOf(HasSubstr("making an NCCL communicator"), HasSubstr("'unhandled system error' (code 2)")));
  failing_fakes().misbehave({.rank = 0, .call_result = nccl::kInvalidUsage});
  EXPECT_THAT(run(2, all_reduce).rethrown,
              AllOf(HasSubstr("giving a call to NCCL"), HasSubstr("'invalid usage' (code 5)")));
}

/// An error that shows only while the GPU works on the call is found in the background.
TEST_F(NcclFailures, WhatGoesWrongBehindACallIsFoundWithoutWaiting) {
  failing_fakes().misbehave({.rank = 1, .later_result = nccl::kRemoteError});
  const auto outcomes = run(2, [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
    call_until_it_fails(rank);
  });
  EXPECT_THAT(outcomes.rethrown, HasSubstr("'remote error' (code 6)"));
}

/// What NCCL says of a rank that is gone waits until the ranks know why it went.
TEST_F(NcclFailures, ARankThatIsGoneIsNamedThoughNcclNoticesFirst) {
  failing_fakes().misbehave({.rank = 0, .later_result = nccl::kRemoteError});
  const auto outcomes = run(2, [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
    if (rank.rank() == 1) {
      std::this_thread::sleep_for(300ms);
      throw IoError("the disk of this rank is on fire");
    }
    call_until_it_fails(rank);
  });
  EXPECT_THAT(outcomes[0].error, AllOf(HasSubstr("the disk of this rank is on fire"), Not(HasSubstr("remote error"))));
}

/// One rank fails for a reason of its own while the others' GPUs wait in a call for it.
TEST_F(NcclFailures, ARankThatFailsFreesTheGpusThatWaitForIt) {
  const std::uint64_t aborted = failing_fakes().usage().aborted;
  failing_fakes().misbehave({.rank = 2, .hangs_from = 2});
  const auto outcomes = run(3, [](Rank& rank, Data& data) {
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
    rank.world().all_reduce(data.on_gpu(rank), Reduce::kSum).wait();
    if (rank.rank() == 2) throw IoError("the disk of this rank is on fire");
    failing_fakes().gpu().synchronise();  // as a loss that is read on the host: stuck until the call is given up
    call_until_it_fails(rank);
  });
  EXPECT_THAT(outcomes.rethrown, HasSubstr("the disk of this rank is on fire"));
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(outcomes[r].error, HasSubstr("the disk of this rank is on fire"));
    EXPECT_LT(outcomes[r].took, kSoon);
  }
  EXPECT_EQ(failing_fakes().usage().aborted - aborted, 3u);
}

TEST_F(NcclFailures, ALibraryThatIsNotThereIsAnErrorOfTheFirstCall) {
  const auto outcomes = run_to_the_end(
      2,
      [](Rank& rank) {
        rank.world().use_gpu(make_nccl_transport(failing_fakes().gpu().cuda, {.gpu = 0, .library = "/no/such/file"}));
        std::vector<float> data(10);
        rank.world().all_reduce({data.data(), data.size(), DType::kF32, {DeviceKind::kCuda, 0}}, Reduce::kSum).wait();
      },
      test_options());
  EXPECT_THAT(outcomes.rethrown, HasSubstr("/no/such/file does not load"));
}

}  // namespace
}  // namespace trireme::comm
