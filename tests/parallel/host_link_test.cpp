// The way between a device and the host, where both are this machine's memory.
#include "trireme/parallel/host_link.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <thread>

namespace trireme::parallel {
namespace {

TEST(HostLink, AddsUpWhatIsSentAndMetersTheCopies) {
  HostLink link(at::kCPU);
  const at::Tensor sum = at::zeros({1000}, at::kFloat);
  int arrived = 0;
  for (int i = 1; i <= 9; ++i) {  // more than are under way at once
    link.send(at::full({1000}, i, at::kFloat), sum, /*add=*/true, [&] { ++arrived; });
  }
  link.wait_for_sent();
  EXPECT_EQ(arrived, 9);
  EXPECT_TRUE(at::equal(sum, at::full({1000}, 45, at::kFloat)));
  const at::Tensor weights = at::zeros({1000}, at::kFloat);
  link.wait_until_copied(link.upload(sum, weights));
  EXPECT_TRUE(at::equal(weights, sum));
  const QueueReading queue = link.queue();
  EXPECT_EQ(queue.arrivals, 9 + 1);
  EXPECT_EQ(queue.departures, 9 + 1);
  EXPECT_NEAR(queue.occupancy, queue.sojourn, 1e-8);
  EXPECT_GT(queue.blocked, 0);
  // A late update waits on a thread of its own, and training does not stand still.
  std::thread([&] { link.wait_until_copied(link.upload(sum, weights)); }).join();
  EXPECT_EQ(link.queue().blocked, queue.blocked);
  EXPECT_EQ(link.queue().departures, 11);
}

}  // namespace
}  // namespace trireme::parallel
