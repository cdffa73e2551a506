#include "trireme/parallel/compress/qsgd_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "trireme/base/error.h"
#include "trireme/kernels/gradient_codes.h"

// Of floats and four bits, which is what trains, the loops are in kernels, once for each instruction set. This room is
// compiled at -O1 otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace trireme::parallel {

void BitWriter::put(std::uint32_t bits, int count) {
  pending_ |= static_cast<std::uint64_t>(bits) << count_;
  count_ += count;
  for (; count_ >= 8; count_ -= 8, pending_ >>= 8) message_.push_back(static_cast<std::uint8_t>(pending_));
}

void BitWriter::flush() {
  if (count_ > 0) message_.push_back(static_cast<std::uint8_t>(pending_));
  pending_ = 0;
  count_ = 0;
}

/// Groups from the last to the first: the number, its length less one, the length of that less one, ... until 1; then
/// 0.
void BitWriter::put_omega(std::uint64_t number) {
  std::uint64_t groups[8];
  int count = 0;
  for (; number > 1; number = static_cast<std::uint64_t>(std::bit_width(number)) - 1) groups[count++] = number;
  while (count > 0) {
    const std::uint64_t group = groups[--count];
    for (int bit = std::bit_width(group) - 1; bit >= 0; --bit) put((group >> bit) & 1, 1);  // the highest first
  }
  put(0, 1);
}

std::uint32_t BitReader::take(int count) {
  TRIREME_CHECK(at_ + static_cast<std::size_t>(count) <= bits_, "a code of {} bits ends too early", bits_);
  std::uint64_t bits = 0;  // of the bytes that they lie in, at most five
  const std::size_t first = at_ / 8, last = (at_ + static_cast<std::size_t>(count) + 7) / 8;
  for (std::size_t byte = first; byte < last; ++byte) bits |= std::uint64_t{bytes_[byte]} << (8 * (byte - first));
  bits >>= at_ % 8;
  at_ += static_cast<std::size_t>(count);
  return static_cast<std::uint32_t>(bits & ((std::uint64_t{1} << count) - 1));
}

std::uint64_t BitReader::take_omega() {
  std::uint64_t number = 1;
  while (take(1) == 1) {
    std::uint64_t next = 1;
    for (std::uint64_t i = 0; i < number; ++i) next = next << 1 | take(1);
    number = next;
  }
  return number;
}

int omega_bits(std::uint64_t number) {
  int bits = 1;
  for (; number > 1; number = static_cast<std::uint64_t>(std::bit_width(number)) - 1) bits += std::bit_width(number);
  return bits;
}

double QsgdDraws::operator()(std::uint64_t index) const {
  const std::uint64_t number = index / 2;
  const PhiloxCounter block =
      philox({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), words_[2], words_[3]},
             {words_[0], words_[1]});
  const std::size_t half = 2 * (index % 2);
  return static_cast<double>(block[half + 1]) * 0x1p-32 + static_cast<double>(block[half] >> 11) * 0x1p-53;
}

void QsgdDraws::fill(std::uint64_t begin, std::span<double> out) const {
  const std::uint32_t words[4] = {words_[0], words_[1], words_[2], words_[3]};
  const auto block = kernels::level_codes().draws;
  double pair[2];
  std::size_t i = 0;
  if (begin % 2 == 1 && !out.empty()) {
    block(words, begin / 2, 1, pair);
    out[i++] = pair[1];
  }
  const std::size_t blocks = (out.size() - i) / 2;
  block(words, (begin + i) / 2, static_cast<std::int64_t>(blocks), out.data() + i);
  i += 2 * blocks;
  if (i < out.size()) {
    block(words, (begin + i) / 2, 1, pair);
    out[i] = pair[0];
  }
}

int fixed_bits(int levels) { return std::bit_width(2U * static_cast<unsigned>(levels)); }

namespace {

/// NaN where there is one.
double largest_size(const float* values, std::int64_t count) {
  return static_cast<double>(std::bit_cast<float>(kernels::level_codes().largest(values, count)));
}
double largest_size(const double* values, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::abs(values[i]);
    if (!(size <= largest)) largest = size;
    if (std::isnan(size)) break;
  }
  return largest;
}

