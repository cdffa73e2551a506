#include "trireme/base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(Bytes, LettersAndIecSuffixesAreBinarySiSuffixesDecimal) {
  const std::vector<std::pair<const char*, std::int64_t>> cases = {
      {"0", 0},
      {"123", 123},
      {"1K", 1024},
      {"64M", 64 << 20},
      {"64 MiB", 64 << 20},
      {" 64MB ", 64'000'000},
      {"1.5G", 3LL << 29},
      {"10kB", 10'000},
      {"2TiB", 2LL << 40},
      {"1e3 kB", 1'000'000},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
  };
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(Counts, AreDecimal) {
  EXPECT_EQ(parse_count("10k"), 10'000);
  EXPECT_EQ(parse_count("1.5M"), 1'500'000);
  EXPECT_EQ(parse_count("7B"), 7'000'000'000);
  EXPECT_EQ(parse_count("7G"), 7'000'000'000);
}

TEST(Bandwidths, AreDecimalAndKnowBits) {
  EXPECT_EQ(parse_bandwidth("12.5 GB/s"), 12'500'000'000);
  EXPECT_EQ(parse_bandwidth("100 Gbit/s"), 12'500'000'000);
  EXPECT_EQ(parse_bandwidth("10G"), 10'000'000'000);
  EXPECT_EQ(parse_bandwidth("1 MiB/s"), 1 << 20);
  EXPECT_EQ(parse_bandwidth("1600 bit/s"), 200);
}

TEST(Durations, HaveAUnitAndMayBeJoined) {
  EXPECT_EQ(parse_duration("30s"), 30s);
  EXPECT_EQ(parse_duration("500us"), 500us);
  EXPECT_EQ(parse_duration("500 µs"), 500us);
  EXPECT_EQ(parse_duration("2h"), 2h);
  EXPECT_EQ(parse_duration("1h30m"), 90min);
  EXPECT_EQ(parse_duration("1h 30m 5s"), 90min + 5s);
  EXPECT_EQ(parse_duration("0.5ms"), 500us);
  EXPECT_EQ(parse_duration("10 min"), 10min);
  EXPECT_EQ(parse_duration("1d"), 24h);
  EXPECT_EQ(parse_duration("0"), 0s);
}

template <typename Parse>
void expect_refused(Parse parse, const char* text, const char* reason, const char* example) {
  try {
    (void)parse(text);
    ADD_FAILURE() << "\"" << text << "\" was taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr(std::string("\"") + text + "\""));
    EXPECT_THAT(error.message(), HasSubstr(reason));
    EXPECT_THAT(error.hint(), HasSubstr(example));
  }
}

TEST(Quantities, ThatAreWrongAreRefusedWithTheTextTheReasonAndExamples) {
  expect_refused(parse_bytes, "64Q", "unknown unit \"Q\"", "\"64M\"");
  expect_refused(parse_bytes, "", "empty", "\"64M\"");
  expect_refused(parse_bytes, "-1K", "negative", "\"64M\"");
  expect_refused(parse_bytes, "lots", "does not begin with a number", "\"64M\"");
  expect_refused(parse_bytes, "1.5", "a fraction needs a unit", "\"64M\"");
  expect_refused(parse_bytes, "1.2.3K", "malformed", "\"64M\"");
  expect_refused(parse_bytes, ".", "malformed", "\"64M\"");
  expect_refused(parse_bytes, "9223372036854775808", "too large", "\"64M\"");
  expect_refused(parse_bytes, "1e300G", "too large", "\"64M\"");
  expect_refused(parse_bytes, "9000000P", "too large", "\"64M\"");
  expect_refused(parse_count, "10 KiB", "unknown unit", "\"10k\"");
  expect_refused(parse_bandwidth, "10 parsec", "unknown unit", "\"100 Gbit/s\"");
  expect_refused(parse_duration, "30", "30 of which unit?", "\"30s\"");
  expect_refused(parse_duration, "30 fortnights", "unknown unit \"fortnights\"", "\"30s\"");
  expect_refused(parse_duration, "30m1h", "from the larger unit to the smaller", "\"1h30m\"");
  expect_refused(parse_duration, "1h-5m", "negative", "\"30s\"");
  expect_refused(parse_duration, "10000000d", "too large", "\"30s\"");
}

TEST(Quantities, PrintedExactlyReadBackAsTheSame) {
  EXPECT_EQ(exact_bytes(64 << 20), "64MiB");
  EXPECT_EQ(exact_bytes(64'000'000), "62500KiB");
  EXPECT_EQ(exact_count(10'000), "10k");
  EXPECT_EQ(exact_duration(90min), "90m");
  EXPECT_EQ(exact_duration(0s), "0s");
  EXPECT_EQ(exact_bandwidth(12'500'000'000), "12500MB/s");
  for (std::int64_t value : {0LL, 1LL, 999LL, 1000LL, 1024LL, 1LL << 40, 7'000'000'000LL, 123'456'789'012'345LL,
                             static_cast<long long>(std::numeric_limits<std::int64_t>::max())}) {
    EXPECT_EQ(parse_bytes(exact_bytes(value)), value);
    EXPECT_EQ(parse_count(exact_count(value)), value);
    EXPECT_EQ(parse_bandwidth(exact_bandwidth(value)), value);
    EXPECT_EQ(parse_duration(exact_duration(std::chrono::nanoseconds(value))).count(), value);
    for (Unit unit : {Unit::kNone, Unit::kBytes, Unit::kCount, Unit::kBandwidth}) {
      EXPECT_EQ(parse_quantity(exact_quantity(value, unit), unit), value);
    }
  }
}

TEST(Quantities, WithoutUnitAreWholeNumbersOfEitherSign) {
  EXPECT_EQ(parse_quantity("-12", Unit::kNone), -12);
  EXPECT_EQ(parse_quantity("+12", Unit::kNone), 12);
  EXPECT_THROW((void)parse_quantity("12k", Unit::kNone), ConfigError);
  EXPECT_THROW((void)parse_quantity("99999999999999999999", Unit::kNone), ConfigError);
}

TEST(Quantities, PrintedForReadingHaveThreeDigits) {
  EXPECT_EQ(short_bytes(0), "0 B");
  EXPECT_EQ(short_bytes(1536), "1.50 KiB");
  EXPECT_EQ(short_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(short_bytes(1024.0 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(short_count(12'345), "12.3k");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(405.9e9), "406B");
  EXPECT_EQ(short_bandwidth(11.234e9), "11.2 GB/s");
  EXPECT_EQ(short_seconds(3.21e-6), "3.21 us");
  EXPECT_EQ(short_seconds(0.9999), "1.00 s");
  EXPECT_EQ(short_seconds(1.5), "1.50 s");
  EXPECT_EQ(short_seconds(59.999), "1m00s");
  EXPECT_EQ(short_duration(125min), "2h05m");
  EXPECT_EQ(short_duration(50h), "2d02h");
  EXPECT_EQ(short_seconds(std::numeric_limits<double>::infinity()), "unknown");
}

}  // namespace
}  // namespace trireme
