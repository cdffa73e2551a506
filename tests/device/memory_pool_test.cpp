#include "trireme/device/memory_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::device {
namespace {

using testing::HasSubstr;

TEST(MemoryPool, CountsEachUseAndItsPeak) {
  MemoryPool pool("device");
  pool.set(MemoryUse::kParameters, 1000);
  pool.add(MemoryUse::kActivations, 500);
  pool.add(MemoryUse::kActivations, -200);
  pool.add(MemoryUse::kBuckets, 100);
  EXPECT_EQ(pool.bytes_of(MemoryUse::kActivations), 300);
  EXPECT_EQ(pool.peak_of(MemoryUse::kActivations), 500);
  EXPECT_EQ(pool.bytes(), 1400);
  EXPECT_EQ(pool.peak(), 1500);  // not 1600: the bucket came when activations had gone
  pool.set(MemoryUse::kParameters, 10);
  EXPECT_EQ(pool.bytes(), 410);
  EXPECT_EQ(pool.peak_of(MemoryUse::kParameters), 1000);
}

TEST(MemoryPool, RefusesWhatPassesTheLimitWithATableAndAHint) {
  MemoryPool pool("device", 1'000'000'000);
  pool.set(MemoryUse::kParameters, 200'000'000);
  pool.add(MemoryUse::kOptimizer, 800'000'000);  // exactly full
  try {
    pool.add(MemoryUse::kActivations, 1);
    FAIL() << "one byte over the limit";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("device memory for activations do not fit"));
    EXPECT_THAT(error.message(), HasSubstr("optimizer"));
    EXPECT_THAT(error.message(), HasSubstr("0.800000 GB"));
    EXPECT_THAT(error.hint(), HasSubstr("layout.offload = \"optimizer\""));  // the largest is what must go
  }
}

TEST(MemoryPool, GivingBackIsAlwaysAllowedButNotMoreThanThereIs) {
  MemoryPool pool("device", 10);
  EXPECT_THROW(pool.add(MemoryUse::kOther, 11), ConfigError);
  EXPECT_NO_THROW(pool.add(MemoryUse::kOther, -5));
  EXPECT_THROW(pool.add(MemoryUse::kBuckets, -1), InternalError);
}

}  // namespace
}  // namespace trireme::device
