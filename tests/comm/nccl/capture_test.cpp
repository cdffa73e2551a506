// Calls that are captured into a CUDA graph: replays compute, are counted, stand in the flight recorder and have
// deadlines, although no call is made on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tests/comm/fake_nccl/fake_ranks.h"
#include "tests/comm/outcomes.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const fake::Library& captured_fakes() {
  static const fake::Library library(TRIREME_FAKE_NCCL);
  return library;
}

const device::CudaRuntime& cuda() { return captured_fakes().gpu().cuda; }

/// Three numbers on a pretended GPU, and the graph that adds them up over the ranks, twice, with a message between.
struct Step {
  explicit Step(Rank& rank) : rank_(rank), values(3), received(3) {}
  ~Step() {
    if (graph != nullptr) cuda().destroy_graph(graph);
  }
  Buffer buffer(std::vector<float>& of) const {
    return {of.data(), of.size(), DType::kF32, {DeviceKind::kCuda, rank_.rank()}};
  }
  void body(std::chrono::milliseconds deadline = 60s) {
    const CallOptions options{.algorithm = Algorithm::kAuto, .deadline = deadline};
    rank_.world().all_reduce(buffer(values), Reduce::kSum, options).wait();
    const int next = (rank_.rank() + 1) % rank_.ranks(), before = (rank_.rank() + rank_.ranks() - 1) % rank_.ranks();
    Work received_work = rank_.world().recv(buffer(received), before, 0, options),
         sent = rank_.world().send(buffer(values), next, 0, options);
    sent.wait();
    received_work.wait();
    rank_.world().all_reduce(buffer(received), Reduce::kMax, options).wait();
  }
  void capture(std::chrono::milliseconds deadline = 60s) {
    calls.emplace(rank_.world(), [&] {
      begin();
      body(deadline);
      end();
    });
  }
  void begin() { EXPECT_EQ(cuda().begin_capture(&graph), nullptr); }
  void end(bool instantiate = true) { EXPECT_EQ(cuda().end_capture(graph, instantiate), nullptr); }
  void replay() {
    calls->replay([&] { EXPECT_EQ(cuda().launch_graph(graph, cuda().current_stream()), nullptr); });
  }

  Rank& rank_;
  std::vector<float> values, received;
  void* graph = nullptr;
  std::optional<CapturedCollectives> calls;
};

class NcclCapture : public testing::Test {
 protected:
  void SetUp() override { captured_fakes().misbehave({}); }
  void TearDown() override { captured_fakes().misbehave({}); }
};

TEST_F(NcclCapture, ReplaysComputeAndAreFollowed) {
  run_ranks(
      3,
      [](Rank& rank) {
        captured_fakes().give_gpu(rank);
        Step step(rank);
        step.body();  // makes the communicators
        captured_fakes().gpu().synchronise();
        step.capture();
        const std::size_t before = rank.recorder().entries().size();
        for (float turn = 1; turn <= 5; ++turn) {
          std::ranges::fill(step.values, turn);
          step.replay();
          if (turn == 3) {  // calls between replays keep their place
            std::vector<float> other(3, 1.0f);
            rank.world().all_reduce(step.buffer(other), Reduce::kSum).wait();
            captured_fakes().gpu().synchronise();
            EXPECT_EQ(other[2], 3.0f);
          }
          captured_fakes().gpu().synchronise();
          EXPECT_EQ(step.received[1], 3 * turn);
        }
        // Four calls in every replay, and the one between.
        EXPECT_EQ(rank.recorder().entries().size() - before, 5 * 4 + 1u);
        const auto until = std::chrono::steady_clock::now() + kSoon;
        const auto open = [&] {
          return std::ranges::any_of(rank.recorder().entries(), [](const Recorder::Entry& entry) {
            return entry.state != Recorder::State::kDone;
          });
        };
        while (open()) {
          ASSERT_LT(std::chrono::steady_clock::now(), until);
          std::this_thread::sleep_for(1ms);
        }
      },
      test_options());
}

/// Two threads must not add to one graph: NCCL has taken a call before its caller captures anything else.
TEST_F(NcclCapture, ACallIsInTheGraphWhenItReturns) {
  run_ranks(
      2,
      [](Rank& rank) {
        captured_fakes().give_gpu(rank);
        Step step(rank);
        step.body();
        captured_fakes().gpu().synchronise();
        rank.world().barrier().wait();
        CapturedCollectives calls(rank.world(), [&] {
          step.begin();
          std::vector<Work> works;
          std::vector<std::vector<float>> buffers(20, std::vector<float>(3));
          for (std::vector<float>& one : buffers) {
            const std::uint64_t before = captured_fakes().usage().calls;
            works.push_back(rank.world().all_reduce(step.buffer(one), Reduce::kSum));
            EXPECT_GT(captured_fakes().usage().calls, before);  // this rank's, at least
          }
          for (Work& work : works) work.wait();
          step.end();
        });
      },
      test_options());
}

