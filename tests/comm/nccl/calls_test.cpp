// Calls on GPU memory of ranks that are processes, with stand-ins for CUDA and NCCL: results, order, sharing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/comm/fake_nccl/fake_ranks.h"
#include "tests/comm/thread_ranks.h"
#include "trireme/comm/transports/emulated.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

#if defined(TRIREME_TSAN)
constexpr std::uint64_t kOneIn = 40, kPrograms = 4;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kOneIn = 20, kPrograms = 6;
#else
constexpr std::uint64_t kOneIn = 2, kPrograms = 20;
#endif

const fake::Library& fakes() {
  static const fake::Library library(TRIREME_FAKE_NCCL);
  return library;
}

/// With memory in common, by which the hosts agree; or without, as on several nodes.
enum class Hosts { kOneNode, kApart };

RanksOptions options_of(Hosts hosts) {
  RanksOptions options = test_options();
  if (hosts == Hosts::kApart) {
    options.wrap = [](std::unique_ptr<Transport> inner) { return make_emulated_transport(std::move(inner), {}); };
  }
  return options;
}

Runner with_gpus(Hosts hosts) {
  fakes().misbehave({});
  return [options = options_of(hosts)](int ranks, const std::function<void(Rank&)>& body) {
    run_ranks(
        ranks,
        [&](Rank& rank) {
          fakes().give_gpu(rank);
          body(rank);
          fakes().gpu().synchronise();
        },
        options);
  };
}

Buffer on_gpu(const Rank& rank, std::vector<float>& values) {
  return {values.data(), values.size(), DType::kF32, {DeviceKind::kCuda, rank.rank()}};
}

class NcclCalls : public testing::TestWithParam<std::tuple<Hosts, int>> {
 protected:
  std::string check(const Check& check) const {
    return check_on(with_gpus(std::get<0>(GetParam())), std::get<1>(GetParam()), check);
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCalls,
                         testing::Combine(testing::Values(Hosts::kOneNode, Hosts::kApart), testing::Values(1, 2, 3, 5)),
                         [](const auto& row) {
                           return std::string(std::get<0>(row.param) == Hosts::kOneNode ? "OneNode" : "Apart") +
                                  std::to_string(std::get<1>(row.param));
                         });

TEST_P(NcclCalls, EqualTheReference) {
  EXPECT_EQ(check([](Rank& self) {
              const Sweep sweep{.counts = {0, 1, 7, 1300},
                                .large_one_in = 2 * kOneIn,
                                .small_one_in = kOneIn,
                                .place = fakes().place(self)};
              return check_collectives(self.world(), sweep);
            }),
            "");
}

TEST_P(NcclCalls, MessagesArriveInOrderWhateverTheirTags) {
  EXPECT_EQ(check([](Rank& self) { return check_messages(self.world(), 3, fakes().place(self)); }), "");
}

TEST_P(NcclCalls, MixWithCallsOfOtherGroupsAndOfTheHost) {
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    EXPECT_EQ(check([&](Rank& self) { return check_program(self, seed, fakes().place(self)); }), "") << "seed " << seed;
  }
}

TEST_P(NcclCalls, AReceivePostedFirstMayBeSatisfiedLast) {
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    EXPECT_EQ(check([&](Rank& self) { return check_early_receive(self, seed, fakes().place(self)); }), "");
  }
}

/// The data is made by something slow that the stream was given before the call, and the result is read by something
/// that it was given after: no thread waits for the GPU in between.
TEST(NcclStreams, CallsComeInTheOrderOfTheCallersStream) {
  with_gpus(Hosts::kOneNode)(2, [](Rank& rank) {
    std::vector<unsigned char> data(1000), result(1000);
    const Buffer buffer{data.data(), data.size(), DType::kU8, {DeviceKind::kCuda, rank.rank()}};
    rank.world().all_reduce(buffer, Reduce::kSum).wait();  // makes the communicator
    const auto before = std::chrono::steady_clock::now();
    fakes().gpu().fill(data.data(), data.size(), rank.rank() + 1, /*after_ms=*/300);
    Work work = rank.world().all_reduce(buffer, Reduce::kSum);
    work.wait();
    fakes().gpu().copy(result.data(), data.data(), data.size());
    EXPECT_LT(std::chrono::steady_clock::now() - before, 250ms) << "the host waited for the GPU";
    fakes().gpu().synchronise();
    EXPECT_EQ(result, std::vector<unsigned char>(1000, 3));
  });
}

