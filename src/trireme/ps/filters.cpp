#include "trireme/ps/filters.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::ps {
namespace {

constexpr std::uint64_t kSkipBlock = 64;  // keys that random skip leaves out together: single ones would cost more keys
constexpr int kZstdLevel = 1;

template <typename T>
void to_fixed16(Message& message, const SharedBytes& bytes) {
  const std::size_t count = bytes.size() / sizeof(T);
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  double largest = 0;
  for (const T value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  // A power of two, so that zero, the largest and what is a multiple of the step come back exactly.
  const double step = largest > 0 && std::isfinite(largest) ? std::exp2(std::ceil(std::log2(largest / 32767))) : 1;
  std::vector<std::byte> encoded(sizeof step + 2 * count);
  std::memcpy(encoded.data(), &step, sizeof step);
  for (std::size_t i = 0; i < count; ++i) {
    const double scaled = std::clamp(std::nearbyint(static_cast<double>(values[i]) / step), -32767.0, 32767.0);
    const auto fixed = static_cast<std::int16_t>(std::isnan(scaled) ? 0 : scaled);
    std::memcpy(encoded.data() + sizeof step + 2 * i, &fixed, 2);
  }
  message.values = std::move(encoded);
}

template <typename T>
std::vector<std::byte> from_fixed16(const Message& message) {
  double step = 0;
  const std::size_t count = message.raw_bytes / sizeof(T);
  if (message.values.size() != sizeof step + 2 * count)
    throw CommError("fixed-point values of another length than told");
  std::memcpy(&step, message.values.data(), sizeof step);
  std::vector<std::byte> bytes(count * sizeof(T));
  for (std::size_t i = 0; i < count; ++i) {
    std::int16_t fixed = 0;
    std::memcpy(&fixed, message.values.data() + sizeof step + 2 * i, 2);
    const T value = static_cast<T>(fixed * step);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

}  // namespace

void encode_values(Message& message, SharedBytes values, ValueType type, Encoding encoding) {
  message.raw_bytes = values.size();
  message.encoding = encoding;
  if (encoding == Encoding::kZstd) {
    std::vector<std::byte> packed(ZSTD_compressBound(values.size()));
    const std::size_t size = ZSTD_compress(packed.data(), packed.size(), values.data(), values.size(), kZstdLevel);
    if (ZSTD_isError(size) == 0 && size < values.size()) {
      packed.resize(size);
      message.values = std::move(packed);
      return;
    }
  } else if (encoding == Encoding::kFixed16) {
    type == ValueType::kF32 ? to_fixed16<float>(message, values) : to_fixed16<double>(message, values);
    return;
  }
  message.encoding = Encoding::kRaw;
  message.values = std::move(values);
}

SharedBytes decode_values(const Message& message, ValueType type) {
  switch (message.encoding) {
    case Encoding::kRaw:
      break;
    case Encoding::kZstd: {
      std::vector<std::byte> bytes(message.raw_bytes);
      const std::size_t size =
          ZSTD_decompress(bytes.data(), bytes.size(), message.values.data(), message.values.size());
      if (ZSTD_isError(size) != 0 || size != bytes.size()) throw CommError("compressed values do not decompress");
      return bytes;
    }
    case Encoding::kFixed16:
      return type == ValueType::kF32 ? from_fixed16<float>(message) : from_fixed16<double>(message);
  }
  return message.values;
}

ResidualFilter::ResidualFilter(const Filters& filters, int worker, ValueType type, std::uint64_t keys)
    : filters_(filters), worker_(worker), type_(type), residual_(keys) {}

template <typename T>
ResidualFilter::Sent ResidualFilter::select(std::uint64_t task, std::span<const Segment> segments,
                                            std::span<const std::byte> values, bool all) {
  Sent sent;
  const Random random(filters_.seed, fmt::format("ps/skip/{}/{}", worker_, task));
  std::vector<T> chosen;
  std::size_t at = 0;
  for (const Segment& segment : segments) {
    for (std::uint64_t key = segment.begin; key < segment.end; ++key, ++at) {
      double total = residual_[key];
      if (!values.empty()) {
        T value;
        std::memcpy(&value, values.data() + at * sizeof(T), sizeof(T));
        total += static_cast<double>(value);
      }
      const bool skipped = filters_.skip > 0 && random.uniform(key / kSkipBlock) < filters_.skip;
      const bool travels = all ? total != 0 : !skipped && std::abs(total) > filters_.significant;
      residual_[key] = travels ? 0 : total;
      if (!travels) continue;
      chosen.push_back(static_cast<T>(total));
      if (!sent.segments.empty() && sent.segments.back().end == key) {
        ++sent.segments.back().end;
      } else {
        sent.segments.push_back({key, key + 1});
      }
    }
  }
  const auto bytes = std::as_bytes(std::span(chosen));
  sent.values.assign(bytes.begin(), bytes.end());
  return sent;
}

ResidualFilter::Sent ResidualFilter::apply(std::uint64_t task, std::span<const Segment> segments,
                                           std::span<const std::byte> values) {
  return type_ == ValueType::kF32 ? select<float>(task, segments, values, false)
                                  : select<double>(task, segments, values, false);
}

ResidualFilter::Sent ResidualFilter::flush(std::span<const Segment> segments, std::span<const std::byte> values) {
  // The push becomes what is held back; then all of that goes.
  std::size_t at = 0;
  for (const Segment& segment : segments) {
    for (std::uint64_t key = segment.begin; key < segment.end; ++key, ++at) {
      if (type_ == ValueType::kF32) {
        float value = 0;
        std::memcpy(&value, values.data() + at * sizeof value, sizeof value);
        residual_[key] += value;
      } else {
        double value = 0;
        std::memcpy(&value, values.data() + at * sizeof value, sizeof value);
        residual_[key] += value;
      }
    }
  }
  const Segment everything{0, residual_.size()};
  return type_ == ValueType::kF32 ? select<float>(0, std::span(&everything, 1), {}, true)
                                  : select<double>(0, std::span(&everything, 1), {}, true);
}

std::vector<Segment> kkt_active(std::uint64_t first_key, std::span<const double> weights,
                                std::span<const double> gradients, double lambda, double margin) {
  std::vector<Segment> active;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0 && std::abs(gradients[i]) < lambda - margin) continue;
    const std::uint64_t key = first_key + i;
    if (!active.empty() && active.back().end == key) {
      ++active.back().end;
    } else {
      active.push_back({key, key + 1});
    }
  }
  return active;
}

}  // namespace trireme::ps