void round_to_levels(const float* values, const double* uniform, std::int64_t count, double scale, std::int32_t most,
                     std::int32_t* levels) {
  kernels::level_codes().quantise(values, uniform, count, scale, most, levels);
}
void round_to_levels(const double* values, const double* uniform, std::int64_t count, double scale, std::int32_t most,
                     std::int32_t* levels) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double a = std::abs(values[i]) * scale;
    const auto whole = static_cast<std::int32_t>(a);  // a is no less than 0: its floor
    const std::int32_t up = uniform[i] < a - static_cast<double>(whole) ? 1 : 0;
    const std::int32_t level = std::min(whole + up, most);  // the norm may have been rounded down
    levels[i] = values[i] < 0 ? -level : level;
  }
}

}  // namespace

template <typename T>
void quantise(const T* values, const double* uniform, std::int64_t count, const spec::CompressConfig& config,
              QuantisedBucket<T>& out) {
  out.levels.assign(static_cast<std::size_t>(count), 0);
  double norm = 0;
  if (config.norm == spec::QsgdNorm::kL2) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double size = std::abs(static_cast<double>(values[i]));
      norm += size * size;
    }
    norm = std::sqrt(norm);
  } else {
    norm = largest_size(values, count);
  }
  out.norm = static_cast<T>(norm);
  if (!(out.norm > 0) || !std::isfinite(out.norm)) return;
  // By the norm that is sent: what is decoded is then right in the mean, whatever rounding did to it.
  round_to_levels(values, uniform, count, config.levels / static_cast<double>(out.norm), config.levels,
                  out.levels.data());
}

namespace {

void put_sparse(const std::vector<std::int32_t>& levels, BitWriter& bits) {
  std::size_t last = 0;  // one after the last non-zero
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (levels[i] == 0) continue;
    bits.put_omega(i - last + 1);
    bits.put(levels[i] < 0 ? 1 : 0, 1);
    bits.put_omega(static_cast<std::uint64_t>(std::abs(levels[i])));
    last = i + 1;
  }
  if (last < levels.size()) bits.put_omega(levels.size() - last + 1);
}

void put_dense(const std::vector<std::int32_t>& levels, BitWriter& bits) {
  for (const std::int32_t level : levels) {
    bits.put_omega(static_cast<std::uint64_t>(std::abs(level)) + 1);
    if (level != 0) bits.put(level < 0 ? 1 : 0, 1);
  }
}

std::int64_t sparse_size(const std::vector<std::int32_t>& levels) {
  std::int64_t bits = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (levels[i] == 0) continue;
    bits += omega_bits(i - last + 1) + 1 + omega_bits(static_cast<std::uint64_t>(std::abs(levels[i])));
    last = i + 1;
  }
  return bits + (last < levels.size() ? omega_bits(levels.size() - last + 1) : 0);
}

std::int64_t dense_size(const std::vector<std::int32_t>& levels) {
  std::int64_t bits = 0;
  for (const std::int32_t level : levels)
    bits += omega_bits(static_cast<std::uint64_t>(std::abs(level)) + 1) + (level != 0 ? 1 : 0);
  return bits;
}

void take_levels(BitReader& bits, std::int64_t count, std::vector<std::int32_t>& levels) {
  levels.assign(static_cast<std::size_t>(count), 0);
  const bool dense = bits.take(1) == 1;
  for (std::size_t i = 0; i < levels.size();) {
    if (dense) {
      const auto level = static_cast<std::int32_t>(bits.take_omega() - 1);
      levels[i++] = level != 0 && bits.take(1) == 1 ? -level : level;
      continue;
    }
    i += bits.take_omega() - 1;
    if (i >= levels.size()) return;
    const bool negative = bits.take(1) == 1;
    const auto level = static_cast<std::int32_t>(bits.take_omega());
    levels[i++] = negative ? -level : level;
  }
}

/// Levels of four bits, two in a byte: the same bits as BitWriter's.
void put_nibbles(const std::vector<std::int32_t>& levels, int most, Message& message) {
  const std::size_t at = message.size();
  message.resize(at + (levels.size() + 1) / 2);
  kernels::level_codes().put_nibbles(levels.data(), static_cast<std::int64_t>(levels.size()), most,
                                     message.data() + at);
}
template <typename T>
void add_nibbles(const std::uint8_t* codes, std::int64_t count, double unit, int most, T* sum) {
  T said[16];
  for (int code = 0; code < 16; ++code) said[code] = static_cast<T>(unit * (code - most));
  if constexpr (std::is_same_v<T, float>) {
    kernels::level_codes().add_nibbles(codes, count, said, sum);
  } else {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += said[i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4];
  }
}

}  // namespace

