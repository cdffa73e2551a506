#include "trireme/formats/host_expression.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/random.h"
#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

using ::testing::ElementsAre;

TEST(HostExpression, StandsForItsHosts) {
  EXPECT_THAT(expand_hosts("gpu[007-009,020],login1", "x"),
              ElementsAre("gpu007", "gpu008", "gpu009", "gpu020", "login1"));
  EXPECT_THAT(expand_hosts("r[1-2]n[1-2]", "x"), ElementsAre("r1n1", "r1n2", "r2n1", "r2n2"));
  EXPECT_THAT(expand_hosts("n[9-11]-ib", "x"), ElementsAre("n9-ib", "n10-ib", "n11-ib"));
}

TEST(HostExpression, WhatIsNoneNamesTheByte) {
  for (const char* bad :
       {"", "a,,b", "n[", "n[1", "n[2-1]", "n[a]", "n[1-999999999]", "n]", "a b", "n[1-2]]", "n[-3]"}) {
    try {
      expand_hosts(bad, "x");
      ADD_FAILURE() << bad;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.message(), ::testing::HasSubstr("(byte ")) << bad;
    }
  }
}

TEST(HostExpression, CompressedHostsAreTheSameHosts) {
  EXPECT_EQ(compress_hosts({"gpu007", "gpu008", "gpu009", "gpu020", "login1"}), "gpu[007-009,020],login1");
  EXPECT_EQ(compress_hosts({"n9", "n10"}), "n[9-10]");
  EXPECT_EQ(compress_hosts({"n09", "n10"}), "n[09-10]");
  EXPECT_EQ(compress_hosts({"n1-ib", "n2-ib"}), "n[1-2]-ib");
  EXPECT_EQ(compress_hosts({"a", "b"}), "a,b");
  const Random random(3, "hosts");
  std::uint64_t draw = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> hosts;
    for (std::uint64_t i = 1 + random.below(12, draw++); i > 0; --i) {
      static constexpr const char* kNames[] = {"n", "gpu", "a-1-", "x"};
      static constexpr const char* kEnds[] = {"", "", "-ib", "b"};
      const auto width = static_cast<int>(random.below(4, draw++));
      const auto number = random.below(30, draw++);
      const char* before = kNames[random.below(4, draw++)];
      hosts.push_back(fmt::format("{}{:0{}}{}", before, number, width, kEnds[random.below(4, draw++)]));
    }
    EXPECT_EQ(expand_hosts(compress_hosts(hosts), "x"), hosts) << compress_hosts(hosts);
  }
}

}  // namespace
}  // namespace trireme::formats
