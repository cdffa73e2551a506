// kernels/cpu/dropout_body.h -- the loop behind dropout.h, included once per instruction set.
#include "trireme/kernels/cpu/dropout_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kBatch = 16;   // blocks of four coins made side by side, in lanes
constexpr std::int64_t kPiece = 256;  // coins at a time; they stay in the first-level cache

/// Philox4x32-10 (base/philox.h) for kBatch blocks from `number` on; coins[4 b + w] is word w of block b. Loops of
/// fixed length without calls, so that the compiler puts blocks into lanes.
TRIREME_INLINE void make_coins(const DropoutLoop& c, std::uint64_t number, std::uint32_t* coins) {
  std::uint32_t w0[kBatch], w1[kBatch], w2[kBatch], w3[kBatch];
  for (std::uint32_t b = 0; b < kBatch; ++b) {
    w0[b] = static_cast<std::uint32_t>(number + b);
    w1[b] = static_cast<std::uint32_t>((number + b) >> 32);
    w2[b] = c.salt[0];
    w3[b] = c.salt[1];
  }
  std::uint32_t k0 = c.key[0], k1 = c.key[1];
  for (int round = 0; round < 10; ++round) {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::uint64_t left = std::uint64_t{0xD2511F53} * w0[b], right = std::uint64_t{0xCD9E8D57} * w2[b];
      w0[b] = static_cast<std::uint32_t>(right >> 32) ^ w1[b] ^ k0;
      w1[b] = static_cast<std::uint32_t>(right);
      w2[b] = static_cast<std::uint32_t>(left >> 32) ^ w3[b] ^ k1;
      w3[b] = static_cast<std::uint32_t>(left);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (std::int64_t b = 0; b < kBatch; ++b) {
    coins[4 * b] = w0[b];
    coins[4 * b + 1] = w1[b];
    coins[4 * b + 2] = w2[b];
    coins[4 * b + 3] = w3[b];
  }
}

template <typename T>
void dropout_rows(const DropoutLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  alignas(64) std::uint32_t coins[kPiece + 4 * kBatch];
  alignas(64) A factors[kPiece + 4 * kBatch];
  const A kept = static_cast<A>(c.factor);
  const V zero = V::all(0);
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = row_of(static_cast<T*>(c.x), row, c.stride);
    const std::uint64_t first =
        static_cast<std::uint64_t>(c.row_index[row]) * static_cast<std::uint64_t>(c.columns_total) +
        static_cast<std::uint64_t>(c.first_column);
    for (std::int64_t column = 0; column < c.width; column += kPiece) {
      const std::int64_t count = c.width - column < kPiece ? c.width - column : kPiece;
      const std::uint64_t number = first + static_cast<std::uint64_t>(column);
      const auto skip = static_cast<std::int64_t>(number % 4);
      for (std::int64_t made = 0; made < skip + count; made += 4 * kBatch) {
        make_coins(c, number / 4 + static_cast<std::uint64_t>(made / 4), coins + made);
        for (std::int64_t i = made; i < made + 4 * kBatch; ++i) factors[i] = coins[i] < c.threshold ? A(0) : kept;
      }
      // Chosen, not multiplied: what falls is 0 even where it was infinite.
      each<V>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        const V factor = V::load(factors + skip + i, some), v = V::load(x + column + i, some);
        choose(above(factor, zero), v * factor, zero).store(x + column + i, some);
      });
    }
  }
}

}  // namespace

extern const DropoutTable TRIREME_DROPOUT_TABLE = {
    {dropout_rows<float>, dropout_rows<double>, dropout_rows<Bf16>, dropout_rows<F16>}};

}  // namespace trireme::kernels
