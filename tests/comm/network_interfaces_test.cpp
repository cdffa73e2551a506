#include "trireme/comm/network_interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/errors.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<NetworkInterface> kPresent = {
    {"lo", {"127.0.0.1", "::1"}},
    {"eth0", {"10.1.2.3", "fe80::1%eth0"}},
    {"eth1", {"10.2.0.9", "fd00:7::9"}},
    {"ib0", {"192.168.7.1"}},
    {"mlx5_0", {}},
};

ChosenInterfaces names(std::vector<std::string> chosen, bool ipv6 = false) {
  return {.names = std::move(chosen), .ipv6 = ipv6};
}

TEST(NetworkInterfaces, AreChosenByName) {
  EXPECT_EQ(choose_interfaces("eth1", kPresent), names({"eth1"}));
  EXPECT_EQ(choose_interfaces("eth1, lo", kPresent), names({"eth1", "lo"}));
  EXPECT_EQ(choose_interfaces("mlx5_0:1", kPresent), names({"mlx5_0:1"}));
}

TEST(NetworkInterfaces, AreChosenByNetwork) {
  EXPECT_EQ(choose_interfaces("10.1.0.0/16", kPresent), names({"eth0"}));
  EXPECT_EQ(choose_interfaces("10.0.0.0/8", kPresent), names({"eth0", "eth1"}));
  EXPECT_EQ(choose_interfaces("10.2.0.9/32,192.168.0.0/16", kPresent), names({"eth1", "ib0"}));
  EXPECT_EQ(choose_interfaces("fd00:7::/64", kPresent), names({"eth1"}, true));
  EXPECT_EQ(choose_interfaces("fe80::/10", kPresent), names({"eth0"}, true));
  EXPECT_EQ(choose_interfaces("0.0.0.0/0", kPresent), names({"lo", "eth0", "eth1", "ib0"}));
}

TEST(NetworkInterfaces, WhatIsNotThereIsAnErrorWithWhatIs) {
  for (const std::string wanted : {"eth7", "10.9.0.0/16", "eth0,wlan0", "fd00:8::/64", "eth0:1"}) {
    EXPECT_THAT(message_of([&] { choose_interfaces(wanted, kPresent); }),
                HasSubstr("no network interface of this machine is meant by"))
        << wanted;
  }
  try {
    choose_interfaces("eth7", kPresent);
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.hint(), AllOf(HasSubstr("eth0 (10.1.2.3 and fe80::1%eth0)"), HasSubstr("mlx5_0")));
  }
}

TEST(NetworkInterfaces, NetworksMustBeWrittenRight) {
  for (const std::string wanted : {"10.1.0.0/33", "10.1.0/16", "fd00::/129", "eth0/8", "10.1.0.0/", "10.1.0.0/1x"}) {
    EXPECT_THAT(message_of([&] { choose_interfaces(wanted, kPresent); }), HasSubstr("is no network in CIDR form"))
        << wanted;
  }
}

TEST(NetworkInterfaces, OfThisMachineIncludeTheLoopback) {
  const auto present = network_interfaces();
  EXPECT_EQ(choose_interfaces("127.0.0.0/8", present).names, std::vector<std::string>{"lo"});
}

}  // namespace
}  // namespace trireme::comm