template <typename T>
std::int64_t encode_qsgd(const T* values, std::int64_t count, const spec::CompressConfig& config,
                         const QsgdDraws& draws, Message& message) {
  QuantisedBucket<T> bucket;
  std::vector<double> uniform;
  std::int64_t bits = 0;
  const int width = fixed_bits(config.levels);
  for (std::int64_t at = 0; at < count; at += config.bucket_size) {
    const std::int64_t size = std::min(config.bucket_size, count - at);
    uniform.resize(static_cast<std::size_t>(size));
    draws.fill(static_cast<std::uint64_t>(at), uniform);
    quantise(values + at, uniform.data(), size, config, bucket);
    put(message, &bucket.norm, 1);
    bits += static_cast<std::int64_t>(8 * sizeof(T));
    // Fixed codes are as long whatever they say: copies do not tell each other how long theirs are.
    const bool fixed = config.coding == spec::QsgdCoding::kFixed;
    if (!fixed && (!(bucket.norm > 0) || !std::isfinite(bucket.norm))) continue;
    if (fixed && width == 4) {
      put_nibbles(bucket.levels, config.levels, message);
      bits += width * size;
      continue;
    }
    BitWriter writer(message);
    if (fixed) {
      for (const std::int32_t level : bucket.levels)
        writer.put(static_cast<std::uint32_t>(level + config.levels), width);
      bits += width * size;
    } else {
      const std::int64_t sparse = sparse_size(bucket.levels), dense = dense_size(bucket.levels);
      writer.put(dense < sparse ? 1 : 0, 1);
      dense < sparse ? put_dense(bucket.levels, writer) : put_sparse(bucket.levels, writer);
      bits += 1 + std::min(sparse, dense);
    }
  }
  return bits;
}

template <typename T>
void add_qsgd(MessageReader& code, std::int64_t count, const spec::CompressConfig& config, T* sum) {
  const int width = fixed_bits(config.levels);
  std::vector<std::int32_t> levels;
  for (std::int64_t at = 0; at < count; at += config.bucket_size) {
    const std::int64_t size = std::min(config.bucket_size, count - at);
    T norm;
    code.take(&norm, 1);
    if (norm == 0 || !std::isfinite(norm)) {
      for (std::int64_t i = 0; i < size && norm != 0; ++i) sum[at + i] += norm;
      if (config.coding == spec::QsgdCoding::kFixed) code.take_bytes(static_cast<std::size_t>((width * size + 7) / 8));
      continue;
    }
    const double unit = static_cast<double>(norm) / config.levels;
    if (config.coding == spec::QsgdCoding::kFixed && width == 4) {
      add_nibbles(code.take_bytes(static_cast<std::size_t>((size + 1) / 2)), size, unit, config.levels, sum + at);
      continue;
    }
    const std::size_t left = code.left();
    BitReader bits(code.take_bytes(0), left);
    if (config.coding == spec::QsgdCoding::kFixed) {
      for (std::int64_t i = 0; i < size; ++i)
        sum[at + i] += static_cast<T>(unit * (static_cast<std::int32_t>(bits.take(width)) - config.levels));
    } else {
      take_levels(bits, size, levels);
      for (std::int64_t i = 0; i < size; ++i) sum[at + i] += static_cast<T>(unit * levels[static_cast<std::size_t>(i)]);
    }
    code.take_bytes((bits.position() + 7) / 8);
  }
}

template void quantise(const float*, const double*, std::int64_t, const spec::CompressConfig&, QuantisedBucket<float>&);
template void quantise(const double*, const double*, std::int64_t, const spec::CompressConfig&,
                       QuantisedBucket<double>&);
template std::int64_t encode_qsgd(const float*, std::int64_t, const spec::CompressConfig&, const QsgdDraws&, Message&);
template std::int64_t encode_qsgd(const double*, std::int64_t, const spec::CompressConfig&, const QsgdDraws&, Message&);
template void add_qsgd(MessageReader&, std::int64_t, const spec::CompressConfig&, float*);
template void add_qsgd(MessageReader&, std::int64_t, const spec::CompressConfig&, double*);

}  // namespace trireme::parallel

#pragma GCC pop_options
