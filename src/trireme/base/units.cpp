#include "trireme/base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

struct Suffix {
  std::string_view text;
  std::int64_t factor;
};

constexpr std::int64_t kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024, kPi = kTi * 1024;
constexpr std::int64_t kK = 1000, kM = kK * 1000, kG = kM * 1000, kT = kG * 1000, kP = kT * 1000;

// In each table the first suffix of a factor is the one that is printed.
constexpr Suffix kByteSuffixes[] = {
    {"", 1},      {"B", 1},   {"KiB", kKi}, {"K", kKi},   {"k", kKi}, {"kB", kK}, {"KB", kK},
    {"MiB", kMi}, {"M", kMi}, {"MB", kM},   {"GiB", kGi}, {"G", kGi}, {"GB", kG}, {"TiB", kTi},
    {"T", kTi},   {"TB", kT}, {"PiB", kPi}, {"P", kPi},   {"PB", kP},
};
constexpr Suffix kCountSuffixes[] = {
    {"", 1}, {"k", kK}, {"K", kK}, {"M", kM}, {"G", kG}, {"B", kG}, {"T", kT}, {"P", kP},
};
// Bits are eight to the byte; a factor below one byte is written as a negative divisor: {"bit/s", -8} is an eighth.
constexpr Suffix kBandwidthSuffixes[] = {
    {"", 1},
    {"B/s", 1},
    {"kB/s", kK},
    {"KB/s", kK},
    {"k", kK},
    {"K", kK},
    {"MB/s", kM},
    {"M", kM},
    {"GB/s", kG},
    {"G", kG},
    {"TB/s", kT},
    {"T", kT},
    {"KiB/s", kKi},
    {"MiB/s", kMi},
    {"GiB/s", kGi},
    {"TiB/s", kTi},
    {"bit/s", -8},
    {"kbit/s", kK / 8},
    {"Mbit/s", kM / 8},
    {"Gbit/s", kG / 8},
    {"Tbit/s", kT / 8},
    {"Mb/s", kM / 8},
    {"Gb/s", kG / 8},
    {"Tb/s", kT / 8},
};
constexpr Suffix kDurationSuffixes[] = {
    {"ns", 1},
    {"us", kK},
    {"\u00b5s", kK},
    {"\u03bcs", kK},
    {"ms", kM},
    {"s", kG},
    {"sec", kG},
    {"m", 60 * kG},
    {"min", 60 * kG},
    {"h", 3600 * kG},
    {"hours", 3600 * kG},
    {"d", 24 * 3600 * kG},
    {"days", 24 * 3600 * kG},
};

struct Kind {
  std::string_view what;
  std::string_view examples;
  std::span<const Suffix> suffixes;
};
constexpr Kind kBytes = {
    "a size in bytes",
    R"(write it like "64M", "1.5G", "64 MiB" or "64 MB" (K, M, G, T are powers of 1024; kB, MB, GB, TB of 1000))",
    kByteSuffixes};
constexpr Kind kCount = {"a count", R"(write it like "500", "10k", "1.5M" or "7B" (powers of 1000))", kCountSuffixes};
constexpr Kind kBandwidth = {"a bandwidth", R"(write it like "800 MB/s", "12.5 GB/s" or "100 Gbit/s")",
                             kBandwidthSuffixes};
constexpr Kind kDuration = {"a duration", R"(write it like "500us", "30s", "10m", "2h" or "1h30m")", kDurationSuffixes};

[[noreturn]] void refuse(const Kind& kind, std::string_view text, std::string_view why) {
  throw ConfigError(fmt::format("\"{}\" is not {}: {}", text, kind.what, why), std::string(kind.examples));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Splits "1.5 GiB" at the end of the number; the rest keeps its leading spaces.
std::string_view leading_number(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) ++end;
  // "1e6" is a number, but "1e" is not the beginning of one.
  if (end > 0 && end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    std::size_t digits = end + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    if (digits < text.size() && is_digit(text[digits])) {
      end = digits;
      while (end < text.size() && is_digit(text[end])) ++end;
    }
  }
  return text.substr(0, end);
}

