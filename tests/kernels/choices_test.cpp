#include "trireme/kernels/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::kernels {
namespace {

const TuningKey kHere{.card = "NVIDIA H200", .library = "cuBLASLt 130100"};

Choices some_choices() {
  Choices choices(kHere);
  choices.add_product("bf16 32768x3072x768", {.words = {1, 2, 0xffffffffffffffffULL, 4, 5, 6, 7, 0x8000000000000000ULL},
                                              .workspace = 33554432,
                                              .described = "algorithm 66 tile 24",
                                              .us = 251.5,
                                              .favourite_us = 260.25,
                                              .tried = 8});
  choices.add_way("gelu 32768x3072x768", {.pick = "fused", .us = {{"fused", 280.5}, {"apart", 351}}});
  return choices;
}

TEST(Choices, ComeBackFromTheirFile) {
  const Choices written = some_choices();
  Choices read(kHere);
  EXPECT_EQ(read.take_json(written.to_json(), "choices.json"), "");
  ASSERT_NE(read.product("bf16 32768x3072x768"), nullptr);
  EXPECT_EQ(*read.product("bf16 32768x3072x768"), *written.product("bf16 32768x3072x768"));
  EXPECT_EQ(*read.way("gelu 32768x3072x768"), *written.way("gelu 32768x3072x768"));
  EXPECT_EQ(read.to_json(), written.to_json());
  EXPECT_EQ(read.version(), 0);  // nothing that is not in the file
}

TEST(Choices, AreOfOneCardAndOneLibrary) {
  Choices other({.card = "NVIDIA H100", .library = kHere.library});
  EXPECT_THAT(other.take_json(some_choices().to_json(), "choices.json"), testing::HasSubstr("NVIDIA H200"));
  EXPECT_EQ(other.size(), 0U);
  Choices newer({.card = kHere.card, .library = "cuBLASLt 130200"});
  EXPECT_THAT(newer.take_json(some_choices().to_json(), "choices.json"), testing::HasSubstr("130100"));
  EXPECT_EQ(newer.size(), 0U);
}

TEST(Choices, TheFirstIsKept) {
  Choices choices = some_choices();
  const std::int64_t before = choices.version();
  EXPECT_EQ(choices.add_way("gelu 32768x3072x768", {.pick = "apart"}).pick, "fused");
  EXPECT_EQ(choices.version(), before);
  Choices mine(kHere);
  mine.add_way("gelu 32768x3072x768", {.pick = "apart"});
  mine.take_json(some_choices().to_json(), "choices.json");
  EXPECT_EQ(mine.way("gelu 32768x3072x768")->pick, "apart");
  EXPECT_NE(mine.product("bf16 32768x3072x768"), nullptr);
  choices.drop_product("bf16 32768x3072x768");
  EXPECT_EQ(choices.product("bf16 32768x3072x768"), nullptr);
  EXPECT_GT(choices.version(), before);
}

TEST(Choices, ABrokenFileIsAnErrorAndChangesNothing) {
  const std::string whole = some_choices().to_json();
  std::string odd_word = whole, short_words = whole;
  odd_word.replace(odd_word.find("ffffffffffffffff"), 16, "xfffffffffffffff");
  const auto at = short_words.find("\"0000000000000001\",");
  short_words.erase(at, std::string("\"0000000000000001\",").size());
  for (const std::string& text : {std::string("{"), std::string("[]"), whole.substr(0, whole.size() / 2), odd_word,
                                  short_words, std::string(R"({"what": "a recipe"})")}) {
    Choices choices(kHere);
    EXPECT_THROW(choices.take_json(text, "choices.json"), ConfigError) << text;
    EXPECT_EQ(choices.size(), 0U);
  }
}

TEST(Choices, NoiseDoesNotDecide) {
  EXPECT_EQ(pick_way({{"apart", 100}, {"fused", 99}}, "apart"), "apart");
  EXPECT_EQ(pick_way({{"apart", 100}, {"fused", 97}}, "apart"), "fused");
  EXPECT_EQ(pick_way({{"apart", 100}, {"fused", 97}, {"other", 90}}, "apart"), "other");
  EXPECT_EQ(pick_way({{"apart", 100}}, "apart"), "apart");
  EXPECT_THROW(pick_way({{"fused", 100}}, "apart"), InternalError);
}

}  // namespace
}  // namespace trireme::kernels
