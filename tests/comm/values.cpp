#include "tests/comm/values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace trireme::comm {
namespace {

std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// To the nearest number with `digits` binary digits and exponents from `lowest` up; ties to even.
double round_to(double value, int digits, int lowest, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), lowest);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::abs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

std::uint16_t f16_bits(double value) {
  if (std::isnan(value)) return 0x7e00;
  const unsigned sign = std::signbit(value) ? 0x8000 : 0;
  const double rounded = std::abs(round_to(value, 11, -14, 65504));
  if (std::isinf(rounded)) return static_cast<std::uint16_t>(sign | 0x7c00);
  // Subnormals and the first binade have the same spacing.
  if (rounded < std::ldexp(1.0, -14)) {
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(std::ldexp(rounded, 24)));
  }
  const int exponent = std::ilogb(rounded);
  const unsigned fraction = static_cast<unsigned>(std::ldexp(rounded, 10 - exponent)) & 0x3ff;
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 15) << 10 | fraction);
}

double f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction != 0 ? NAN : INFINITY;
  return bits & 0x8000 ? -value : value;
}

/// The upper half of an f32.
std::uint16_t bf16_bits(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto rounded = static_cast<float>(round_to(value, 8, -126, std::ldexp(255, 120)));
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(rounded) >> 16);
}

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

std::uint64_t hash_of(std::initializer_list<std::uint64_t> words) {
  std::uint64_t h = 0x9e3779b97f4a7c15ull;
  for (const std::uint64_t word : words) h = scramble(h + word * 0x9e3779b97f4a7c15ull + 1);
  return h;
}

double fraction_of(std::uint64_t hash) { return std::ldexp(static_cast<double>(hash >> 11), -53); }

bool is_float(DType type) {
  return type == DType::kF32 || type == DType::kF64 || type == DType::kF16 || type == DType::kBF16;
}

void write_value(DType type, double value, std::byte* at) {
  switch (type) {
    case DType::kF32:
      return put(at, static_cast<float>(value));
    case DType::kF64:
      return put(at, value);
    case DType::kF16:
      return put(at, f16_bits(value));
    case DType::kBF16:
      return put(at, bf16_bits(value));
    case DType::kI32:
      return put(at, static_cast<std::int32_t>(static_cast<std::int64_t>(value)));
    case DType::kI64:
      return put(at, static_cast<std::int64_t>(value));
    case DType::kU8:
      return put(at, static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
  }
}

double read_value(DType type, const std::byte* at) {
  switch (type) {
    case DType::kF32:
      return get<float>(at);
    case DType::kF64:
      return get<double>(at);
    case DType::kF16:
      return f16_value(get<std::uint16_t>(at));
    case DType::kBF16:
      return std::bit_cast<float>(std::uint32_t{get<std::uint16_t>(at)} << 16);
    case DType::kI32:
      return get<std::int32_t>(at);
    case DType::kI64:
      return static_cast<double>(get<std::int64_t>(at));
    case DType::kU8:
      return get<std::uint8_t>(at);
  }
  return NAN;
}

double rounding_error(DType type) {
  switch (type) {
    case DType::kF32:
      return std::ldexp(1.0, -24);
    case DType::kF64:
      return std::ldexp(1.0, -53);
    case DType::kF16:
      return std::ldexp(1.0, -11);
    case DType::kBF16:
      return std::ldexp(1.0, -8);
    default:
      return 0;
  }
}

}  // namespace trireme::comm