/// number x factor, rounded to a whole; nothing when it does not fit 64 bits or is NaN or Inf.
std::optional<std::int64_t> scaled(std::string_view number, std::int64_t factor) {
  const char* end = number.data() + number.size();
  std::int64_t whole = 0;
  if (const auto got = std::from_chars(number.data(), end, whole); got.ec == std::errc{} && got.ptr == end) {
    if (factor < 0) return whole / -factor;
    std::int64_t out = 0;
    return __builtin_mul_overflow(whole, factor, &out) ? std::nullopt : std::optional(out);
  }
  double real = 0;
  if (const auto got = std::from_chars(number.data(), end, real); got.ec != std::errc{} || got.ptr != end) {
    return std::nullopt;
  }
  // The wider type keeps 1.5P and the like exact; its 64-bit mantissa holds every product that fits the result.
  const long double product = factor < 0 ? static_cast<long double>(real) / -factor
                                         : static_cast<long double>(real) * static_cast<long double>(factor);
  if (!(product < 9.2e18L)) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(product));
}

std::int64_t parse_with(const Kind& kind, std::string_view given) {
  const std::string_view text = trimmed(given);
  if (text.empty()) refuse(kind, given, "it is empty");
  if (text.front() == '-') refuse(kind, given, "it must not be negative");
  const std::string_view number = leading_number(text);
  if (number.empty()) refuse(kind, given, "it does not begin with a number");
  const std::string_view suffix = trimmed(text.substr(number.size()));
  for (const Suffix& known : kind.suffixes) {
    if (known.text != suffix) continue;
    const auto value = scaled(number, known.factor);
    if (!value) refuse(kind, given, "the number is malformed or too large for 64 bits");
    if (known.text.empty() && number.find('.') != std::string_view::npos) {
      refuse(kind, given, "a fraction needs a unit");
    }
    return *value;
  }
  refuse(kind, given, fmt::format("unknown unit \"{}\"", suffix));
}

/// The largest unit, among those printed, of which the value is a whole multiple.
std::string exact_with(std::span<const Suffix> suffixes, std::int64_t value) {
  const Suffix* best = &suffixes.front();
  for (const Suffix& suffix : suffixes) {
    if (suffix.factor > best->factor && value != 0 && value % suffix.factor == 0) best = &suffix;
  }
  return fmt::format("{}{}", value / best->factor, best->text);
}

/// Three digits and the largest unit that leaves at least one before the point.
std::string short_with(std::span<const Suffix> suffixes, double value, std::string_view gap) {
  const double size = std::abs(value);
  Suffix best = suffixes.front();
  for (const Suffix& suffix : suffixes) {
    // 999.7 would print as 1000 of its unit: one of the next instead.
    if (suffix.factor > best.factor && size >= 0.9995 * static_cast<double>(suffix.factor)) best = suffix;
  }
  const double scaled_value = value / static_cast<double>(best.factor);
  const double digits = std::abs(scaled_value);
  const bool whole = scaled_value == std::floor(scaled_value) && digits < 1e4;
  const int decimals = whole || digits >= 99.95 ? 0 : digits >= 9.995 ? 1 : 2;
  std::string number = fmt::format("{:.{}f}", scaled_value, decimals);
  if (best.text.empty()) return number;
  return fmt::format("{}{}{}", number, gap, best.text);
}

constexpr Suffix kShortBytes[] = {{"B", 1}, {"KiB", kKi}, {"MiB", kMi}, {"GiB", kGi}, {"TiB", kTi}, {"PiB", kPi}};
// Billions as people say them: a 7B model.
constexpr Suffix kShortCounts[] = {{"", 1}, {"k", kK}, {"M", kM}, {"B", kG}, {"T", kT}, {"P", kP}};
constexpr Suffix kShortBandwidths[] = {{"B/s", 1}, {"kB/s", kK}, {"MB/s", kM}, {"GB/s", kG}, {"TB/s", kT}};
constexpr Suffix kShortTimes[] = {{"ns", 1}, {"us", kK}, {"ms", kM}, {"s", kG}};

}  // namespace

std::int64_t parse_bytes(std::string_view text) { return parse_with(kBytes, text); }
std::int64_t parse_count(std::string_view text) { return parse_with(kCount, text); }
std::int64_t parse_bandwidth(std::string_view text) { return parse_with(kBandwidth, text); }