/// Which stream waited for what, of one rank.
struct Waits {
  std::mutex mutex;
  std::map<device::CudaEventHandle, device::CudaStream> recorded;          // where an event was last recorded
  std::vector<std::pair<device::CudaStream, device::CudaStream>> between;  // who waited, and for whom
};
Waits& waits() {
  static Waits all;
  return all;
}
const device::CudaRuntime& watched_runtime() {
  static const device::CudaRuntime table = [] {
    device::CudaRuntime watched = cuda();
    watched.record_event = [](device::CudaEventHandle event, device::CudaStream stream) {
      const std::lock_guard lock(waits().mutex);
      waits().recorded[event] = stream;
      return cuda().record_event(event, stream);
    };
    watched.stream_wait_event = [](device::CudaStream stream, device::CudaEventHandle event) {
      const std::lock_guard lock(waits().mutex);
      waits().between.emplace_back(stream, waits().recorded[event]);
      return cuda().stream_wait_event(stream, event);
    };
    return watched;
  }();
  return table;
}

/// A GPU may run branches of a graph in any order, and two calls that wait for different ranks could block each
/// other.
TEST_F(NcclCapture, CallsOfDifferentRanksComeOneAfterTheOther) {
  run_ranks(
      4,
      [](Rank& rank) {
        const bool watched = rank.rank() == 0;
        if (watched) {
          rank.world().use_gpu(make_nccl_transport(watched_runtime(), {.gpu = 0, .library = captured_fakes().path()}));
        } else {
          captured_fakes().give_gpu(rank);
        }
        const auto halves = rank.world().split(rank.rank() % 2, 0, "halves");
        Step step(rank);
        const auto body = [&] {
          Work first = rank.world().all_reduce(step.buffer(step.values), Reduce::kSum);
          Work second = halves->all_reduce(step.buffer(step.received), Reduce::kSum);
          first.wait();
          second.wait();
          rank.world().all_reduce(step.buffer(step.received), Reduce::kSum).wait();
        };
        body();
        captured_fakes().gpu().synchronise();
        if (watched) {
          const std::lock_guard lock(waits().mutex);
          waits().between.clear();
        }
        rank.world().barrier().wait();
        step.calls.emplace(rank.world(), [&] {
          step.begin();
          body();
          step.end();
        });
        if (watched) {
          const std::lock_guard lock(waits().mutex);
          const device::CudaStream own = cuda().current_stream();
          std::vector<device::CudaStream> chain;  // streams of communicators that waited for another one's
          for (const auto& [waiting, other] : waits().between) {
            if (waiting != own && other != own) chain.push_back(waiting);
          }
          EXPECT_EQ(chain.size(), 2u);  // the second call for the first, the third for the second
          EXPECT_EQ(std::set(chain.begin(), chain.end()).size(), 2u);
        }
        for (float turn = 1; turn <= 3; ++turn) {
          std::ranges::fill(step.values, turn);
          std::ranges::fill(step.received, turn);
          step.replay();
          captured_fakes().gpu().synchronise();
          EXPECT_EQ(step.values[1], 4 * turn);
          EXPECT_EQ(step.received[1], 2 * 4 * turn);
        }
      },
      test_options());
}

TEST_F(NcclCapture, ACallOfAReplayThatNeverEndsPassesItsDeadline) {
  const auto outcomes = run_to_the_end(
      2,
      [](Rank& rank) {
        captured_fakes().give_gpu(rank);
        Step step(rank);
        step.body();
        captured_fakes().gpu().synchronise();
        step.capture(2s);
        step.replay();
        captured_fakes().gpu().synchronise();
        rank.world().barrier().wait();
        if (rank.rank() == 0) captured_fakes().misbehave({.rank = 1, .hangs_from = 1});
        rank.world().barrier().wait();
        step.replay();
        captured_fakes().gpu().synchronise();  // nothing is called meanwhile
        const auto until = std::chrono::steady_clock::now() + kSoon;
        while (std::chrono::steady_clock::now() < until) {
          rank.world().barrier().wait();
          std::this_thread::sleep_for(5ms);
        }
      },
      test_options());
  EXPECT_THAT(outcomes.rethrown, AllOf(HasSubstr("all_reduce of 3 x f32 (sum, on a GPU, native)"),
                                       HasSubstr("passed its deadline of 2 s"), HasSubstr("the GPU was given it")));
  EXPECT_LT(outcomes[0].took, kSoon);
  EXPECT_LT(outcomes[1].took, kSoon);
}

TEST_F(NcclCapture, ACaptureThatNobodyFollowsIsRefused) {
  const auto outcomes = run_to_the_end(
      2,
      [](Rank& rank) {
        captured_fakes().give_gpu(rank);
        Step step(rank);
        step.body();
        captured_fakes().gpu().synchronise();
        step.begin();
        try {
          step.body();
        } catch (...) {
          step.end(/*instantiate=*/false);
          throw;
        }
      },
      test_options());
  EXPECT_THAT(outcomes.rethrown, HasSubstr("whose replays nobody follows"));
}

TEST_F(NcclCapture, RanksThatHaveNotMetCannotBeCaptured) {
  const auto outcomes = run_to_the_end(
      2,
      [](Rank& rank) {
        captured_fakes().give_gpu(rank);
        Step step(rank);
        try {
          step.capture();
        } catch (...) {
          step.end(/*instantiate=*/false);
          throw;
        }
      },
      test_options());
  EXPECT_THAT(outcomes.rethrown, HasSubstr("cannot be captured"));
}

}  // namespace
}  // namespace trireme::comm
