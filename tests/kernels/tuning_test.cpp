#include "trireme/kernels/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

const TuningKey kHere{.card = "NVIDIA H200", .library = "cuBLASLt 130100"};

TuningCache some_cache() {
  TuningCache cache(kHere);
  cache.add_gemm("bf16 32768x3072x768", {.words = {1, 2, 0xffffffffffffffffULL, 4, 5, 6, 7, 0x8000000000000000ULL},
                                         .workspace = 33554432,
                                         .described = "algorithm 66 tile 24",
                                         .us = 251.5,
                                         .heuristic_us = 260.25,
                                         .tried = 8});
  cache.add_variant("gelu 32768x3072x768", {.pick = "fused", .us = {{"fused", 280.5}, {"separate", 351}}});
  return cache;
}

TEST(TuningCache, ComesBackFromItsFile) {
  const TuningCache written = some_cache();
  TuningCache read(kHere);
  EXPECT_EQ(read.take_json(written.to_json(), "tuning.json"), "");
  ASSERT_NE(read.gemm("bf16 32768x3072x768"), nullptr);
  EXPECT_EQ(*read.gemm("bf16 32768x3072x768"), *written.gemm("bf16 32768x3072x768"));
  EXPECT_EQ(*read.variant("gelu 32768x3072x768"), *written.variant("gelu 32768x3072x768"));
  EXPECT_EQ(read.to_json(), written.to_json());
  EXPECT_EQ(read.version(), 0);  // nothing that is not in the file
}

TEST(TuningCache, IsOfOneCardAndOneLibrary) {
  TuningCache other({.card = "NVIDIA H100", .library = kHere.library});
  EXPECT_THAT(other.take_json(some_cache().to_json(), "tuning.json"), testing::HasSubstr("NVIDIA H200"));
  EXPECT_EQ(other.size(), 0U);
  TuningCache newer({.card = kHere.card, .library = "cuBLASLt 130200"});
  EXPECT_THAT(newer.take_json(some_cache().to_json(), "tuning.json"), testing::HasSubstr("130100"));
  EXPECT_EQ(newer.size(), 0U);
}

TEST(TuningCache, KeepsTheFirstChoice) {
  TuningCache cache = some_cache();
  const std::int64_t before = cache.version();
  EXPECT_EQ(cache.add_variant("gelu 32768x3072x768", {.pick = "separate"}).pick, "fused");
  EXPECT_EQ(cache.version(), before);
  TuningCache mine(kHere);
  mine.add_variant("gelu 32768x3072x768", {.pick = "separate"});
  mine.take_json(some_cache().to_json(), "tuning.json");
  EXPECT_EQ(mine.variant("gelu 32768x3072x768")->pick, "separate");
  EXPECT_NE(mine.gemm("bf16 32768x3072x768"), nullptr);
  cache.drop_gemm("bf16 32768x3072x768");
  EXPECT_EQ(cache.gemm("bf16 32768x3072x768"), nullptr);
  EXPECT_GT(cache.version(), before);
}

TEST(TuningCache, ABrokenFileIsAnErrorAndChangesNothing) {
  const std::string whole = some_cache().to_json();
  std::string odd_word = whole, short_words = whole;
  odd_word.replace(odd_word.find("ffffffffffffffff"), 16, "xfffffffffffffff");
  const auto at = short_words.find("\"0000000000000001\",");
  short_words.erase(at, std::string("\"0000000000000001\",").size());
  for (const std::string& text : {std::string("{"), std::string("[]"), whole.substr(0, whole.size() / 2), odd_word,
                                  short_words, std::string(R"({"what": "a recipe"})")}) {
    TuningCache cache(kHere);
    EXPECT_THROW(cache.take_json(text, "tuning.json"), ConfigError) << text;
    EXPECT_EQ(cache.size(), 0U);
  }
}

TEST(TuningCache, NoiseDoesNotDecide) {
  EXPECT_EQ(pick_variant({{"separate", 100}, {"fused", 99}}, "separate"), "separate");
  EXPECT_EQ(pick_variant({{"separate", 100}, {"fused", 97}}, "separate"), "fused");
  EXPECT_EQ(pick_variant({{"separate", 100}, {"fused", 97}, {"other", 90}}, "separate"), "other");
  EXPECT_EQ(pick_variant({{"separate", 100}}, "separate"), "separate");
  EXPECT_THROW(pick_variant({{"fused", 100}}, "separate"), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