std::chrono::nanoseconds parse_duration(std::string_view given) {
  std::string_view text = trimmed(given);
  if (text == "0") return std::chrono::nanoseconds(0);  // the one number that is the same in every unit
  if (text.empty()) refuse(kDuration, given, "it is empty");
  std::int64_t total = 0;
  for (std::int64_t last_factor = std::numeric_limits<std::int64_t>::max(); !text.empty();) {
    if (text.front() == '-') refuse(kDuration, given, "it must not be negative");
    const std::string_view number = leading_number(text);
    if (number.empty()) refuse(kDuration, given, "it does not begin with a number");
    text = trimmed(text.substr(number.size()));
    std::size_t length = 0;
    while (length < text.size() && !is_digit(text[length]) && text[length] != ' ' && text[length] != '-') ++length;
    const std::string_view suffix = text.substr(0, length);
    if (suffix.empty()) refuse(kDuration, given, fmt::format("{} of which unit?", number));
    const Suffix* known = nullptr;
    for (const Suffix& row : kDurationSuffixes) {
      if (row.text == suffix) known = &row;
    }
    if (known == nullptr) refuse(kDuration, given, fmt::format("unknown unit \"{}\"", suffix));
    if (known->factor >= last_factor) refuse(kDuration, given, "parts must go from the larger unit to the smaller");
    last_factor = known->factor;
    const auto part = scaled(number, known->factor);
    if (!part || __builtin_add_overflow(total, *part, &total)) {
      refuse(kDuration, given, "the number is malformed or too large (at most 292 years)");
    }
    text = trimmed(text.substr(length));
  }
  return std::chrono::nanoseconds(total);
}

std::int64_t parse_quantity(std::string_view given, Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return parse_bytes(given);
    case Unit::kCount:
      return parse_count(given);
    case Unit::kBandwidth:
      return parse_bandwidth(given);
    case Unit::kNone:
      break;
  }
  std::string_view text = trimmed(given);
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto got = std::from_chars(text.data(), end, value);
  if (got.ec == std::errc::result_out_of_range) {
    throw ConfigError(fmt::format("\"{}\" does not fit 64 bits", given), "write a smaller number");
  }
  if (got.ec != std::errc{} || got.ptr != end) {
    throw ConfigError(fmt::format("\"{}\" is not a whole number", given), "write it with digits only, like 12");
  }
  return value;
}

std::string exact_bytes(std::int64_t bytes) {
  static constexpr Suffix kPrinted[] = {{"", 1}, {"KiB", kKi}, {"MiB", kMi}, {"GiB", kGi}, {"TiB", kTi}, {"PiB", kPi}};
  return exact_with(kPrinted, bytes);
}
std::string exact_count(std::int64_t count) { return exact_with(kCountSuffixes, count); }
std::string exact_bandwidth(std::int64_t bytes_per_second) { return exact_with(kShortBandwidths, bytes_per_second); }

std::string exact_duration(std::chrono::nanoseconds duration) {
  static constexpr Suffix kPrinted[] = {{"ns", 1},      {"us", kK},       {"ms", kM},           {"s", kG},
                                        {"m", 60 * kG}, {"h", 3600 * kG}, {"d", 24 * 3600 * kG}};
  return duration.count() == 0 ? "0s" : exact_with(kPrinted, duration.count());
}

std::string exact_quantity(std::int64_t value, Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return exact_bytes(value);
    case Unit::kCount:
      return exact_count(value);
    case Unit::kBandwidth:
      return exact_bandwidth(value);
    case Unit::kNone:
      break;
  }
  return fmt::format("{}", value);
}

std::string short_bytes(double bytes) { return short_with(kShortBytes, bytes, " "); }
std::string short_count(double count) { return short_with(kShortCounts, count, ""); }
std::string short_bandwidth(double bytes_per_second) { return short_with(kShortBandwidths, bytes_per_second, " "); }

std::string short_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (std::abs(seconds) < 59.995) return short_with(kShortTimes, seconds * 1e9, " ");
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = whole / 86400, hours = whole / 3600 % 24, minutes = whole / 60 % 60, rest = whole % 60;
  if (days > 0) return fmt::format("{}d{:02}h", days, hours);
  if (hours > 0) return fmt::format("{}h{:02}m", hours, minutes);
  return fmt::format("{}m{:02}s", minutes, rest);
}

std::string short_duration(std::chrono::nanoseconds duration) {
  return short_seconds(std::chrono::duration<double>(duration).count());
}

}  // namespace trireme
