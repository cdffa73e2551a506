#include "trireme/cost/infiniband.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "trireme/base/error.h"

namespace trireme::cost {
namespace {

IbLink ndr(double propagation_us) {
  return {.gbit_per_s = data_gbit_per_s(IbRate::kNdr), .propagation_us = propagation_us};
}

TEST(InfiniBand, RatesAreThoseOfTheGenerationsAfterEncoding) {
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kSdr), 8);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kDdr), 16);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kQdr), 32);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kFdr10), 40);
  EXPECT_NEAR(data_gbit_per_s(IbRate::kFdr), 54.5, 0.1);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kEdr), 100);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kHdr), 200);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kNdr), 400);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kXdr), 800);
  EXPECT_DOUBLE_EQ(data_gbit_per_s(IbRate::kHdr, 2), 100) << "HDR100: two lanes";
  EXPECT_DOUBLE_EQ(signal_gbit_per_s(IbRate::kEdr) * 4, 103.125);
}

TEST(InfiniBand, WithCreditsEnoughItRunsAtLineRate) {
  const IbLink link = ndr(0.5);
  const IbLane lane{.packets = 1000};
  const IbLaneResult result = simulate(link, {lane}).front();
  EXPECT_EQ(result.delivered, 1000);
  EXPECT_EQ(result.sent, 1000);
  // Packet after packet, and the last one's way.
  EXPECT_EQ(result.picoseconds, 1000 * packet_picoseconds(link) + 500'000);
  EXPECT_EQ(credit_limited_bytes_per_s(link, lane), payload_bytes_per_s(link));
}

/// credits x MTU / round trip, to the picosecond: bursts of what the receiver has room for, one each round trip.
TEST(InfiniBand, FewCreditsLimitItToCreditsByRoundTrip) {
  for (const int credits : {1, 2, 3, 7, 16}) {
    for (const double propagation_us : {0.7, 2.0, 10.0}) {
      const IbLink link = ndr(propagation_us);
      const IbLane lane{.buffer_blocks = credits * packet_blocks(link), .packets = 100 * credits};
      const IbLaneResult result = simulate(link, {lane}).front();
      const std::int64_t wire = packet_picoseconds(link), way = std::llround(propagation_us * 1e6);
      ASSERT_LT(credits * wire, wire + 2 * way) << "else credits would not limit it";
      EXPECT_EQ(result.picoseconds, 99 * (wire + 2 * way) + credits * wire + way) << credits << " " << propagation_us;
      EXPECT_NEAR(result.bytes_per_s(link), credit_limited_bytes_per_s(link, lane),
                  0.02 * credit_limited_bytes_per_s(link, lane));
      EXPECT_EQ(result.most_blocks, packet_blocks(link)) << "drained at once, a packet at a time";
    }
  }
}

TEST(InfiniBand, ASlowReceiverSetsThePaceAndIsNeverOverrun) {
  const IbLink link = ndr(1);
  const IbLane lane{.buffer_blocks = 20 * packet_blocks(link), .drain_gbit_per_s = 100, .packets = 2000};
  const IbLaneResult result = simulate(link, {lane}).front();
  EXPECT_NEAR(result.bytes_per_s(link), payload_bytes_per_s(link) / 4, 0.01 * payload_bytes_per_s(link));
  EXPECT_EQ(result.sent, 2000) << "nothing is lost for want of room";
  EXPECT_LE(result.most_blocks, lane.buffer_blocks);
  EXPECT_GT(result.most_blocks, lane.buffer_blocks / 2) << "it does fill";
}

TEST(InfiniBand, AReceiverThatStopsHoldsTheSenderAndGoesOn) {
  const IbLink link{.gbit_per_s = 100, .propagation_us = 0.5, .timeout_us = 5000};
  const IbLane lane{.buffer_blocks = 8 * packet_blocks(link), .stall_from_us = 10, .stall_us = 1000, .packets = 500};
  const IbLaneResult result = simulate(link, {lane}).front();
  EXPECT_EQ(result.delivered, 500);
  EXPECT_EQ(result.sent, 500);
  EXPECT_EQ(result.most_blocks, lane.buffer_blocks) << "full, and not more";
  EXPECT_GT(result.seconds(), 1e-3);
  EXPECT_LT(result.seconds(), 1e-3 + 2 * 500 * static_cast<double>(packet_picoseconds(link)) * 1e-12);
}

TEST(InfiniBand, AStalledLaneDoesNotHoldAnother) {
  const IbLink link{.gbit_per_s = 200, .propagation_us = 0.5, .timeout_us = 50'000};
  const std::vector<IbLane> lanes = {
      {.buffer_blocks = 8 * packet_blocks(link), .stall_from_us = 0, .stall_us = 10'000, .packets = 100},
      {.packets = 1000}};
  const auto results = simulate(link, lanes);
  EXPECT_EQ(results[0].delivered, 100);
  EXPECT_GT(results[0].seconds(), 10e-3);
  // Eight packets of the other were sent in between, before its credits were gone.
  EXPECT_EQ(results[1].picoseconds, 1008 * packet_picoseconds(link) + 500'000);
}

TEST(InfiniBand, TwoLanesShareTheLinkEvenly) {
  const IbLink link = ndr(0.5);
  const auto results = simulate(link, {{.packets = 500}, {.packets = 500}});
  EXPECT_EQ(std::abs(results[0].picoseconds - results[1].picoseconds), packet_picoseconds(link));
}

TEST(InfiniBand, LossesAreRepairedInOrderExactlyOnce) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    IbLink link{.gbit_per_s = 100, .propagation_us = 1, .loss = 0.05, .control_loss = 0.05, .timeout_us = 50};
    link.seed = seed;
    // Numbers of packets begin anew on the way: 24 bits.
    const IbLane lane{.buffer_blocks = 12 * packet_blocks(link), .packets = 3000, .first_psn = 0xFFFFFF - 700};
    const IbLaneResult result = simulate(link, {lane}).front();
    EXPECT_EQ(result.delivered, 3000) << "the simulation itself checks their order";
    EXPECT_GT(result.lost, 100);
    EXPECT_GT(result.naks, 0);
    EXPECT_LE(result.most_blocks, lane.buffer_blocks);
  }
}

TEST(InfiniBand, CreditsOfLostPacketsComeBack) {
  // Every block that a lost packet took would be gone for ever, and after 20 losses the link would stand still.
  IbLink link{.gbit_per_s = 100, .propagation_us = 0.5, .loss = 0.1, .timeout_us = 50};
  const IbLane lane{.buffer_blocks = 4 * packet_blocks(link), .packets = 2000};
  EXPECT_EQ(simulate(link, {lane}).front().delivered, 2000);
}

TEST(InfiniBand, GoBackNHasTheEfficiencyOfItsFormula) {
  for (const double loss : {1e-4, 1e-3, 5e-3}) {
    for (const double propagation_us : {0.2, 0.8}) {
      IbLink link = ndr(propagation_us);
      link.loss = loss;
      link.timeout_us = 10;  // a packet that is lost twice in a row waits for it
      link.flow_control_us = 0.5;
      const IbLaneResult result = simulate(link, {{.packets = 200'000}}).front();
      const double measured = result.bytes_per_s(link) / payload_bytes_per_s(link);
      EXPECT_NEAR(measured, go_back_n_efficiency(link), 0.02) << loss << " " << propagation_us;
      EXPECT_LT(measured, 1);
    }
  }
}

/// What `trireme simulate` lets the network carry.
TEST(InfiniBand, AShareOfItsRateIsWhatLossesAndCreditsLeave) {
  EXPECT_NEAR(simulated_share(ndr(0.5), {.packets = 10'000}), 1, 1e-12);
  IbLink lossy = ndr(0.5);
  lossy.loss = 5e-3;
  lossy.timeout_us = 10;
  lossy.flow_control_us = 0.5;
  EXPECT_NEAR(simulated_share(lossy, {.packets = 200'000}), go_back_n_efficiency(lossy), 0.02);
  const IbLink far = ndr(2);
  const IbLane few{.buffer_blocks = 8 * packet_blocks(far), .packets = 10'000};
  EXPECT_NEAR(simulated_share(far, few), credit_limited_bytes_per_s(far, few) / payload_bytes_per_s(far), 0.01);
}

TEST(InfiniBand, TheSameSeedIsTheSameRun) {
  IbLink link{.gbit_per_s = 100, .propagation_us = 1, .loss = 0.01, .timeout_us = 50};
  const auto once = simulate(link, {{.packets = 1000}}).front(), again = simulate(link, {{.packets = 1000}}).front();
  EXPECT_EQ(once.picoseconds, again.picoseconds);
  EXPECT_EQ(once.sent, again.sent);
  int others = 0;  // as many lost packets take as long
  for (link.seed = 2; link.seed < 10; ++link.seed)
    others += simulate(link, {{.packets = 1000}}).front().picoseconds != once.picoseconds ? 1 : 0;
  EXPECT_GE(others, 4);
}

TEST(InfiniBand, SettingsThatMeanNothingAreRefused) {
  EXPECT_THROW(simulate({}, {{.packets = 1}}), ConfigError);
  EXPECT_THROW(simulate({.gbit_per_s = 100, .mtu = 9000}, {{.packets = 1}}), ConfigError);
  EXPECT_THROW(simulate({.gbit_per_s = 100, .loss = 1}, {{.packets = 1}}), ConfigError);
  EXPECT_THROW(simulate({.gbit_per_s = 100}, {{.buffer_blocks = 64, .packets = 1}}), ConfigError)
      << "no room for a packet";
  EXPECT_THROW(simulate({.gbit_per_s = 100}, {{.buffer_blocks = 3000, .packets = 1}}), ConfigError) << "counters wrap";
  EXPECT_THROW(simulate({.gbit_per_s = 100, .propagation_us = 1000}, {{.packets = 1}}), ConfigError) << "timeout";
  EXPECT_TRUE(simulate({.gbit_per_s = 100}, {}).empty());
}

}  // namespace
}  // namespace trireme::cost
