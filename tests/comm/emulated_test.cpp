// The emulated network: as right as what it wraps, and as slow as it was told to be.
#include "trireme/comm/transports/emulated.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/comm/collective_checks.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

// Never quicker than told, in any build; how much slower is only asked where no sanitizer slows everything down.
#if defined(TRIREME_TSAN) || defined(__SANITIZE_ADDRESS__)
constexpr bool kTimely = false;
#else
constexpr bool kTimely = true;
#endif

RanksOptions emulated(const EmulatedNetwork& network, int ranks_per_node = 0) {
  RanksOptions options;
  options.comm.flight_directory = "";
  options.comm.deadline = 60s;
  options.ranks_per_node = ranks_per_node;
  options.comm.costs.of("emulated").links = links_of(network, /*gamma=*/1e-10);
  options.wrap = [network](std::unique_ptr<Transport> inner) {
    return make_emulated_transport(std::move(inner), network);
  };
  return options;
}

Buffer buffer(std::vector<float>& values) { return {values.data(), values.size(), DType::kF32}; }

/// Seconds of the best of three calls, from when the first rank begins to when the last one ends. A busy machine wakes
/// ranks late, so there are more of them until one takes less than `timely`; a network that is slower than it should
/// be never does.
double best_seconds(int ranks, const RanksOptions& options, const std::function<void(Rank&)>& call,
                    double timely = 1e9) {
  constexpr int kCalls = 3, kMostCalls = 300;
  double best = 1e9;
  run_ranks(
      ranks,
      [&](Rank& self) {
        double mine = 1e9;  // the same on all ranks
        for (int i = 0; i < kCalls || (kTimely && i < kMostCalls && mine >= timely); ++i) {
          self.world().barrier().wait();
          double span[] = {-static_cast<double>(now_ns()), 0};
          call(self);
          span[1] = static_cast<double>(now_ns());
          self.world().all_reduce(Buffer{span, 2, DType::kF64}, Reduce::kMax).wait();
          mine = std::min(mine, (span[1] + span[0]) / 1e9);
        }
        if (self.rank() == 0) best = mine;
      },
      options);
  return best;
}

TEST(Emulated, CollectivesEqualTheReference) {
  const EmulatedLink quick{.latency = 1us, .bytes_per_second = 50e9};
  const Sweep sweep{.counts = {0, 1, 7, 1300}, .large_one_in = 40, .small_one_in = 40};
  for (const int ranks : {1, 2, 3, 5}) {
    const auto options = emulated({.across = quick, .inside = quick}, 2);
    const Runner run = [&](int n, const std::function<void(Rank&)>& body) { run_ranks(n, body, options); };
    EXPECT_EQ(check_on(run, ranks, [&](Rank& self) { return check_collectives(self.world(), sweep); }), "");
    EXPECT_EQ(check_on(run, ranks, [&](Rank& self) { return check_messages(self.world(), 1); }), "");
  }
}

TEST(Emulated, AMessageTakesLatencyPlusBytesOverBandwidth) {
  const EmulatedLink link{.latency = 5ms, .bytes_per_second = 1e8};
  constexpr std::size_t kCount = 250'000;  // 1 MB: 10 ms on the wire
  constexpr double kTwice = 0.030;         // would be a wrong model
  const auto send = [](Rank& self) {
    std::vector<float> values(kCount);
    if (self.rank() == 0) self.world().send(buffer(values), 1).wait();
    if (self.rank() == 1) self.world().recv(buffer(values), 0).wait();
  };
  const double seconds = best_seconds(2, emulated({.across = link, .inside = link}), send, kTwice);
  EXPECT_GE(seconds, 0.015);
  if (kTimely) {
    EXPECT_LT(seconds, kTwice);
  }
}

TEST(Emulated, APortSendsOneMessageAfterTheOther) {
  const EmulatedLink link{.latency = 0ns, .bytes_per_second = 1e8};
  const double seconds = best_seconds(3, emulated({.across = link, .inside = link}), [](Rank& self) {
    std::vector<float> a(125'000), b(125'000);  // 5 ms each
    if (self.rank() == 0) {
      Work one = self.world().send(buffer(a), 1), two = self.world().send(buffer(b), 2);
      one.wait();
      two.wait();
    } else {
      self.world().recv(buffer(a), 0).wait();
    }
  });
  EXPECT_GE(seconds, 0.010);
}

TEST(Emulated, WhatArrivesFromSeveralRanksIsTakenInOneAfterTheOther) {
  const EmulatedLink link{.latency = 0ns, .bytes_per_second = 1e8};
  const double seconds = best_seconds(4, emulated({.across = link, .inside = link}), [](Rank& self) {
    std::vector<float> block(125'000), all(4 * 125'000);  // 5 ms from each of three
    self.world().gather(buffer(block), buffer(all), 0, {.algorithm = Algorithm::kLinear}).wait();
  });
  EXPECT_GE(seconds, 0.015);
}

