#include "trireme/device/copy.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/comm/fake_nccl/fake_gpu.h"
#include "trireme/base/error.h"

namespace trireme::device {
namespace {

using namespace std::chrono_literals;

TEST(HostCopies, GoOutAndComeBackOnTheCpu) {
  const auto copies = HostCopies::make(at::kCPU);
  const at::Tensor x = at::arange(64 * 33, at::kFloat).reshape({64, 33}), kept = x.clone();
  const at::Tensor away = copies->empty_on_host(x);
  const HostCopies::Copy out = copies->to_host(x, away);
  copies->make_stream_wait(out);
  at::Tensor(x).zero_();
  const at::Tensor back = copies->empty_on_device(away);
  const HostCopies::Copy in = copies->to_device(away, back);
  copies->wait(in);
  EXPECT_TRUE(copies->is_done(out) && copies->is_done(in) && copies->is_done(0));
  EXPECT_TRUE(at::equal(back, kept));
  EXPECT_EQ(copies->pinned_bytes(), 0);
}

// --- on streams: those of the stand-in for CUDA, whose device memory is this machine's

const fake::Gpu& gpu() { return *fake::trireme_fake_gpu(); }
/// Every copy takes a while.
const CudaRuntime& slow() {
  static const CudaRuntime table = [] {
    CudaRuntime cuda = gpu().cuda;
    cuda.memcpy_async = [](void* to, const void* from, std::size_t bytes, CudaStream stream) {
      fake::enqueue(stream, [] { std::this_thread::sleep_for(30ms); });
      return gpu().cuda.memcpy_async(to, from, bytes, stream);
    };
    return cuda;
  }();
  return table;
}
at::Tensor bytes(int value) { return at::full({1000}, value, at::kByte); }
/// On the current stream, in order.
void fill(const at::Tensor& tensor, int value, int after_ms = 0) {
  gpu().fill(tensor.mutable_data_ptr(), tensor.nbytes(), value, after_ms);
}

TEST(StreamCopies, BeginAfterWhatTheCurrentStreamWasGiven) {
  const auto copies = HostCopies::make_on_streams(at::kCPU, gpu().cuda);
  const at::Tensor x = bytes(1), away = copies->empty_on_host(x);
  fill(x, 2, /*after_ms=*/50);
  copies->wait(copies->to_host(x, away));
  EXPECT_TRUE(at::equal(away, bytes(2)));
}

TEST(StreamCopies, TheCurrentStreamWaitsWhereItIsMadeTo) {
  const auto copies = HostCopies::make_on_streams(at::kCPU, slow());
  const at::Tensor x = bytes(1), away = copies->empty_on_host(x);
  const HostCopies::Copy out = copies->to_host(x, away);
  copies->make_stream_wait(out);
  fill(x, 9);  // not before the copy has read it
  copies->wait(out);
  EXPECT_TRUE(at::equal(away, bytes(1)));

  const at::Tensor back = copies->empty_on_device(away), seen = bytes(0);
  const HostCopies::Copy in = copies->to_device(away, back);
  copies->make_stream_wait(in);
  gpu().copy(seen.mutable_data_ptr(), back.const_data_ptr(), back.nbytes());  // not before the copy has written it
  gpu().synchronise();
  EXPECT_TRUE(at::equal(seen, bytes(1)));
  EXPECT_TRUE(at::equal(x, bytes(9)));
}

TEST(StreamCopies, AreDoneWhenTheirStreamSaysSo) {
  const auto copies = HostCopies::make_on_streams(at::kCPU, slow());
  const at::Tensor x = bytes(3), away = copies->empty_on_host(x);
  const HostCopies::Copy out = copies->to_host(x, away);
  EXPECT_FALSE(copies->is_done(out));
  std::thread([&] { copies->wait(out); }).join();  // any thread may wait
  EXPECT_TRUE(copies->is_done(out) && copies->is_done(0));
}

/// Little's law: what is counted thing by thing is what is integrated over time, where nothing is left.
void expect_empty_queue(const QueueReading& queue, std::int64_t copies) {
  EXPECT_EQ(queue.arrivals, copies);
  EXPECT_EQ(queue.departures, copies);
  EXPECT_NEAR(queue.occupancy, queue.sojourn, 1e-8);
}

TEST(StreamCopies, AreMeteredUntilTheyAreFoundOver) {
  const auto copies = HostCopies::make_on_streams(at::kCPU, slow());
  const at::Tensor x = bytes(1), y = bytes(2), away = copies->empty_on_host(x), other = copies->empty_on_host(y);
  copies->to_host(x, away);
  const HostCopies::Copy last = copies->to_host(y, other);
  copies->wait(last);
  const QueueReading queue = copies->queue();
  expect_empty_queue(queue, 2);
  EXPECT_GE(queue.sojourn, 0.030 + 0.030) << "each takes that; mostly the second waits for the first, too";
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(copies->queue().occupancy, queue.occupancy) << "nothing is under way";
  // Nobody waits for this one: asking for the reading finds it over.
  copies->to_device(away, x);
  for (int i = 0; i < 1000 && copies->queue().departures < 3; ++i) std::this_thread::sleep_for(5ms);
  expect_empty_queue(copies->queue(), 3);
}

TEST(HostCopies, AreMeteredOnTheCpuToo) {
  const auto copies = HostCopies::make(at::kCPU);
  const at::Tensor x = at::full({1 << 16}, 3, at::kFloat), away = copies->empty_on_host(x);
  HostCopies::Copy last = 0;
  for (int i = 0; i < 10; ++i) last = copies->to_host(x, away);
  copies->wait(last);
  expect_empty_queue(copies->queue(), 10);
  EXPECT_GT(copies->queue().sojourn, 0);
}

TEST(StreamCopies, PutTogetherWhatHasGaps) {
  const auto copies = HostCopies::make_on_streams(at::kCPU, gpu().cuda);
  const at::Tensor all = at::arange(24, at::kInt).reshape({6, 4}), columns = all.narrow(1, 1, 2);
  const at::Tensor away = copies->empty_on_host(columns);
  copies->wait(copies->to_host(columns, away));
  EXPECT_TRUE(at::equal(away, columns));
  EXPECT_THROW(copies->to_host(all, away), Error) << "another size";
}

TEST(StreamCopies, UsePinnedMemoryAgainAndLetTensorsOutliveThem) {
  at::Tensor away;
  {
    const auto copies = HostCopies::make_on_streams(at::kCPU, slow());
    for (int turn = 0; turn < 5; ++turn) {
      const at::Tensor x = bytes(turn);
      away = at::Tensor();  // given back
      away = copies->empty_on_host(x);
      copies->wait(copies->to_host(x, away));
      EXPECT_EQ(copies->pinned_bytes(), 1000) << turn;
    }
    const at::Tensor another = copies->empty_on_host(bytes(0));
    EXPECT_EQ(copies->pinned_bytes(), 2000);
    copies->to_host(bytes(8), away);  // the copies' end waits for it
  }
  EXPECT_TRUE(at::equal(away, bytes(8)));
}

}  // namespace
}  // namespace trireme::device
