// Which parameters lie side by side, as a value: no ranks, no memory.
#include "trireme/parallel/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::parallel {
namespace {

using testing::ElementsAre;

/// Vectors of these lengths, named a, b, c..., in units of one.
struct Vectors {
  nn::Params params;
  std::vector<ShardUnit> units;

  explicit Vectors(std::initializer_list<std::int64_t> lengths) {
    for (const std::int64_t length : lengths) {
      nn::Param& param = params.add(std::string(1, static_cast<char>('a' + params.size())), {length}, {}, true);
      param.uses = 1;
      units.push_back({.params = {&param}});
    }
  }
  BucketPlan plan(const DataParallelOptions& options, BucketShare share = {},
                  const std::vector<std::string>& apart = {}) {
    return plan_buckets(units, params, options, share, apart);
  }
};

std::string names_in(const Bucket& bucket) {
  std::string names;
  for (const BucketMember& member : bucket.members) names += member.param->name;
  return names;
}

std::vector<std::string> names_in(const BucketPlan& plan) {
  std::vector<std::string> all;
  for (const Bucket& bucket : plan.buckets) all.push_back(names_in(bucket));
  return all;
}

TEST(BucketPlan, FillsBucketsInTheOrderOfBackward) {
  Vectors vectors{16, 16, 16, 16, 16};
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0})), ElementsAre("edcba"));
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 2 * 16 * 4})), ElementsAre("ed", "cb", "a"));
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 1})), ElementsAre("e", "d", "c", "b", "a"));
  const nn::Precision doubles = nn::Precision::kFp64;
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 2 * 16 * 4, .precision = doubles})),
              ElementsAre("e", "d", "c", "b", "a"));
}

TEST(BucketPlan, KeepsApartWhatIsNotCompleteOrNeededTogether) {
  Vectors vectors{16, 16, 16, 16};
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0}, {}, {"c"})), ElementsAre("dba", "c"));
  EXPECT_THAT(names_in(vectors.plan({.zero = 3, .bucket_bytes = 0})), ElementsAre("d", "c", "b", "a"));
  vectors.params.at("b").trainable = false;
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0})), ElementsAre("dca", "b"));
  vectors.units[0].key = vectors.units[1].key = 1;
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0})), ElementsAre("dc", "b", "a"));
}

TEST(BucketPlan, CutsEveryBucketIntoEqualParts) {
  Vectors vectors{1, 100, 7};
  for (const int ranks : {1, 2, 3, 7}) {
    std::int64_t end = 0, owned = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const BucketPlan plan = vectors.plan({.zero = 1, .bucket_bytes = 0}, {.count = ranks, .rank = rank});
      ASSERT_EQ(plan.buckets.size(), 1U);
      const Bucket& bucket = plan.buckets[0];
      EXPECT_EQ(bucket.begin, end);
      EXPECT_EQ((bucket.end - bucket.begin) * ranks, bucket.elements);
      end = bucket.end;
      for (const BucketMember& member : bucket.members) {
        EXPECT_EQ(member.offset % 16, 0);
        const layout::Range range = owned_range(bucket, member);
        owned += range.end - range.begin;
      }
    }
    EXPECT_EQ(owned, 108) << "every number has one owner";
  }
}

TEST(BucketPlan, KnowsWhatEachUnitNeeds) {
  Vectors vectors{16, 16, 16};
  vectors.units.push_back({.params = {&vectors.params.at("a")}});  // tied: belongs to the first unit
  const BucketPlan plan = vectors.plan({.zero = 3});
  EXPECT_THAT(names_in(plan), ElementsAre("c", "b", "a"));
  EXPECT_THAT(plan.unit_buckets, ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0), ElementsAre(2)));
  EXPECT_EQ(plan.bucket_of.at(&vectors.params.at("b")), 1U);
}

}  // namespace
}  // namespace trireme::parallel
