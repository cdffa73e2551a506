// Which parameters lie side by side, as a value: no ranks, no memory.
#include "trireme/parallel/bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/layout/placing.h"

namespace trireme::parallel {
namespace {

using testing::ElementsAre;

/// Vectors of these lengths on one rank of dp, named a, b, c..., in units of one.
struct Vectors {
  layout::Mesh mesh;
  int rank = 0;
  nn::Params params;
  std::vector<ShardUnit> units;

  Vectors(std::initializer_list<std::int64_t> lengths, int ranks = 1, int rank_of_them = 0)
      : mesh({{"dp", ranks}}), rank(rank_of_them) {
    for (const std::int64_t length : lengths) add(layout::Placing(mesh, rank, next_name(), {length}).placement());
  }
  std::string next_name() const { return std::string(1, static_cast<char>('a' + params.size())); }
  nn::Param& add(layout::Placement placement) {
    nn::Param& param = params.add(std::move(placement), {}, true);
    param.uses = 1;
    units.push_back({.params = {&param}});
    return param;
  }
  BucketPlan plan(const DataParallelOptions& options, const std::vector<std::string>& apart = {}) {
    return plan_buckets(units, params, options, {mesh, rank}, apart);
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

/// It is on its way while backward has hardly begun (PyTorch DDP: 1 MB, then 25).
TEST(BucketPlan, TheFirstBucketMayBeSmaller) {
  Vectors vectors{16, 16, 16, 16, 16, 16};
  const std::int64_t two = 2 * 16 * 4;
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 2 * two, .first_bucket_bytes = 1})),
              ElementsAre("f", "edcb", "a"));
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 2 * two, .first_bucket_bytes = two})), ElementsAre("fe", "dcba"));
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0, .first_bucket_bytes = two})), ElementsAre("fe", "dcba"));
}

TEST(BucketPlan, KeepsApartWhatIsNotCompleteOrNeededTogether) {
  Vectors vectors{16, 16, 16, 16};
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0}, {"c"})), ElementsAre("c", "dba"));
  EXPECT_THAT(names_in(vectors.plan({.zero = 3, .bucket_bytes = 0})), ElementsAre("d", "c", "b", "a"));
  vectors.params.at("b").trainable = false;
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0})), ElementsAre("b", "dca"));
  vectors.units[0].key = vectors.units[1].key = 1;
  EXPECT_THAT(names_in(vectors.plan({.bucket_bytes = 0})), ElementsAre("dc", "b", "a"));
}

TEST(BucketPlan, CutsEveryBucketIntoEqualParts) {
  for (const int ranks : {1, 2, 3, 7}) {
    std::int64_t end = 0, owned = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      Vectors vectors({1, 100, 7}, ranks, rank);
      const BucketPlan plan = vectors.plan({.zero = 1, .data = {"dp"}, .shard = {"dp"}, .bucket_bytes = 0});
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

/// Experts are split along dp%2 and copied along dp/2: their gradients go over fewer ranks than those of dense ones.
TEST(BucketPlan, KeepsApartWhatIsSummedOverOtherRanks) {
  Vectors vectors({16, 16}, 8, 5);
  nn::Param& expert = vectors.add(layout::Placing(vectors.mesh, 5, "e", {64}).split(0, "dp%2").placement());
  vectors.add(layout::Placing(vectors.mesh, 5, "f", {16}).placement());
  const DataParallelOptions options{.zero = 1, .data = {"dp"}, .shard = {"dp%4"}, .bucket_bytes = 0};
  const BucketPlan plan = vectors.plan(options);
  EXPECT_THAT(names_in(plan), ElementsAre("e", "fba")) << "in the order in which they are complete";
  EXPECT_EQ(plan.bucket_of.at(&expert), 0U);
  EXPECT_THAT(plan.buckets[0].axes, ElementsAre("dp/2"));
  EXPECT_THAT(plan.buckets[1].axes, ElementsAre("dp"));
  EXPECT_THAT(plan.buckets[0].shard_axes, ElementsAre("dp/2%2")) << "what dp%4 has of dp/2";
  EXPECT_THAT(plan.buckets[1].shard_axes, ElementsAre("dp%4"));
  EXPECT_EQ((plan.buckets[0].end - plan.buckets[0].begin) * 2, plan.buckets[0].elements);
  EXPECT_EQ((plan.buckets[1].end - plan.buckets[1].begin) * 4, plan.buckets[1].elements);
  EXPECT_EQ(plan.buckets[0].begin, 0) << "5 is 1 0 1: the first of its two";
}

/// Copies that all compute the whole gradient do not add it up.
TEST(BucketPlan, DoesNotSumWhatIsEqual) {
  Vectors vectors({16, 16}, 2);
  vectors.params.at("a").equal_axes = {"dp"};
  const BucketPlan plan = vectors.plan({.data = {"dp"}, .bucket_bytes = 0});
  EXPECT_THAT(names_in(plan), ElementsAre("b", "a"));
  EXPECT_TRUE(plan.buckets[1].axes.empty());
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