/// What the stream is given between a call and wait() does not wait for the call.
TEST(NcclStreams, WorkBetweenACallAndItsWaitOverlapsIt) {
  with_gpus(Hosts::kOneNode)(2, [](Rank& rank) {
    std::vector<float> data(10, 1.0f);
    std::vector<unsigned char> other(1);
    rank.world().all_reduce(on_gpu(rank, data), Reduce::kSum).wait();
    fakes().gpu().synchronise();
    rank.world().barrier().wait();
    if (rank.rank() == 0) fakes().misbehave({.slow_ms = 400});
    rank.world().barrier().wait();
    const auto before = std::chrono::steady_clock::now();
    Work work = rank.world().all_reduce(on_gpu(rank, data), Reduce::kSum);
    fakes().gpu().fill(other.data(), 1, 1, 0);
    fakes().gpu().synchronise();
    EXPECT_LT(std::chrono::steady_clock::now() - before, 300ms);
    work.wait();
    fakes().gpu().synchronise();
    EXPECT_GE(std::chrono::steady_clock::now() - before, 400ms);
    EXPECT_EQ(data[0], 4.0f);
  });
}

TEST(NcclCommunicators, BelongToListsOfRanksAndAreClosedInTheEnd) {
  const fake::Usage before = fakes().usage();
  with_gpus(Hosts::kOneNode)(3, [](Rank& rank) {
    std::vector<float> data(10, 1.0f);
    for (int i = 0; i < 3; ++i) {
      const auto all = rank.world().split(0, rank.rank(), "all");
      all->all_reduce(on_gpu(rank, data), Reduce::kSum).wait();
      fakes().gpu().synchronise();
    }
    EXPECT_EQ(data[5], 27.0f);
    const auto turned = rank.world().split(0, -rank.rank(), "turned");
    turned->all_reduce(on_gpu(rank, data), Reduce::kSum).wait();
    const auto unused = rank.world().split(rank.rank() % 2, 0, "unused");
    fakes().gpu().synchronise();
  });
  const fake::Usage after = fakes().usage();
  EXPECT_EQ(after.communicators - before.communicators, 2u * 3);  // the world's ranks, and them turned round
  EXPECT_EQ(after.destroyed - before.destroyed, 2u * 3);
  EXPECT_EQ(after.aborted, before.aborted);
}

TEST(NcclMemory, IsToldToNcclWhileItIsKept) {
  const fake::Usage before = fakes().usage();
  with_gpus(Hosts::kOneNode)(2, [](Rank& rank) {
    std::vector<float> early(10, 1.0f), late(10, 1.0f);
    const RegisteredBuffer first = rank.world().register_buffer(on_gpu(rank, early));  // before there is a communicator
    rank.world().all_reduce(on_gpu(rank, early), Reduce::kSum).wait();
    {
      const RegisteredBuffer second = rank.world().register_buffer(on_gpu(rank, late));
      rank.world().all_reduce(on_gpu(rank, late), Reduce::kSum).wait();
      fakes().gpu().synchronise();
    }
    const RegisteredBuffer nothing = rank.world().register_buffer({late.data(), late.size(), DType::kF32});
    EXPECT_EQ(late[3], 2.0f);
  });
  const fake::Usage after = fakes().usage();
  EXPECT_EQ(after.registered - before.registered, 4u);
  EXPECT_EQ(after.deregistered - before.deregistered, 4u);
}

TEST(NcclCounters, CountACallOnce) {
  with_gpus(Hosts::kOneNode)(2, [](Rank& rank) {
    std::vector<float> data(100, 1.0f);
    for (int i = 0; i < 5; ++i) rank.world().all_reduce(on_gpu(rank, data), Reduce::kSum).wait();
    fakes().gpu().synchronise();
    const auto group = rank.world().split(0, 0, "later");  // its calls are on the host
    const Counters counters = rank.world().counters(Op::kAllReduce);
    EXPECT_EQ(counters.calls, 5u);
    EXPECT_EQ(counters.bytes, 5u * 400);
    EXPECT_GT(counters.sent_bytes, 0u);
  });
}

/// The flight recorder has calls as done once the GPU is through with them, not before.
TEST(NcclRecorder, TellsWhatTheGpuWasGivenFromWhatItHasDone) {
  with_gpus(Hosts::kOneNode)(2, [](Rank& rank) {
    std::vector<float> data(10, 1.0f);
    rank.world().all_reduce(on_gpu(rank, data), Reduce::kSum).wait();
    fakes().gpu().synchronise();
    rank.world().barrier().wait();
    if (rank.rank() == 0) fakes().misbehave({.slow_ms = 300});
    rank.world().barrier().wait();
    rank.world().all_reduce(on_gpu(rank, data), Reduce::kSum).wait();
    EXPECT_EQ(rank.recorder().entries().back().state, Recorder::State::kGiven);
    const std::string json = rank.recorder().to_json("why");
    EXPECT_THAT(json, testing::HasSubstr("given to the GPU"));
    EXPECT_THAT(json, testing::HasSubstr("\"memory\": \"gpu\""));
    fakes().gpu().synchronise();
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (rank.recorder().entries().back().state != Recorder::State::kDone) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(1ms);
    }
  });
}

}  // namespace
}  // namespace trireme::comm
