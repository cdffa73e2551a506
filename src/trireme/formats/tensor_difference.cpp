#include "trireme/formats/tensor_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace trireme::formats {
namespace {

template <typename T>
double number_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}

double half_at(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  const int exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 0x1F) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double bfloat_at(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

using ReadNumber = double (*)(const std::byte* at);
/// Null: a type that only checkpoints of others have.
ReadNumber reader_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return &number_at<float>;
    case Dtype::kF64:
      return &number_at<double>;
    case Dtype::kI64:
      return &number_at<std::int64_t>;
    case Dtype::kI32:
      return &number_at<std::int32_t>;
    case Dtype::kF16:
      return &half_at;
    case Dtype::kBF16:
      return &bfloat_at;
    default:
      return nullptr;
  }
}

double relative_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b, Dtype dtype,
                           std::size_t element) {
  const ReadNumber read = reader_of(dtype);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (a == b) return 0;
  if (read == nullptr) return kInfinite;
  double largest = 0, apart = 0;
  for (std::size_t at = 0; at < a.size(); at += element) {
    const double x = read(a.data() + at), y = read(b.data() + at);
    if (std::isnan(x) != std::isnan(y)) return kInfinite;
    if (std::isnan(x) || x == y) continue;
    largest = std::max({largest, std::abs(x), std::abs(y)});
    apart = std::max(apart, std::abs(x - y));
  }
  for (std::size_t at = 0; at < a.size() && apart > 0; at += element) {
    const double x = std::abs(read(a.data() + at));
    if (x > largest) largest = x;
  }
  return apart == 0 ? 0 : apart / largest;
}

}  // namespace

std::vector<StoredDifference> tensor_differences(const CheckpointFolder& left, const CheckpointFolder& right) {
  std::vector<StoredDifference> out;
  for (const auto& [name, a] : left.manifest().tensors) {
    const auto b = right.manifest().tensors.find(name);
    if (b == right.manifest().tensors.end()) continue;
    const bool alike = a.shape == b->second.shape && a.dtype == b->second.dtype;
    out.push_back({name, alike ? relative_difference(left.read(name), right.read(name), a.dtype, a.element_bytes())
                               : std::numeric_limits<double>::infinity()});
  }
  std::ranges::stable_sort(out, std::greater<>(), &StoredDifference::relative);
  return out;
}

}  // namespace trireme::formats