TEST(Emulated, LinksInsideANodeAreTheirOwn) {
  const EmulatedNetwork network{.across = {.latency = 20ms}, .inside = {.latency = 1ms}};
  const auto exchange_with = [](int offset) {
    return [offset](Rank& self) {
      std::vector<float> mine(1), theirs(1);
      const int peer = self.rank() ^ offset;
      Work receive = self.world().recv(buffer(theirs), peer);
      self.world().send(buffer(mine), peer).wait();
      receive.wait();
    };
  };
  constexpr double kLessThanAcross = 0.018;
  const double inside = best_seconds(4, emulated(network, 2), exchange_with(1), kLessThanAcross);
  if (kTimely) {
    EXPECT_LT(inside, kLessThanAcross);
  }
  EXPECT_GE(best_seconds(4, emulated(network, 2), exchange_with(2)), 0.020);
}

constexpr std::size_t kReduced = 500'000;  // 2 MB: 10 ms on the wire
constexpr EmulatedLink kReducedOver{.latency = 2ms, .bytes_per_second = 2e8};

/// Seconds of an all_reduce of kReduced floats by four ranks.
double seconds_to_reduce(const RanksOptions& options, Algorithm algorithm, double timely) {
  const auto sum = [&](Rank& self) {
    std::vector<float> values(kReduced);
    self.world().all_reduce(buffer(values), Reduce::kSum, {.algorithm = algorithm}).wait();
  };
  return best_seconds(4, options, sum, timely);
}

double predicted_to_reduce(const RanksOptions& options, Algorithm algorithm) {
  return options.comm.costs.of("emulated")
      .predict(Collective::kAllReduce, algorithm, {.ranks = 4, .nodes = 1}, kReduced * 4.0);
}

/// The model's alpha and beta are the network's: what is predicted is what is measured, for algorithms of quite
/// different shape. The model has whole messages, so none is cut here.
TEST(Emulated, RingAndDoublingTakeAsLongAsTheModelSays) {
  auto options = emulated({.across = kReducedOver, .inside = kReducedOver});
  options.comm.segment_bytes = kReduced * sizeof(float);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling, Algorithm::kHalvingDoubling}) {
    const double predicted = predicted_to_reduce(options, algorithm);
    const double measured = seconds_to_reduce(options, algorithm, 2 * predicted);
    EXPECT_GT(measured, 0.98 * predicted) << cost::name(algorithm);  // gamma is the model's alone
    if (kTimely) {
      EXPECT_LT(measured, 2 * predicted) << cost::name(algorithm);
    }
  }
}

/// A message longer than a segment is cut: its first segment is passed on while the last is still leaving, so a ring
/// has latency behind it that the model counts.
TEST(Emulated, SegmentsHideLatencyThatTheModelCounts) {
  auto options = emulated({.across = kReducedOver, .inside = kReducedOver});
  const double block = kReduced / 4 * 4 / kReducedOver.bytes_per_second, latency = 2e-3;
  for (const std::size_t segment_bytes : {std::size_t{64} << 10, std::size_t{256} << 10}) {
    options.comm.segment_bytes = segment_bytes;
    const double segment = static_cast<double>(segment_bytes) / kReducedOver.bytes_per_second;
    // Six steps: the next one begins when the port is free and a first segment has come.
    const double ring = 5 * std::max(block, latency + segment) + latency + block;
    const double predicted = predicted_to_reduce(options, Algorithm::kRing);
    ASSERT_LT(ring, 0.8 * predicted);
    const double measured = seconds_to_reduce(options, Algorithm::kRing, 0.9 * predicted);
    EXPECT_GT(measured, 0.98 * ring) << segment_bytes;
    if (kTimely) {
      EXPECT_LT(measured, 0.9 * predicted) << segment_bytes;
    }
  }
}

TEST(Emulated, CommunicationGoesOnWhileTheRankComputes) {
  const EmulatedLink link{.latency = 1ms, .bytes_per_second = 2e8};
  constexpr std::size_t kCount = 1'000'000;  // 4 MB by ring on two ranks: 22 ms
  const auto options = emulated({.across = link, .inside = link});
  constexpr double kLessThanBoth = 0.058;
  const auto compute = [](Rank& self) {
    std::vector<float> values(kCount);
    Work work = self.world().all_reduce(buffer(values), Reduce::kSum, {.algorithm = Algorithm::kRing});
    std::this_thread::sleep_for(40ms);
    work.wait();
  };
  const double together = best_seconds(2, options, compute, kLessThanBoth);
  if (kTimely) {
    EXPECT_LT(together, kLessThanBoth);
  }
}

}  // namespace
}  // namespace trireme::comm
