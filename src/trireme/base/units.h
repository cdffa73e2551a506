// base/units.h -- quantities as people write them: "64M", "1.5G", "64 MiB", "2h", "500us", "10k", "100 Gbit/s".
//
// What a suffix means depends on what is measured, as it does in the tools people know:
//   sizes in bytes   K M G T, KiB MiB ... are powers of 1024; kB MB GB TB powers of 1000 (as in GNU dd and du)
//   counts           k M G/B T are powers of 1000: 10k steps, a 7B model
//   bandwidths       k M G T are powers of 1000, as links are sold: 12.5 GB/s, 100 Gbit/s; KiB/s ... powers of 1024
//   durations        ns us ms s m h d; joined as in 1h30m. A bare number is refused, as nobody can tell its unit.
// parse_* throw ConfigError with the text and valid examples. exact_* print so that parse_* gives the same value back;
// short_* print for reading: three digits.
// Depends on: error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

enum class Unit : std::uint8_t { kNone, kBytes, kCount, kBandwidth };

std::int64_t parse_bytes(std::string_view text);
std::int64_t parse_count(std::string_view text);
std::int64_t parse_bandwidth(std::string_view text);  // bytes a second
std::chrono::nanoseconds parse_duration(std::string_view text);
/// By unit; kNone takes a whole number without a suffix, which may be negative.
std::int64_t parse_quantity(std::string_view text, Unit unit);

std::string exact_bytes(std::int64_t bytes);
std::string exact_count(std::int64_t count);
std::string exact_bandwidth(std::int64_t bytes_per_second);
std::string exact_duration(std::chrono::nanoseconds duration);
std::string exact_quantity(std::int64_t value, Unit unit);

std::string short_bytes(double bytes);                 // "1.5 GiB"
std::string short_count(double count);                 // "12.3k", "7.1B"
std::string short_bandwidth(double bytes_per_second);  // "11.2 GB/s"
std::string short_seconds(double seconds);             // "3.2 us", "1.5 s", "2h05m"
std::string short_duration(std::chrono::nanoseconds duration);

}  // namespace trireme
