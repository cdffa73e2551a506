#include "trireme/base/json_value.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace trireme {
namespace {

TEST(JsonValue, IsNullUntilItIsGivenSomething) {
  JsonValue value;
  EXPECT_TRUE(value->is_null());
  value = nlohmann::ordered_json{{"step", 20}};
  EXPECT_EQ(value->at("step"), 20);
}

TEST(JsonValue, CopiesAreValuesOfTheirOwn) {
  JsonValue first(nlohmann::ordered_json{{"step", 20}});
  JsonValue second = first;
  EXPECT_EQ(first, second);
  (*second)["step"] = 21;
  EXPECT_EQ(first->at("step"), 20);
  EXPECT_FALSE(first == second);
  const JsonValue third = std::move(second);
  EXPECT_EQ(third->at("step"), 21);
  second = first;  // one that was moved from can be given another
  EXPECT_EQ(second->at("step"), 20);
}

}  // namespace
}  // namespace trireme
