// Which GPU a process takes, and when two that share one pretend to be on different hosts.
#include "trireme/comm/nccl/nccl_transport.h"

#include <gtest/gtest.h>

#include <vector>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

TEST(GpuPlace, RanksOfANodeTakeItsGpusInTurn) {
  EXPECT_EQ(choose_gpu(0, 8, {}), 0);
  EXPECT_EQ(choose_gpu(5, 8, {}), 5);
  EXPECT_EQ(choose_gpu(5, 2, {}), 1);
  EXPECT_EQ(choose_gpu(3, 1, {}), 0);  // each process sees one GPU only, or all share one
}

TEST(GpuPlace, TheUserMayChoose) {
  EXPECT_EQ(choose_gpu(5, 8, 2), 2);
  try {
    choose_gpu(0, 2, 2);
    FAIL() << "a GPU that is not there was taken";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("TRIREME_GPU is 2, but this process sees 2 GPUs"), std::string::npos);
    EXPECT_NE(error.hint().find("0 to 1"), std::string::npos);
  }
}

TEST(GpuPlace, OnlyRanksThatShareAGpuPretendToBeApart) {
  const GpuIdentity a{'a'}, b{'b'}, c{'c'};
  const std::vector<GpuIdentity> own = {a, b, c}, shared = {a, b, a, c};
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(pretended_host(own, r)) << r;
  ASSERT_TRUE(pretended_host(shared, 0));
  ASSERT_TRUE(pretended_host(shared, 2));
  EXPECT_NE(*pretended_host(shared, 0), *pretended_host(shared, 2));
  EXPECT_FALSE(pretended_host(shared, 1));
  EXPECT_FALSE(pretended_host(shared, 3));
}

}  // namespace
}  // namespace trireme::comm
