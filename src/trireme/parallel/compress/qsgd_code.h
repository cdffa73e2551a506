// parallel/compress/qsgd_code.h -- QSGD's random quantisation and its codes (Alistarh, Grubic, Li, Tomioka, Vojnovic
// 2017).
//
// An element v of a bucket with norm |v| becomes |v| sign(v) l / s with l = floor(a) or floor(a) + 1, a = |v_i| s /
// |v|, the larger one with probability a - floor(a): right in the mean. Fixed: ceil(log2(2 s + 1)) bits an element.
// Elias: omega codes, of each bucket whichever is shorter of gaps between non-zeros with their levels, or all levels.
// Depends on: base, exchange, kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/parallel/compress/exchange.h"
#include "trireme/spec/compress.h"

namespace trireme::parallel {

/// Bits one after the other, the first in the lowest place of a byte.
class BitWriter {
 public:
  explicit BitWriter(Message& message) : message_(message) {}
  ~BitWriter() { flush(); }
  BitWriter(const BitWriter&) = delete;
  BitWriter& operator=(const BitWriter&) = delete;
  /// The lowest `count` bits of `bits`; at most 32.
  void put(std::uint32_t bits, int count);
  /// Elias omega code of number >= 1.
  void put_omega(std::uint64_t number);
  /// What began a byte fills it up.
  void flush();

 private:
  Message& message_;
  std::uint64_t pending_ = 0;
  int count_ = 0;
};
class BitReader {
 public:
  BitReader(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), bits_(8 * size) {}
  std::uint32_t take(int count);
  std::uint64_t take_omega();
  std::size_t position() const { return at_; }

 private:
  const std::uint8_t* bytes_;
  std::size_t bits_, at_ = 0;
};
/// Bits of an omega code.
int omega_bits(std::uint64_t number);

/// Signed levels of one bucket, and its norm.
template <typename T>
struct QuantisedBucket {
  T norm = 0;
  std::vector<std::int32_t> levels;
};
/// `uniform`: a draw for each element. A bucket of zeros has norm 0; one that is not finite keeps its norm, which makes
/// the sum so.
template <typename T>
void quantise(const T* values, const double* uniform, std::int64_t count, const spec::CompressConfig& config,
              QuantisedBucket<T>& out);

/// Uniform in [0, 1), a function of an element's number: Philox with a key of four words, 53 bits of each half of a
/// block; the same on a GPU.
class QsgdDraws {
 public:
  explicit QsgdDraws(const Random& stream) : words_(stream.block(Random::Purpose::kBits, 0, /*attempt=*/1)) {}
  double operator()(std::uint64_t index) const;
  void fill(std::uint64_t begin, std::span<double> out) const;
  const PhiloxCounter& words() const { return words_; }

 private:
  PhiloxCounter words_;
};

/// Appends the code of all buckets of a tensor, with a draw for each element. Gives the bits that it takes.
template <typename T>
std::int64_t encode_qsgd(const T* values, std::int64_t count, const spec::CompressConfig& config,
                         const QsgdDraws& draws, Message& message);
/// sum += what the code says; the reader then stands after it.
template <typename T>
void add_qsgd(MessageReader& code, std::int64_t count, const spec::CompressConfig& config, T* sum);

/// What a copy draws in a step for its part of a parameter; `shard`: which part, where tp or pp split it.
QsgdDraws qsgd_draws(std::uint64_t seed, const std::string& name, int shard, std::int64_t step, int copy);

/// Of an element, with fixed coding.
int fixed_bits(int levels);

}  // namespace trireme::parallel
