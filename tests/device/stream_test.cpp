// Streams, events and graphs on the stand-in for CUDA, whose streams are threads that work on host memory.
#include "trireme/device/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/comm/fake_nccl/fake_gpu.h"
#include "trireme/base/error.h"

namespace trireme::device {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

const CudaRuntime& fake_cuda() { return fake::trireme_fake_gpu()->cuda; }
void synchronise_stream() { fake::trireme_fake_gpu()->synchronise(); }

TEST(CudaEvent, MakesOneStreamWaitForAnother) {
  const SideStream side(kPriorityNormal, fake_cuda());
  std::atomic<int> written = 0, read = -1;
  fake::enqueue(side.get(), [&] {
    std::this_thread::sleep_for(50ms);
    written = 7;
  });
  CudaEvent event(kEventOrdering, fake_cuda());
  event.record(side.get());
  event.make_wait(fake_cuda().current_stream());
  fake::enqueue(fake_cuda().current_stream(), [&] { read = written.load(); });
  synchronise_stream();
  EXPECT_EQ(read, 7);
}

TEST(CudaEvent, IsReachedWhenItsStreamGetsThere) {
  CudaEvent event(kEventBlockingSync, fake_cuda());
  EXPECT_TRUE(event.is_reached()) << "it was not recorded yet";
  std::atomic<bool> go = false;
  fake::enqueue(fake_cuda().current_stream(), [&] {
    while (!go) std::this_thread::sleep_for(1ms);
  });
  event.record();
  EXPECT_FALSE(event.is_reached());
  go = true;
  event.synchronise();
  EXPECT_TRUE(event.is_reached());
  CudaEvent moved = std::move(event);
  EXPECT_TRUE(moved.is_reached());
}

TEST(CudaEvent, SaysWhatCudaSaid) {
  CudaRuntime broken = fake_cuda();
  broken.create_event = [](CudaEventHandle*, CudaEventKind) -> CudaError { return "out of memory"; };
  try {
    const CudaEvent event(kEventTiming, broken);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), AllOf(HasSubstr("creating an event"), HasSubstr("out of memory")));
  }
}

TEST(SideStream, HasThePriorityThatWasAskedFor) {
  static CudaStreamPriority asked;
  CudaRuntime watched = fake_cuda();
  watched.create_stream = [](CudaStream* stream, CudaStreamPriority priority) {
    asked = priority;
    return fake_cuda().create_stream(stream, priority);
  };
  for (const CudaStreamPriority priority : {kPriorityHighest, kPriorityNormal}) {
    const SideStream stream(priority, watched);
    EXPECT_EQ(asked, priority);
  }
}

/// How often a table of functions began, ended and destroyed graphs; one test at a time.
struct Calls {
  int begun = 0, kept = 0, dropped = 0, destroyed = 0;
};
Calls g_calls;
CudaRuntime counting() {
  g_calls = {};
  CudaRuntime table = fake_cuda();
  table.begin_capture = [](void** graph) {
    ++g_calls.begun;
    return fake_cuda().begin_capture(graph);
  };
  table.end_capture = [](void* graph, bool instantiate) {
    ++(instantiate ? g_calls.kept : g_calls.dropped);
    return fake_cuda().end_capture(graph, instantiate);
  };
  table.destroy_graph = [](void* graph) {
    ++g_calls.destroyed;
    if (graph != nullptr) fake_cuda().destroy_graph(graph);
  };
  return table;
}
bool is_capturing() {
  bool answer = false;
  fake_cuda().is_capturing(fake_cuda().current_stream(), &answer);
  return answer;
}

TEST(CudaGraph, RunsWhenItIsReplayedAndAtEveryReplay) {
  const CudaRuntime cuda = counting();
  std::atomic<int> runs = 0;
  {
    CudaGraph graph(
        [&] {
          EXPECT_TRUE(is_capturing());
          fake::enqueue(cuda.current_stream(), [&] { ++runs; });
        },
        cuda);
    EXPECT_FALSE(is_capturing());
    synchronise_stream();
    EXPECT_EQ(runs, 0);
    for (int replays = 1; replays <= 3; ++replays) {
      graph.replay();
      synchronise_stream();
      EXPECT_EQ(runs, replays);
    }
  }
  EXPECT_EQ(g_calls.kept, 1);
  EXPECT_EQ(g_calls.destroyed, 1);
}

TEST(CudaGraph, CapturesStreamsThatJoinByEvents) {
  const SideStream side(kPriorityNormal, fake_cuda());
  CudaEvent fork(kEventOrdering, fake_cuda()), join(kEventOrdering, fake_cuda());
  std::atomic<int> runs = 0;
  CudaGraph graph(
      [&] {
        fork.record();
        fork.make_wait(side.get());
        fake::enqueue(side.get(), [&] { ++runs; });
        join.record(side.get());
        join.make_wait(fake_cuda().current_stream());
      },
      fake_cuda());
  EXPECT_EQ(runs, 0);
  graph.replay();
  synchronise_stream();
  EXPECT_EQ(runs, 1);
}

TEST(CudaGraph, ABodyThatThrowsEndsTheCapture) {
  const CudaRuntime cuda = counting();
  EXPECT_THROW(CudaGraph([] { throw std::runtime_error("no"); }, cuda), std::runtime_error);
  EXPECT_FALSE(is_capturing());
  EXPECT_EQ(g_calls.kept, 0);
  EXPECT_EQ(g_calls.dropped, 1);
  EXPECT_EQ(g_calls.destroyed, 1);
}

TEST(CudaGraph, ACaptureThatFailsLeavesNothingBehind) {
  CudaRuntime cuda = counting();
  cuda.end_capture = [](void* graph, bool) -> CudaError {
    fake_cuda().end_capture(graph, false);
    return "operation not permitted when stream is capturing";
  };
  try {
    const CudaGraph graph([] {}, cuda);
    ADD_FAILURE() << "captured";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), AllOf(HasSubstr("capturing a CUDA graph"), HasSubstr("operation not permitted")));
  }
  EXPECT_EQ(g_calls.destroyed, 1);

  cuda = counting();
  cuda.begin_capture = [](void**) -> CudaError { return "out of memory"; };
  bool ran = false;
  EXPECT_THROW(CudaGraph([&] { ran = true; }, cuda), Error);
  EXPECT_FALSE(ran);
  EXPECT_EQ(g_calls.dropped, 0) << "nothing had begun";
  EXPECT_EQ(g_calls.destroyed, 1);
}

}  // namespace
}  // namespace trireme::device
